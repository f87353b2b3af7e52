"""Promises about weights: every format is read bit for bit, packing loses nothing, lies are refused."""

from __future__ import annotations

import numpy as np
import pytest
from tests.blocks import QUANTISED, dequantised, encoded, floats_tensor, random_tensor

from octavo import _native
from octavo.errors import BadModelFile, UnsupportedModel
from octavo.kernels.contract import Ops, RawTensor
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import BLOCKS, unpack_vector

KINDS = ("F32", "F16", "BF16", *QUANTISED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (37, 96)])
def test_every_kind_is_read_bit_for_bit(
    ops: Ops, kind: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    if kind in QUANTISED:
        shape = (shape[0], shape[1] // 32 * BLOCKS[kind].size)
        raw = random_tensor(kind, *shape, rng)
    else:
        raw = encoded(floats_tensor(rng.standard_normal(shape).astype(np.float32)), kind)
    expected = dequantised(raw)
    np.testing.assert_array_equal(unpack_vector(raw), expected)
    matrix = ops.matrix(raw)
    assert matrix.shape == shape
    rows = np.arange(shape[0], dtype=np.int32)
    np.testing.assert_array_equal(ops.embed(matrix, rows), expected)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_rows_of_any_length_are_packed(ops: Ops, kind: str, rng: np.random.Generator) -> None:
    values = rng.standard_normal((19, 45)).astype(np.float32)
    if kind == "F32":
        data, values = values, values
    elif kind == "F16":
        data = values.astype(np.float16)
        values = data.astype(np.float32)
    else:
        data = (values.view(np.uint32) >> 16).astype(np.uint16)
        values = (data.astype(np.uint32) << 16).view(np.float32)
    raw = RawTensor("w", kind, (19, 45), data.view(np.uint8).reshape(-1))
    np.testing.assert_array_equal(ops.embed(ops.matrix(raw), np.arange(19, dtype=np.int32)), values)


def test_every_half_has_its_value() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    out = np.empty(2**16, np.float32)
    _native.dequantise(halves.view(np.uint8), "F16", 2**16, out)
    expected = halves.view(np.float16).astype(np.float32)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(out[finite].view(np.uint32), expected[finite].view(np.uint32))
    assert np.isnan(out[~finite]).all()


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_block_has_the_values_that_the_gguf_package_finds(kind: str, rng: np.random.Generator) -> None:
    """Whatever the bytes are: subnormal and infinite scales, NaN, every exponent."""
    block = BLOCKS[kind]
    blocks = rng.integers(0, 256, (4096, block.num_bytes)).astype(np.uint8)
    blocks[:256, 0] = np.arange(256)
    raw = RawTensor("w", kind, (4096, block.size), blocks.reshape(-1))
    with np.errstate(all="ignore"):
        expected = dequantised(raw)
    for given in (
        unpack_vector(raw),
        NativeOps().embed(NativeOps().matrix(raw), np.arange(4096, dtype=np.int32)),
    ):
        is_number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(given), ~is_number)
        np.testing.assert_array_equal(given.view(np.uint32)[is_number], expected.view(np.uint32)[is_number])


def test_unaligned_bytes_are_read(rng: np.random.Generator) -> None:
    values = rng.standard_normal(64).astype(np.float32)
    shifted = np.concatenate([np.zeros(1, np.uint8), values.view(np.uint8)])[1:]
    out = np.empty(64, np.float32)
    _native.dequantise(shifted, "F32", 64, out)
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize(
    "kind, shape, size, error",
    [
        ("Q8_K", (2, 256), 584, UnsupportedModel),
        ("F32", (2, 4), 31, BadModelFile),
        ("F32", (2, 4), 33, BadModelFile),
        ("Q4_0", (2, 48), 54, BadModelFile),  # rows are no multiple of 32, their sum is
        ("F32", (0, 4), 0, BadModelFile),
        ("F32", (-1, 4), 0, BadModelFile),
        ("F32", (2**40, 2**40), 16, BadModelFile),
    ],
)
def test_a_tensor_that_lies_is_refused(
    ops: Ops, kind: str, shape: tuple[int, int], size: int, error: type[Exception]
) -> None:
    raw = RawTensor("w", kind, shape, np.zeros(size, np.uint8))
    with pytest.raises(error, match="tensor w"):
        ops.matrix(raw)
    with pytest.raises(error, match="tensor w"):
        unpack_vector(raw)
