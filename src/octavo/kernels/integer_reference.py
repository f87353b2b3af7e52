"""The product with integer weights in NumPy: the executable specification of `integers.multiply`.

    s[t, g]   = top / 127, the two lowest bits cleared; top = largest magnitude of x[t] in group g of 32
    q[t, i]   = round(x[t, i] * (127 / top)), ties to even; the product is not rounded first
    y[t, o]   = for p ascending: y = fma(s[t, g] * sum of q * code, d[o, p], y)
                   with minima:  y = fma(m[o, p], s[t, g] * sum of q, y)

A part p is a group g, in Q2_K and Q3_K one half of it. Code, d and m by kind:

    Q8_0, Q4_0, Q5_0         its codes, its scale of the group
    Q4_1, Q5_1               its codes, its scale and its minimum
    IQ4_NL, MXFP4            its table's values of the codes; its scale (MXFP4: half of the power of two)
    Q2_K, Q4_K, Q5_K         its codes; d times the part's scale; minus dmin times the part's minimum
    Q3_K                     its codes; d times the part's scale
    IQ4_XS                   its table's values of the codes; d times the part's scale
    Q6_K                     its codes times the scale of their half of the group; d

Sums of codes are integers below 2^24, so float32 holds them exactly in any order. A fused step is computed in
double and rounded once more; that differs from one rounding in about one of 2^29 cases.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from octavo.kernels.block_reference import parts_of
from octavo.kernels.contract import Floats, Ints, RawTensor
from octavo.kernels.packed import BLOCKS, QUANT_GROUP, unpack_vector

_LARGEST_CODE = np.float32(127)
_LEAST_MAGNITUDE = np.float32(2.0**-100)  # below it, numbers count as zero
_ENDLESS_MAGNITUDE = np.float32(2.0**104)  # from it on, numbers count as NaN, like infinity


@dataclass(frozen=True, slots=True)
class ReferenceIntegers:
    """A matrix (outputs, inputs) in P parts of 32 or 16 inputs, in float32: codes (P, outputs, size), and d
    and m (P, outputs)."""

    shape: tuple[int, int]
    kind: str
    codes: Floats = field(repr=False)
    scales: Floats = field(repr=False)
    minima: Floats | None = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.minima is None else self.minima.nbytes)


def read(raw: RawTensor) -> ReferenceIntegers:
    """The codes of a matrix of a quantised kind, whose bytes have been checked."""
    outputs, inputs = raw.shape
    block = BLOCKS[raw.kind]
    blocks = raw.data.reshape(outputs, inputs // block.size, block.num_bytes).swapaxes(0, 1)
    parts = parts_of(blocks, raw.kind)
    return ReferenceIntegers((outputs, inputs), raw.kind, parts.codes, parts.scales, parts.minima)


def rows_of(table: ReferenceIntegers, rows: Ints) -> Floats:
    """(T,) -> (T, inputs), de-quantised. Raises IndexError for a row that does not exist."""
    values: Floats = table.scales[:, rows, None] * table.codes[:, rows]
    if table.minima is not None:
        values = values + table.minima[:, rows, None]
    return np.ascontiguousarray(values.swapaxes(0, 1)).reshape(rows.size, table.shape[1])


def multiply(x: Floats, weight: ReferenceIntegers, bias: Floats | None) -> Floats:
    """(T, inputs) -> (T, outputs)."""
    groups = x.reshape(x.shape[0], x.shape[1] // QUANT_GROUP, QUANT_GROUP)
    in_group = QUANT_GROUP // weight.codes.shape[2]
    y = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    with np.errstate(all="ignore"):  # a row with NaN gives a result with NaN
        for g in range(groups.shape[1]):
            scale, of_group = quantised(groups[:, g])
            for p, codes in enumerate(np.split(of_group, in_group, axis=1), in_group * g):
                y = _fused(scale * (codes @ weight.codes[p].T), weight.scales[p], y)
                if weight.minima is not None:
                    y = _fused(weight.minima[p], scale * codes.sum(axis=1, keepdims=True), y)
        return y if bias is None else y + bias


def quantised(group: Floats) -> tuple[Floats, Floats]:
    """(T, 32) -> scales (T, 1) and codes (T, 32), integers as float32. The scale is NaN if an element is NaN
    or of magnitude 2^104 or more; codes are 0 if the scale is NaN or 0."""
    top = np.abs(group).max(axis=1, keepdims=True)
    is_number = top < _ENDLESS_MAGNITUDE  # false for NaN
    has_codes = is_number & (top >= _LEAST_MAGNITUDE)
    largest = np.where(has_codes, top, np.float32(1))
    exact = np.where(has_codes, group, np.float32(0)).astype(np.float64) * (_LARGEST_CODE / largest)
    scale = ((largest / _LARGEST_CODE).view(np.uint32) & np.uint32(0xFFFFFFFC)).view(np.float32)
    scale = np.where(has_codes, scale, np.where(is_number, np.float32(0), np.float32(np.nan)))
    return scale, np.rint(exact).astype(np.float32)


def requantised(raw: RawTensor, kind: str) -> RawTensor:
    """The matrix requantised to Q8_0 or Q4_1, by ggml's arithmetic.

        Q8_0    d = largest magnitude / 127             code = x * (1 / d), rounded, ties away from zero
        Q4_1    m = smallest, d = (largest - m) / 15    code = (x - m) * (1 / d) + 1/2, rounded down

    Codes come from d and m before these are rounded to halves. A group with an element that is not finite has
    scale NaN (Q4_1: and minimum) and codes 0.
    """
    groups = unpack_vector(raw).reshape(-1, QUANT_GROUP)
    finite = np.isfinite(groups).all(axis=1, keepdims=True)
    groups = np.where(finite, groups, np.float32(0))
    low, high = groups.min(axis=1, keepdims=True) + np.float32(0), groups.max(axis=1, keepdims=True)
    magnitude = np.abs(groups).max(axis=1, keepdims=True)
    d = (high - low) / np.float32(15) if kind == "Q4_1" else magnitude / _LARGEST_CODE
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    nan = np.float32(np.nan)
    scales = [np.where(finite, d, nan)]
    if kind == "Q4_1":
        scales.append(np.where(finite, low, nan))
        codes = ((groups - low) * inverse + np.float32(0.5)).clip(0, 15).astype(np.uint8)
        data = codes[:, : QUANT_GROUP // 2] | codes[:, QUANT_GROUP // 2 :] << 4
    else:
        steps = (groups * inverse).clip(-_LARGEST_CODE, _LARGEST_CODE)
        size = np.floor(np.abs(steps))
        size = size + (np.abs(steps) - size >= np.float32(0.5))
        data = np.copysign(size, steps).astype(np.int8).view(np.uint8)
    with np.errstate(over="ignore"):
        halves = np.concatenate(scales, axis=1).astype(np.float16).view(np.uint8)
    return replace(raw, kind=kind, data=np.concatenate([halves, data], axis=1).reshape(-1))


def _fused(x: Floats, y: Floats, z: Floats) -> Floats:
    """x * y + z: the product of two float32 is exact in double."""
    return (x.astype(np.float64) * y + z).astype(np.float32)
