"""Codes with scales as blocks of a kind that the backends know, and the tables of 8-bit floats.

    codes (R, inputs) uint8, scales (R, groups), zeros (R, groups):   w = scale * (code - zero)

        Q4_0   half d | 16 bytes: code i low, code i + 16 high              w = d * (code - 8)
        Q4_1   half d | half m | the same                                   w = d * code + m
        Q8_0   half d | 32 signed bytes                                     w = d * code
        BF16   the upper half of a float32, rounded to nearest even

Pure functions over some rows of a matrix: they know no file and no name.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.kernels.contract import Bytes, Floats
from octavo.kernels.packed import QUANT_GROUP

Zeros = npt.NDArray[np.int16]
_HALF_GROUP = QUANT_GROUP // 2


class NotAHalf(ValueError):
    """A scale, or a zero point times a scale, that no half can hold."""


def q4_0_rows(codes: Bytes, scales: Floats) -> Bytes:
    """Codes 0 to 15 whose zero point is 8. Raises NotAHalf."""
    blocks = _blocks(codes, 2 + _HALF_GROUP)
    blocks[..., :2] = _halves(_by_block(scales, blocks.shape[1]))
    _write_nibbles(blocks[..., 2:], codes)
    return blocks.reshape(-1)


def q4_1_rows(codes: Bytes, scales: Floats, zeros: Zeros) -> Bytes:
    """Codes 0 to 15. Raises NotAHalf."""
    blocks = _blocks(codes, 4 + _HALF_GROUP)
    count = blocks.shape[1]
    blocks[..., :2] = _halves(_by_block(scales, count))
    blocks[..., 2:4] = _halves(_by_block(-scales * zeros.astype(np.float32), count))
    _write_nibbles(blocks[..., 4:], codes)
    return blocks.reshape(-1)


def q8_0_rows(codes: Bytes, scales: Floats) -> Bytes:
    """Codes 0 to 255 whose zero point is 128. Raises NotAHalf."""
    blocks = _blocks(codes, 2 + QUANT_GROUP)
    blocks[..., :2] = _halves(_by_block(scales, blocks.shape[1]))
    blocks[..., 2:] = codes.reshape(*blocks.shape[:2], QUANT_GROUP) ^ 0x80
    return blocks.reshape(-1)


def values_of(codes: Bytes, scales: Floats, zeros: Zeros, group_of: npt.NDArray[np.intp]) -> Floats:
    """(R, inputs) float32, where input i has the scale and the zero point of group_of[i]."""
    values = codes.astype(np.float32)
    values -= np.take(zeros, group_of, axis=1)
    values *= np.take(scales, group_of, axis=1)
    return values


def requantised_rows(values: Floats) -> Bytes:
    """Float32 as Q8_0, codes rounded to nearest. Overwrites `values`. Raises NotAHalf."""
    blocks = _blocks(values, 2 + QUANT_GROUP)
    groups = values.reshape(*blocks.shape[:2], QUANT_GROUP)
    scales = np.maximum(groups.max(axis=2), -groups.min(axis=2)) / np.float32(127)
    blocks[..., :2] = _halves(scales)
    groups *= np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)[..., None]
    codes = np.rint(groups, out=groups).astype(np.int8)
    blocks[..., 2:] = codes.view(np.uint8)
    return blocks.reshape(-1)


def bf16_rows(values: Floats) -> Bytes:
    """Rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return as_bytes(rounded)


def unpacked(words: npt.NDArray[np.int32], bits: int) -> Bytes:
    """(R, W) -> (R, W * 32 / bits): codes of 4 or 8 bits, the lowest first."""
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data
    codes = np.empty((data.shape[0], data.shape[1], 2), np.uint8)
    np.bitwise_and(data, 15, out=codes[..., 0])
    np.right_shift(data, 4, out=codes[..., 1])
    return codes.reshape(data.shape[0], -1)


def float8_values(kind: str) -> Floats:
    """(256,): what each byte of F8_E4M3 (no infinities, OCP "fn") or F8_E5M2 means."""
    exponent_bits = 4 if kind == "F8_E4M3" else 5
    mantissa_bits, bias = 7 - exponent_bits, (1 << exponent_bits - 1) - 1
    byte = np.arange(256)
    exponent = byte >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (byte & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    size = np.where(exponent > 0, (1 + mantissa) * 2.0 ** (exponent - bias), mantissa * 2.0 ** (1 - bias))
    if kind == "F8_E4M3":
        size[byte & 0x7F == 0x7F] = np.nan
    else:
        top = exponent == 31
        size[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    return np.where(byte >> 7, -size, size).astype(np.float32)


def as_bytes(values: npt.NDArray[np.generic]) -> Bytes:
    """The array's bytes, flat."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _blocks(codes: Bytes | Floats, num_bytes: int) -> Bytes:
    """Uninitialised memory for the blocks of some rows."""
    return np.empty((codes.shape[0], codes.shape[1] // QUANT_GROUP, num_bytes), np.uint8)


def _by_block(values: Floats, count: int) -> Floats:
    """(R, groups) -> (R, count): one for each block of 32."""
    return np.repeat(values, count // values.shape[1], axis=1)


def _halves(values: Floats) -> Bytes:
    """(R, N) -> (R, N, 2)."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise NotAHalf
    return halves.view(np.uint8).reshape(*values.shape, 2)


def _write_nibbles(out: Bytes, codes: Bytes) -> None:
    pairs = codes.reshape(*out.shape[:2], 2, _HALF_GROUP)
    np.left_shift(pairs[:, :, 1], 4, out=out)
    np.bitwise_or(out, pairs[:, :, 0], out=out)
