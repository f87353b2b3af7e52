"""Promises about integer weights: their product follows its specification to the bit, in any batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo import _native
from octavo.kernels import integer_reference
from octavo.kernels.contract import Floats, Ops, RawTensor
from octavo.kernels.integers import IntegerMatrix, requantised
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import GROUP_BYTES, PackedMatrix
from octavo.kernels.reference import ReferenceOps

KINDS = ("Q8_0", "Q4_0", "Q4_1")


def _tensor(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> RawTensor:
    """Any bytes as codes, extremes included, with scales and minima of either sign."""
    blocks = rng.integers(0, 256, (outputs, inputs // 32, GROUP_BYTES[kind])).astype(np.uint8)
    halves = rng.normal(0, 0.02, (outputs, inputs // 32, 2)).astype(np.float16)
    count = 4 if kind == "Q4_1" else 2
    blocks[..., :count] = halves.view(np.uint8)[..., :count]
    return RawTensor("w", kind, (outputs, inputs), blocks.reshape(-1))


def _floats(values: Floats) -> RawTensor:
    return RawTensor("w", "F32", values.shape, np.ascontiguousarray(values).view(np.uint8).reshape(-1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs, inputs", [(1, 32), (16, 64), (37, 96), (200, 576)])
def test_the_product_follows_its_specification_to_the_bit(
    kind: str, outputs: int, inputs: int, rng: np.random.Generator
) -> None:
    raw = _tensor(kind, outputs, inputs, rng)
    native, reference = NativeOps(), ReferenceOps()
    x = rng.normal(0, 3, (27, inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    for given in (None, bias):
        expected = reference.linear(x, reference.matrix(raw), given)
        np.testing.assert_array_equal(native.linear(x, native.matrix(raw), given), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_is_near_that_of_the_same_weights_in_float32(
    ops: Ops, kind: str, rng: np.random.Generator
) -> None:
    raw = _tensor(kind, 64, 576, rng)
    x = rng.standard_normal((5, 576)).astype(np.float32)
    expected = x @ ops.vector(raw).T
    error = ops.linear(x, ops.matrix(raw)) - expected
    assert np.sqrt(np.mean(error**2)) < 0.01 * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same_alone_and_in_every_batch(
    kind: str, threads: Callable[[int], None], rng: np.random.Generator
) -> None:
    ops = NativeOps()
    matrix = ops.matrix(_tensor(kind, 330, 96, rng))
    x = rng.standard_normal((70, 96)).astype(np.float32)
    threads(1)
    alone = np.concatenate([ops.linear(x[i : i + 1].copy(), matrix) for i in range(70)])
    for count in (1, 2, 3):
        threads(count)
        for rows in (*range(1, 30), 47, 48, 49, 70):
            first = (7 * rows) % (71 - rows)
            some = slice(first, first + rows)
            np.testing.assert_array_equal(ops.linear(x[some].copy(), matrix), alone[some])


@pytest.mark.parametrize("kind", KINDS)
def test_no_extreme_of_codes_and_activations_saturates(kind: str) -> None:
    ops = NativeOps()
    for code in (0, 0x7F, 0x80, 0xFF, 0x0F, 0xF0):
        blocks = np.full((16, 1, GROUP_BYTES[kind]), code, np.uint8)
        blocks[..., :4] = np.array([1, 0], np.float16).view(np.uint8)[: min(4, GROUP_BYTES[kind])]
        if kind != "Q4_1":
            blocks[..., 2:4] = code
        raw = RawTensor("w", kind, (16, 32), blocks.reshape(-1))
        for sign in (-127.0, 127.0):  # the scale is 1, every product exact
            x = np.full((1, 32), sign, np.float32)
            np.testing.assert_array_equal(ops.linear(x, ops.matrix(raw)), x @ ops.vector(raw).T)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_says_so_and_harms_no_other(
    ops: Ops, poison: float, rng: np.random.Generator
) -> None:
    matrix = ops.matrix(_tensor("Q4_1", 20, 64, rng))
    x = rng.standard_normal((14, 64)).astype(np.float32)
    expected = ops.linear(x, matrix)
    x[5, 40] = poison
    given = ops.linear(x, matrix)
    assert np.isnan(given[5]).all()
    np.testing.assert_array_equal(np.delete(given, 5, 0), np.delete(expected, 5, 0))


@pytest.mark.parametrize("size", [0.0, 1e-45, 3e-43, 1e-38, 3e38])
def test_tiny_and_huge_activations_follow_the_specification(size: float, rng: np.random.Generator) -> None:
    raw = _tensor("Q8_0", 16, 64, rng)
    x = (rng.uniform(-1, 1, (3, 64)) * size).astype(np.float32)
    native, reference = NativeOps(), ReferenceOps()
    expected = reference.linear(x, reference.matrix(raw))
    np.testing.assert_array_equal(native.linear(x, native.matrix(raw)), expected)


def test_codes_of_activations_are_rounded_to_nearest_even() -> None:
    group = np.zeros((1, 32), np.float32)
    group[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    scale, codes = integer_reference.quantised(group)
    assert scale[0, 0] == 1
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_a_matrix_takes_the_bytes_of_its_file(rng: np.random.Generator) -> None:
    for kind in KINDS:
        raw = _tensor(kind, 64, 576, rng)
        matrix = NativeOps().matrix(raw)
        assert isinstance(matrix, IntegerMatrix)
        assert matrix.num_bytes == raw.data.size


def test_the_mode_decides_how_a_matrix_is_held(rng: np.random.Generator) -> None:
    q4, f32 = _tensor("Q4_1", 20, 64, rng), _floats(rng.standard_normal((20, 64)).astype(np.float32))
    odd = _floats(rng.standard_normal((20, 48)).astype(np.float32))

    def held(weights: str, raw: RawTensor) -> str:
        matrix = NativeOps(weights).matrix(raw)
        assert isinstance(matrix, IntegerMatrix | PackedMatrix)
        return matrix.kind if isinstance(matrix, IntegerMatrix) else "F32"

    assert [held("auto", raw) for raw in (q4, f32, odd)] == ["Q4_1", "F32", "F32"]
    assert [held("f32", raw) for raw in (q4, f32, odd)] == ["F32", "F32", "F32"]
    assert [held("int8", raw) for raw in (q4, f32, odd)] == ["Q8_0", "Q8_0", "F32"]


@pytest.mark.parametrize("backend", [NativeOps, ReferenceOps])
def test_modes_have_different_arithmetic(backend: type[NativeOps] | type[ReferenceOps]) -> None:
    assert len({backend(weights).arithmetic_id for weights in ("auto", "f32", "int8")}) == 3


def test_requantised_weights_are_within_half_a_step(rng: np.random.Generator) -> None:
    values = rng.standard_normal((40, 2**16)).astype(np.float32)  # more than one slice of rows
    values[3, :32] = 0
    values[4, 5] = 1000
    again = ReferenceOps().vector(requantised(_floats(values)))
    steps = np.abs(values).reshape(40, -1, 32).max(axis=2) / 127
    error = np.abs(again - values).reshape(40, -1, 32).max(axis=2)
    assert (error <= steps * 0.57).all()  # half a step, and the scale's own rounding: 127 / 2048 of one
    np.testing.assert_array_equal(again[3, :32], 0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_have_no_product(kind: str, rng: np.random.Generator) -> None:
    # The last layer of a step whose chunks all end in the middle of their prompts.
    ops = NativeOps()
    matrix = ops.matrix(_tensor(kind, 37, 96, rng))
    assert ops.linear(np.empty((0, 96), np.float32), matrix).shape == (0, 37)


def test_wrong_arguments_are_refused(rng: np.random.Generator) -> None:
    x, out = np.zeros((2, 64), np.float32), np.zeros((2, 20), np.float32)
    panels = np.zeros((2, _native.code_panel_bytes("Q4_0", 64)), np.uint8)
    _native.linear_codes(x, panels, "Q4_0", None, out)
    for bad in (panels[:1], panels[:, :-1].copy()):
        with pytest.raises(ValueError, match="panels"):
            _native.linear_codes(x, bad, "Q4_0", None, out)
    with pytest.raises(ValueError, match="multiple of 32"):
        _native.linear_codes(x[:, :48].copy(), panels, "Q4_0", None, out)
    with pytest.raises(ValueError, match="no integer codes"):
        _native.linear_codes(x, panels, "F32", None, out)
    with pytest.raises(ValueError, match="bias"):
        _native.linear_codes(x, panels, "Q4_0", np.zeros(19, np.float32), out)
    with pytest.raises(IndexError):
        _native.embed_codes(panels, "Q4_0", 20, np.array([20], np.int32), np.zeros((1, 64), np.float32))
    with pytest.raises(ValueError, match="in bytes"):
        _native.pack_codes(np.zeros(35, np.uint8), "Q4_0", 1, 64, panels[:1].copy())
