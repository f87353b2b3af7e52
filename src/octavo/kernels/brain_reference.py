"""bfloat16 in NumPy, and its product: the executable specification of `packed.multiply` for BF16.

    r[t, i]   = x[t, i] rounded to the nearest bfloat16, ties to even
    y[t, o]   = for pairs p ascending: y = y + r[t, 2p + 1] * w[o, 2p + 1], then y = y + r[t, 2p] * w[o, 2p]

A product of two bfloat16 is exact in float32 where it neither overflows nor is subnormal, so each step is one
fused multiply-add. Subnormal numbers count as zero (here: of rows and weights; the kernels' sums and products
too).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from octavo.kernels.contract import Floats, RawTensor
from octavo.kernels.packed import Halves, unpack_vector

_SMALLEST_NORMAL = np.float32(2.0**-126)


@dataclass(frozen=True, slots=True)
class ReferenceBrains:
    """A matrix (outputs, inputs) of kind BF16, widened."""

    shape: tuple[int, int]
    values: Floats = field(repr=False)

    @property
    def kind(self) -> str:
        """The kind of the weights."""
        return "BF16"

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.values.nbytes


def read(raw: RawTensor) -> ReferenceBrains:
    """A matrix whose bytes have been checked, rounded to bfloat16."""
    outputs, inputs = raw.shape
    brains = raw.data.view(np.uint16) if raw.kind == "BF16" else rounded_to_brain(unpack_vector(raw))
    return ReferenceBrains((outputs, inputs), widened(brains).reshape(outputs, inputs))


def multiply(x: Floats, weight: ReferenceBrains, bias: Floats | None) -> Floats:
    """(T, inputs) -> (T, outputs)."""
    rows = widened(rounded_to_brain(_flushed(x))).T[:, :, None]
    columns = _flushed(weight.values).T[:, None, :]
    y = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    with np.errstate(all="ignore"):  # a row with NaN gives a result with NaN
        for first in range(0, weight.shape[1], 2):
            y = y + rows[first + 1] * columns[first + 1]
            y = y + rows[first] * columns[first]
        return y if bias is None else y + bias


def rounded_to_brain(x: Floats) -> Halves:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> 16
    return np.where(np.isnan(x), bits >> 16 | np.uint32(0x40), rounded).astype(np.uint16)


def widened(brains: Halves) -> Floats:
    """Bits of bfloat16 as float32, exactly."""
    return (brains.astype(np.uint32) << 16).view(np.float32)


def _flushed(x: Floats) -> Floats:
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.float32(0), x)
