"""The product with integer weights in NumPy: the executable specification of `integers.multiply`.

    s[t, g]   = largest magnitude of x[t] in group g of 32 / 127
    q[t, i]   = round(x[t, i] / s[t, g]), ties to even
    y[t, o]   = for g ascending: y = fma(sum of q * code, d[o, g] * s[t, g], y)
                       and Q4_1: y = fma(m[o, g], s[t, g] * sum of q, y)

Sums of codes are integers below 2^24, so float32 holds them exactly whatever the order. A fused step is
computed in double and rounded once more; that differs from one rounding in about one of 2^29 cases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from octavo.kernels.contract import Floats, Ints, RawTensor
from octavo.kernels.packed import GROUP_BYTES, QUANT_GROUP

_LARGEST_CODE = np.float32(127)


@dataclass(frozen=True, slots=True)
class ReferenceIntegers:
    """A matrix (outputs, inputs): codes (G, outputs, 32), scales d and minima m (G, outputs); float32."""

    shape: tuple[int, int]
    codes: Floats = field(repr=False)
    scales: Floats = field(repr=False)
    minima: Floats | None = field(repr=False)  # Q4_1

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.minima is None else self.minima.nbytes)


def read(raw: RawTensor) -> ReferenceIntegers:
    """The codes of a matrix of kind Q8_0, Q4_0 or Q4_1, whose bytes have been checked."""
    outputs, inputs = raw.shape
    blocks = raw.data.reshape(outputs, inputs // QUANT_GROUP, GROUP_BYTES[raw.kind]).swapaxes(0, 1)
    halves = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
    if raw.kind == "Q8_0":
        codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.float32)
        return ReferenceIntegers((outputs, inputs), codes, halves[..., 0], None)
    pairs = blocks[..., -QUANT_GROUP // 2 :]
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=-1).astype(np.float32)
    if raw.kind == "Q4_0":
        return ReferenceIntegers((outputs, inputs), codes - np.float32(8), halves[..., 0], None)
    return ReferenceIntegers((outputs, inputs), codes, halves[..., 0], halves[..., 1])


def rows_of(table: ReferenceIntegers, rows: Ints) -> Floats:
    """(T,) -> (T, inputs), de-quantised. Raises IndexError for a row that does not exist."""
    values: Floats = table.scales[:, rows, None] * table.codes[:, rows]
    if table.minima is not None:
        values = values + table.minima[:, rows, None]
    return np.ascontiguousarray(values.swapaxes(0, 1)).reshape(rows.size, table.shape[1])


def multiply(x: Floats, weight: ReferenceIntegers, bias: Floats | None) -> Floats:
    """(T, inputs) -> (T, outputs)."""
    groups = x.reshape(x.shape[0], x.shape[1] // QUANT_GROUP, QUANT_GROUP)
    y = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    with np.errstate(all="ignore"):  # a row that is no number stays none, and says so in its result
        for g in range(groups.shape[1]):
            scale, codes = quantised(groups[:, g])
            y = _fused(codes @ weight.codes[g].T, weight.scales[g] * scale, y)
            if weight.minima is not None:
                y = _fused(weight.minima[g], scale * codes.sum(axis=1, keepdims=True), y)
        return y if bias is None else y + bias


def quantised(group: Floats) -> tuple[Floats, Floats]:
    """(T, 32) -> scales (T, 1) and codes (T, 32), integers as float32; the scale is NaN if an element is not
    finite, and codes are 0 where it is NaN or 0."""
    scale = np.abs(group).max(axis=1, keepdims=True) / _LARGEST_CODE
    scale = np.where(np.isfinite(group).all(axis=1, keepdims=True), scale, np.float32(np.nan))
    codes = np.where(scale > 0, np.rint(group / scale), np.float32(0))
    return scale, np.clip(codes, -_LARGEST_CODE, _LARGEST_CODE)


def _fused(x: Floats, y: Floats, z: Floats) -> Floats:
    """x * y + z: the product of two float32 is exact in double."""
    return (x.astype(np.float64) * y + z).astype(np.float32)
