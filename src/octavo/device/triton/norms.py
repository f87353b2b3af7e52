"""Norms of rows, alone or together with the sum before them.

A sum over a row follows the layout of its block over warps, so one program has exactly one row, and the block
and the number of warps follow from the row's length alone. Rows must begin at multiples of 16 bytes, because
Triton lays out aligned rows otherwise than others.

T rows of E elements.
"""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.triton.launch import TRITON_DTYPES, kernel, launch, padded

_LARGEST_ROW = 32768


def rms_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    branch: torch.Tensor | None = None,
) -> None:
    """out (T, E) = x / sqrt(mean(x^2) + eps) * weight (E,), in float32, rounded once.

    With `branch` (T, E): x += branch first, rounded and written back; out is the norm of the rounded sum.
    """
    _launch(out, x, weight, None, eps, branch)


def layer_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    branch: torch.Tensor | None = None,
) -> None:
    """out (T, E) = (x - mean(x)) / sqrt(variance(x) + eps) * weight (E,) + bias (E,); `branch` as above."""
    _launch(out, x, weight, bias, eps, branch)


def _launch(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    branch: torch.Tensor | None,
) -> None:
    size = x.shape[1]
    assert out.shape == x.shape
    assert weight.shape == (size,)
    assert size <= _LARGEST_ROW
    assert bias is None or bias.shape == (size,)
    assert branch is None or (branch.shape == x.shape and branch.dtype == x.dtype)
    assert x.dtype in TRITON_DTYPES
    assert out.dtype == x.dtype
    for rows in (out, x, branch):
        assert rows is None or rows.stride(1) == 1
        assert rows is None or rows.data_ptr() % 16 == 0 == rows.stride(0) * rows.itemsize % 16
    block = padded(size, 128)
    launch(
        normalise,
        (x.shape[0],),
        [
            *(out, x, branch, weight, bias, out.stride(0), x.stride(0)),
            *(0 if branch is None else branch.stride(0), eps),
        ],
        {"SIZE": size, "BLOCK": block},
        num_warps=max(1, min(16, block // 512)),
    )


@kernel("out_stride", "x_stride", "branch_stride")
def normalise(
    out: tl.tensor,
    x: tl.tensor,
    branch: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    branch_stride: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each row; with a bias it is the layer norm."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    numbers = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if branch is not None:
        numbers += tl.load(branch + row * branch_stride + column, mask=mask, other=0.0).to(tl.float32)
        rounded = numbers.to(x.dtype.element_ty)
        tl.store(x + row * x_stride + column, rounded, mask=mask)
        numbers = rounded.to(tl.float32)
    if bias is not None:
        numbers = tl.where(mask, numbers - tl.sum(numbers, 0) / SIZE, 0.0)
    mean_of_squares = tl.sum(numbers * numbers, 0) / SIZE
    y = numbers * (1.0 / tl.sqrt_rn(mean_of_squares + eps))
    y = y * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=mask)
