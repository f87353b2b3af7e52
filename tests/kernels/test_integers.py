"""Promises about integer weights: their product follows its specification to the bit, in any batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.blocks import QUANTISED, random_tensor, set_halves

from octavo import _native
from octavo.kernels import integer_reference
from octavo.kernels.contract import Ops, RawTensor
from octavo.kernels.integers import IntegerMatrix
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import BLOCKS, unpack_vector
from octavo.kernels.reference import ReferenceOps


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("outputs, groups", [(1, 1), (16, 2), (37, 3), (200, 18)])
def test_the_product_follows_its_specification_to_the_bit(
    kind: str, outputs: int, groups: int, rng: np.random.Generator
) -> None:
    inputs = groups * BLOCKS[kind].size
    raw = random_tensor(kind, outputs, inputs, rng)
    native, reference = NativeOps(), ReferenceOps()
    x = rng.normal(0, 3, (27, inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    for given in (None, bias):
        expected = reference.linear(x, reference.matrix(raw), given)
        np.testing.assert_array_equal(native.linear(x, native.matrix(raw), given), expected)


@pytest.mark.parametrize("kind", QUANTISED)
def test_the_product_is_near_that_of_the_same_weights_in_float32(
    ops: Ops, kind: str, rng: np.random.Generator
) -> None:
    raw = random_tensor(kind, 64, 768, rng)
    x = rng.standard_normal((5, 768)).astype(np.float32)
    expected = x @ unpack_vector(raw).T
    error = ops.linear(x, ops.matrix(raw)) - expected
    assert np.sqrt(np.mean(error**2)) < 0.01 * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_are_the_same_alone_and_in_every_batch(
    kind: str, threads: Callable[[int], None], rng: np.random.Generator
) -> None:
    ops = NativeOps()
    inputs = max(96, BLOCKS[kind].size)
    matrix = ops.matrix(random_tensor(kind, 330, inputs, rng))
    x = rng.standard_normal((70, inputs)).astype(np.float32)
    threads(1)
    alone = np.concatenate([ops.linear(x[i : i + 1].copy(), matrix) for i in range(70)])
    for count in (1, 2, 3):
        threads(count)
        for rows in (*range(1, 30), 47, 48, 49, 70):
            first = (7 * rows) % (71 - rows)
            some = slice(first, first + rows)
            np.testing.assert_array_equal(ops.linear(x[some].copy(), matrix), alone[some])


@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_of_the_specification_are_the_same_alone(kind: str, rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    matrix = ops.matrix(random_tensor(kind, 37, 512, rng))
    x = rng.standard_normal((19, 512)).astype(np.float32)
    alone = np.concatenate([ops.linear(row[None].copy(), matrix) for row in x])
    np.testing.assert_array_equal(ops.linear(x, matrix), alone)


@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_are_the_same_alone_and_among_many(kind: str, rng: np.random.Generator) -> None:
    """More rows, groups and panels than any kernel takes at a time; the last panel is not full."""
    ops = NativeOps()
    matrix = ops.matrix(random_tensor(kind, 37, 1024, rng))
    x, bias = rng.standard_normal((290, 1024)).astype(np.float32), rng.standard_normal(37).astype(np.float32)
    alone = np.concatenate([ops.linear(row[None].copy(), matrix, bias) for row in x])
    np.testing.assert_array_equal(ops.linear(x, matrix, bias), alone)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("code", [0, 0x7F, 0x80, 0xFF, 0x0F, 0xF0])
def test_no_extreme_of_codes_scales_and_activations_saturates(kind: str, rows: int, code: int) -> None:
    ops, block = NativeOps(), BLOCKS[kind]
    blocks = np.full((16, 1, block.num_bytes), code, np.uint8)
    set_halves(blocks, kind, [1, 0])
    raw = RawTensor("w", kind, (16, block.size), blocks.reshape(-1))
    for sign in (-127.0, 127.0):  # the activations' scale is 1, every product exact
        x = np.full((rows, block.size), sign, np.float32)
        wanted = x.astype(np.float64) @ unpack_vector(raw).T.astype(np.float64)
        np.testing.assert_allclose(ops.linear(x, ops.matrix(raw)), wanted, rtol=1e-6)  # sums of eight groups
        first_32 = np.where(np.arange(block.size) < 32, x, np.float32(0))
        wanted = first_32.astype(np.float64) @ unpack_vector(raw).T.astype(np.float64)
        np.testing.assert_array_equal(ops.linear(first_32, ops.matrix(raw)), wanted)


@pytest.mark.parametrize("kind", ["Q4_1", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 2.0**104])
def test_a_row_that_is_no_number_says_so_and_harms_no_other(
    ops: Ops, kind: str, poison: float, rng: np.random.Generator
) -> None:
    matrix = ops.matrix(random_tensor(kind, 20, 256, rng))
    x = rng.standard_normal((33, 256)).astype(np.float32)
    expected = ops.linear(x, matrix)
    x[5, 40] = poison
    given = ops.linear(x, matrix)
    assert np.isnan(given[5]).all()
    np.testing.assert_array_equal(np.delete(given, 5, 0), np.delete(expected, 5, 0))


@pytest.mark.parametrize("size", [0.0, 1e-45, 3e-43, 1e-38, 2e31, 3e38])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q6_K"])
def test_tiny_and_huge_activations_follow_the_specification(
    kind: str, size: float, rng: np.random.Generator
) -> None:
    raw = random_tensor(kind, 16, 256, rng)
    x = (rng.uniform(-1, 1, (3, 256)) * size).astype(np.float32)
    native, reference = NativeOps(), ReferenceOps()
    expected = reference.linear(x, reference.matrix(raw))
    np.testing.assert_array_equal(native.linear(x, native.matrix(raw)), expected)


def test_a_scale_times_the_origin_of_sums_is_exact(rng: np.random.Generator) -> None:
    groups = rng.standard_normal((4096, 32)).astype(np.float32)
    scale, _ = integer_reference.quantised(groups)
    exact = scale.astype(np.float64) * 1.5 * 2.0**23
    np.testing.assert_array_equal(exact, exact.astype(np.float32))
    np.testing.assert_allclose(scale[:, 0], np.abs(groups).max(axis=1) / 127, rtol=2.0**-21)


def test_codes_of_activations_are_rounded_to_nearest_even() -> None:
    group = np.zeros((1, 32), np.float32)
    group[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    scale, codes = integer_reference.quantised(group)
    assert scale[0, 0] == 1
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_a_matrix_takes_the_bytes_of_its_file(rng: np.random.Generator) -> None:
    for kind in QUANTISED:
        raw = random_tensor(kind, 64, 1024, rng)
        matrix = NativeOps().matrix(raw)
        assert isinstance(matrix, IntegerMatrix)
        # In bytes: scales of 6 bits, and MXFP4's exponents of 8.
        wider = {
            "Q4_K": 148 / 144,
            "Q5_K": 180 / 176,
            "Q3_K": 114 / 110,
            "IQ4_XS": 138 / 136,
            "MXFP4": 18 / 17,
        }
        assert matrix.num_bytes == raw.data.size * wider.get(kind, 1)


@pytest.mark.parametrize("kind", QUANTISED)
def test_no_rows_have_no_product(kind: str, rng: np.random.Generator) -> None:
    # The last layer of a step whose chunks all end in the middle of their prompts.
    ops = NativeOps()
    matrix = ops.matrix(random_tensor(kind, 37, 256, rng))
    assert ops.linear(np.empty((0, 256), np.float32), matrix).shape == (0, 37)


def test_wrong_arguments_are_refused(rng: np.random.Generator) -> None:
    x, out = np.zeros((2, 64), np.float32), np.zeros((2, 20), np.float32)
    panels = np.zeros((2, _native.code_panel_bytes("Q4_0", 64)), np.uint8)
    _native.linear_codes(x, panels, "Q4_0", None, out)
    for bad in (panels[:1], panels[:, :-1].copy()):
        with pytest.raises(ValueError, match="panels"):
            _native.linear_codes(x, bad, "Q4_0", None, out)
    with pytest.raises(ValueError, match="multiple of 32"):
        _native.linear_codes(x[:, :48].copy(), panels, "Q4_0", None, out)
    with pytest.raises(ValueError, match="multiple of 256"):
        _native.linear_codes(x, panels, "Q4_K", None, out)
    with pytest.raises(ValueError, match="cannot be quantised"):
        _native.pack_codes(np.zeros(72, np.uint8), "Q8_0", 1, 64, "Q4_0", panels[:1].copy())
    with pytest.raises(ValueError, match="no integer codes"):
        _native.linear_codes(x, panels, "F32", None, out)
    with pytest.raises(ValueError, match="bias"):
        _native.linear_codes(x, panels, "Q4_0", np.zeros(19, np.float32), out)
    with pytest.raises(IndexError):
        _native.embed_codes(panels, "Q4_0", 20, np.array([20], np.int32), np.zeros((1, 64), np.float32))
    with pytest.raises(ValueError, match="in bytes"):
        _native.pack_codes(np.zeros(35, np.uint8), "Q4_0", 1, 64, "Q4_0", panels[:1].copy())
