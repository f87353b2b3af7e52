"""Products whose bits no library can change: sums of integers that float64 holds exactly.

A BLAS adds in an order of its own, which depends on the number of rows, the place in a tile and the threads.
Where every partial sum is an integer below 2^53 no order matters:

    w = codes * 2^a     codes of 26 bits and a sign, one exponent for each row of the weight
    x = high * 2^b + low * 2^c                       one pair for each row of x; high and low of s bits
    K * 2^26 * 2^s <= 2^53                           so s = 27 - log2(K): 17 for a width of 1,024

Two products, then one addition in float64. Less is lost than float32 would lose: x keeps 2 s bits below its
row's largest, w 26. Source: Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication",
2012.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.functions import power_of_two

CODE_BITS = 26
_SUM_BITS = 53


@dataclass(frozen=True, slots=True)
class Codes:
    """Integers `codes` (..., n) in float64, each row of them times `scales` (..., 1)."""

    codes: Tensor
    scales: Tensor

    @property
    def values(self) -> Tensor:
        """(..., n) float64."""
        return self.codes * self.scales


@dataclass(frozen=True, slots=True)
class Slices:
    """(high + low / 2^bits) * scales: high and low (..., n) integers in float64, scales (..., 1)."""

    high: Tensor
    low: Tensor
    scales: Tensor
    bits: int


def coded(x: Tensor) -> Codes:
    """x (..., n) as codes of 26 bits beside the largest of each row; one with NaN or infinity becomes NaN."""
    wide = x.to(torch.float64)
    exponent = _exponents(wide)
    return Codes(torch.round(wide * power_of_two(CODE_BITS - exponent)), power_of_two(exponent - CODE_BITS))


def sliced(x: Tensor) -> Slices:
    """x (..., n) cut so that its product with codes, summed over n, is exact."""
    bits = _SUM_BITS - CODE_BITS - max(1, x.shape[-1] - 1).bit_length()
    assert bits >= 8, f"rows of {x.shape[-1]:,} are too wide for exact sums"
    wide = x.to(torch.float64)
    exponent = _exponents(wide)
    whole = torch.round(wide * power_of_two(2 * bits - exponent))
    high = torch.round(whole * 2.0**-bits)
    return Slices(high, whole - high * 2.0**bits, power_of_two(exponent - bits), bits)


def multiply(x: Slices, w: Codes) -> Tensor:
    """(..., T, n) times (..., N, n) transposed -> (..., T, N) float64."""
    rows = x.high.shape[-2]
    sums = torch.cat([x.high, x.low], dim=-2) @ w.codes.mT  # one product: the weights are read once
    total = sums[..., :rows, :] + sums[..., rows:, :] * 2.0**-x.bits
    return total * x.scales * w.scales.mT


def _exponents(wide: Tensor) -> Tensor:
    """(..., 1) int64: the largest magnitude of a row is below 2 to it; 0 for rows of zeros or no numbers."""
    largest = wide.abs().amax(dim=-1, keepdim=True)
    is_sound = torch.isfinite(largest) & (largest > 0)
    _, exponent = torch.frexp(torch.where(is_sound, largest, 1.0))
    return torch.where(is_sound, exponent, 0).to(torch.int64)
