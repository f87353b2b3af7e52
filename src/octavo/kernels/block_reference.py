"""GGUF's blocks in NumPy, read by their specification, for `integer_reference`.

A matrix is given as its blocks (B, outputs, bytes), block after block of each row, and becomes parts of 32 or
16 weights, each with one scale and, in some kinds, one minimum: w = scale * code + minimum.
`csrc/kernels/blocks.hpp` draws the blocks, and has another reader. Source: ggml's dequantize_row_q8_0 and so
on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from octavo.kernels.contract import Bytes, Floats

_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
_GROUPS = 8  # of a super-block
_TWO_BITS, _EVERY_BIT = (0, 2, 4, 6), tuple(range(8))


@dataclass(frozen=True, slots=True)
class BlockParts:
    """Codes (P, outputs, size) minus the kind's zero, scales and minima (P, outputs); float32."""

    codes: Floats
    scales: Floats
    minima: Floats | None = None


def parts_of(blocks: Bytes, kind: str) -> BlockParts:
    """Raises KeyError for a kind without codes."""
    return _READERS[kind](blocks)


def _q8_0(blocks: Bytes) -> BlockParts:
    return BlockParts(_signed(blocks[..., 2:]), _halves(blocks[..., :2]))


def _q4_0(blocks: Bytes) -> BlockParts:
    return BlockParts(_floats(_pairs(blocks[..., 2:])) - np.float32(8), _halves(blocks[..., :2]))


def _q4_1(blocks: Bytes) -> BlockParts:
    return BlockParts(_floats(_pairs(blocks[..., 4:])), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _q5_0(blocks: Bytes) -> BlockParts:
    codes = _pairs(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return BlockParts(_floats(codes) - np.float32(16), _halves(blocks[..., :2]))


def _q5_1(blocks: Bytes) -> BlockParts:
    codes = _pairs(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return BlockParts(_floats(codes), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _iq4_nl(blocks: Bytes) -> BlockParts:
    return BlockParts(_IQ4_VALUES[_pairs(blocks[..., 2:])], _halves(blocks[..., :2]))


def _mxfp4(blocks: Bytes) -> BlockParts:
    exponents = blocks[..., 0].astype(np.int32) - 128  # the values are doubled
    return BlockParts(_MXFP4_VALUES[_pairs(blocks[..., 1:])], np.ldexp(np.float32(1), exponents))


def _q2_k(blocks: Bytes) -> BlockParts:
    scales = blocks[..., :16]
    d, minus_dmin = _halves(blocks[..., 80:82]), -_halves(blocks[..., 82:84])
    return BlockParts(
        _by_part(_floats(_spread(blocks[..., 16:80], _TWO_BITS) & 3), 16),
        _by_part(d[..., None] * _floats(scales & 15)),
        _by_part(minus_dmin[..., None] * _floats(scales >> 4)),
    )


def _q3_k(blocks: Bytes) -> BlockParts:
    third = _spread(blocks[..., :32], _EVERY_BIT) & 1
    codes = _spread(blocks[..., 32:96], _TWO_BITS) & 3 | third << 2
    low, high = blocks[..., 96:104], blocks[..., 104:108]
    low = np.concatenate([low & 15, low >> 4], axis=-1)
    high = np.concatenate([high >> shift & 3 for shift in _TWO_BITS], axis=-1)
    scales = _floats(low | high << 4) - np.float32(32)
    d = _halves(blocks[..., 108:])
    return BlockParts(_by_part(_floats(codes) - np.float32(4), 16), _by_part(d[..., None] * scales))


def _q4_k(blocks: Bytes) -> BlockParts:
    scales, minima = _six_bits(blocks)
    return BlockParts(_by_part(_floats(_spread(blocks[..., 16:], (0, 4)) & 15), 32), scales, minima)


def _q5_k(blocks: Bytes) -> BlockParts:
    scales, minima = _six_bits(blocks)
    fifth = _spread(blocks[..., 16:48], _EVERY_BIT) & 1
    codes = _spread(blocks[..., 48:], (0, 4)) & 15 | fifth << 4
    return BlockParts(_by_part(_floats(codes), 32), scales, minima)


def _q6_k(blocks: Bytes) -> BlockParts:
    leading = blocks.shape[:2]
    low = blocks[..., :128].reshape(*leading, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(*leading, -1)
    high = _spread(blocks[..., 128:192], _TWO_BITS) & 3
    codes = _floats(low | high << 4) - np.float32(32)
    weighted = codes * np.repeat(_signed(blocks[..., 192:208]), 16, axis=-1)
    d = np.repeat(_halves(blocks[..., 208:])[..., None], _GROUPS, axis=-1)
    return BlockParts(_by_part(weighted, 32), _by_part(d))


def _iq4_xs(blocks: Bytes) -> BlockParts:
    leading = blocks.shape[:2]
    high = np.ascontiguousarray(blocks[..., 2:4]).view(np.uint16) >> (2 * np.arange(_GROUPS)) & 3
    low = np.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], axis=-1).reshape(*leading, _GROUPS)
    scales = (low | high << 4).astype(np.float32) - np.float32(32)
    codes = _pairs(blocks[..., 8:].reshape(*leading, _GROUPS, 16)).reshape(*leading, -1)
    d = _halves(blocks[..., :2])
    return BlockParts(_by_part(_IQ4_VALUES[codes], 32), _by_part(d[..., None] * scales))


_READERS: Mapping[str, Callable[[Bytes], BlockParts]] = MappingProxyType(
    {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "IQ4_NL": _iq4_nl}
    | {"MXFP4": _mxfp4, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
    | {"IQ4_XS": _iq4_xs}
)


def _pairs(pairs: Bytes) -> Bytes:
    """(..., 16) bytes of two codes -> (..., 32): the low halves first."""
    return np.concatenate([pairs & 15, pairs >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """(..., 4) -> (..., 32): zero or 16."""
    bits: Bytes = np.unpackbits(packed, axis=-1, bitorder="little")
    return bits * np.uint8(16)


def _spread(packed: Bytes, shifts: tuple[int, ...]) -> Bytes:
    """(B, outputs, 32 n) -> (B, outputs, 32 n len(shifts)): each 32 bytes shifted by one after the other."""
    each = packed.reshape(*packed.shape[:2], -1, 1, 32) >> np.array(shifts, np.uint8)[:, None]
    return each.reshape(*packed.shape[:2], -1)


def _six_bits(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of Q4_K and Q5_K: d, dmin | eight of each, of six bits, in 12 bytes."""
    first, second, mixed = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([first & 63, mixed & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, mixed >> 4 | second >> 6 << 4], axis=-1)
    d, minus_dmin = _halves(blocks[..., :2]), -_halves(blocks[..., 2:4])
    return _by_part(d[..., None] * _floats(scales)), _by_part(minus_dmin[..., None] * _floats(minima))


def _by_part(values: Floats, size: int | None = None) -> Floats:
    """Reshape super-blocks (B, outputs, N) to (B N, outputs), or with a size (B N / size, outputs, size)."""
    if size is not None:
        values = values.reshape(*values.shape[:2], -1, size)
    moved = np.ascontiguousarray(values.swapaxes(1, 2))
    return moved.reshape(-1, *moved.shape[2:])


def _floats(codes: npt.NDArray[np.integer]) -> Floats:
    return codes.astype(np.float32)


def _signed(codes: Bytes) -> Floats:
    return np.ascontiguousarray(codes).view(np.int8).astype(np.float32)


def _halves(pairs: Bytes) -> Floats:
    """(..., 2) bytes -> (...,) float32."""
    halves = np.ascontiguousarray(pairs).view(np.float16).astype(np.float32)
    return halves.reshape(pairs.shape[:-1])
