"""Functions whose bits do not depend on where an element stands, on any device: spelled out op by op.

A vector library rounds its exp in the body of an array otherwise than in the tail. Here every step is one
addition, multiplication, division or square root of torch's, and those are IEEE's wherever they run; all of
it in float64, so that what is rounded to float32 in the end is as good as correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_LOG2_E = 1.0 / math.log(2.0)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # few enough bits that a multiple of it is exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_TERMS = [1.0 / math.factorial(n) for n in range(13, -1, -1)]
_EXP_LEAST, _EXP_MOST = -110.0, 100.0  # beyond float32 on either side
_ERF_MOST, _ERF_TERMS = 4.5, 80  # erfc(4.5) is 2e-10, less than a float32 near 1 can tell


def power_of_two(exponent: Tensor) -> Tensor:
    """2 ** exponent as float64, exactly; `exponent` int64 from -1022 to 1023."""
    return ((exponent + 1023) << 52).view(torch.float64)


def sum_in_order(x: Tensor) -> Tensor:
    """(..., n) float64 -> (..., 1): halves are added to halves, so the order depends on n alone."""
    size = 1 << max(0, x.shape[-1] - 1).bit_length()
    if size != x.shape[-1]:
        x = torch.nn.functional.pad(x, (0, size - x.shape[-1]))
    while size > 1:
        size //= 2
        x = x[..., :size] + x[..., size:]
    return x


def exp(x: Tensor) -> Tensor:
    """float64 of the range of float32: 0 below it, infinity above it."""
    inside = x.clamp(_EXP_LEAST, _EXP_MOST)
    turns = torch.round(inside * _LOG2_E)
    rest = (inside - turns * _LN2_HIGH) - turns * _LN2_LOW
    value = torch.full_like(rest, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        value = value * rest + term
    exponent = torch.where(torch.isnan(turns), 0, turns).to(torch.int64)
    value = value * power_of_two(exponent)
    value = torch.where(x < _EXP_LEAST, 0.0, value)
    return torch.where(x > _EXP_MOST, math.inf, value)


def tanh(x: Tensor) -> Tensor:
    """float64."""
    value = 1.0 - 2.0 / (exp(2.0 * x) + 1.0)
    return torch.where(x.abs() < 1e-4, x - x * x * x / 3.0, value)


def erf(x: Tensor) -> Tensor:
    """float64, to an error of 1e-9. Source: Abramowitz and Stegun, 7.1.6: all terms have one sign."""
    inside = x.clamp(-_ERF_MOST, _ERF_MOST)
    square = inside * inside
    term, total = inside, inside
    for n in range(1, _ERF_TERMS):
        term = term * (2.0 * square) / (2.0 * n + 1.0)
        total = total + term
    return total * exp(-square) * (2.0 / math.sqrt(math.pi))


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """ "silu", "gelu_tanh", "gelu" or "relu", over float64."""
    return {"silu": _silu, "gelu_tanh": _gelu_tanh, "gelu": _gelu, "relu": torch.relu}[name]


def gate_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """activation(gate) * up for those, or "swiglu_clamped", over float64."""
    if name == "swiglu_clamped":
        return _swiglu_clamped
    activation = activation_of(name)
    return lambda gate, up: activation(gate) * up


def _silu(x: Tensor) -> Tensor:
    return x / (1.0 + exp(-x))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def _swiglu_clamped(gate: Tensor, up: Tensor) -> Tensor:
    g, u = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return g / (1.0 + exp(-1.702 * g)) * (u + 1.0)
