"""Functions of single elements over rows: computed in float32, rounded once. T rows of F elements."""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.triton.arithmetic import ACTIVATIONS, activated, capped
from octavo.device.triton.launch import TRITON_DTYPES, Constant, kernel, launch

_BLOCK = 1024


def gated(out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str) -> None:
    """out (T, F) = activation(gate) * up. Halves of one fused buffer do: rows may be strided."""
    assert activation in ACTIVATIONS
    _launch(out, gate, up, None, {"ACTIVATION": activation, "HAS_CAP": False})


def activate(out: torch.Tensor, x: torch.Tensor, activation: str) -> None:
    """out (T, F) = activation(x); out may be x."""
    assert activation in ACTIVATIONS
    _launch(out, x, None, None, {"ACTIVATION": activation, "HAS_CAP": False})


def scale(out: torch.Tensor, x: torch.Tensor, factor: float) -> None:
    """out (T, F) = x * factor, the factor rounded to float32 first; out may be x."""
    _launch(out, x, None, factor, {"ACTIVATION": None, "HAS_CAP": False})


def soft_cap(out: torch.Tensor, x: torch.Tensor, cap: float) -> None:
    """out (T, F) = cap * tanh(x / cap); out may be x."""
    _launch(out, x, None, cap, {"ACTIVATION": None, "HAS_CAP": True})


def _launch(
    out: torch.Tensor,
    x: torch.Tensor,
    up: torch.Tensor | None,
    number: float | None,
    constants: dict[str, Constant],
) -> None:
    assert out.shape == x.shape
    assert out.dtype in TRITON_DTYPES
    assert out.stride(1) == 1 == x.stride(1)
    assert up is None or (up.shape == x.shape and up.stride(1) == 1)
    num_rows, size = x.shape
    launch(
        map_elements,
        (num_rows, -(-size // _BLOCK)),
        [out, x, up, number, out.stride(0), x.stride(0), 0 if up is None else up.stride(0)],
        {"SIZE": size, "BLOCK": _BLOCK} | constants,
    )


@kernel()
def map_elements(
    out: tl.tensor,
    x: tl.tensor,
    up: tl.tensor,
    number: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    up_stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_CAP: tl.constexpr,
) -> None:
    """One program for each row and block of columns. `number` is the cap or the factor."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    y = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION is not None:
        y = activated(y, ACTIVATION)
    if HAS_CAP:
        y = capped(y, number)
    elif number is not None:
        y = y * number
    if up is not None:
        y = y * tl.load(up + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=mask)
