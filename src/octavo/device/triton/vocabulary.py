"""Logits of hidden rows, or only their argmax, without writing logits.

    argmax    1. each tile of outputs: its largest logit, the lowest index that has it; +inf if one is NaN
              2. each row: the largest of its tiles, the lowest index among equals

Comparisons are exact, so the order of a reduction is free. R rows, V outputs of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from octavo.device.triton.arithmetic import capped
from octavo.device.triton.launch import TRITON_DTYPES, kernel, launch
from octavo.device.triton.linear import Tiling, indices, place_of, product, tiling_of

_TILES_AT_ONCE = tl.constexpr(512)
_INFINITY = tl.constexpr(float("inf"))
_LEAST_OUTPUTS = 64  # of any tiling that shapes choose


@dataclass(frozen=True, slots=True)
class ArgmaxScratch:
    """The best logit of each tile of outputs and row: (tiles, R)."""

    largest: torch.Tensor  # float32
    index: torch.Tensor  # int32


def allocate_argmax_scratch(rows_max: int, num_outputs: int, device: torch.device) -> ArgmaxScratch:
    """Memory for the tiles of up to `rows_max` rows."""
    shape = (-(-num_outputs // _LEAST_OUTPUTS), rows_max)
    largest = torch.empty(shape, dtype=torch.float32, device=device)
    return ArgmaxScratch(largest, torch.empty(shape, dtype=torch.int32, device=device))


def logits(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    soft_cap: float | None = None,
    tiling: Tiling | None = None,
) -> None:
    """out (R, V) float32 = x (R, E) @ weight (V, E).T, capped."""
    chosen = _check(x, weight, tiling)
    assert out.shape == (x.shape[0], weight.shape[0])
    assert out.dtype == torch.float32
    assert out.stride(1) == 1
    row_tiles, output_tiles = chosen.num_tiles(*out.shape)
    launch(
        multiply_into_logits,
        (row_tiles * output_tiles,),
        [out, x, weight, soft_cap, x.shape[0], out.stride(0), x.stride(0)],
        {"INPUTS": x.shape[1], "NUM_OUTPUTS": weight.shape[0]} | chosen.constants,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )


def argmax(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    scratch: ArgmaxScratch,
    soft_cap: float | None = None,
    tiling: Tiling | None = None,
) -> None:
    """out (R,) int64: the lowest index of each row's largest logit; -1 for a row that holds NaN or +inf, or
    nothing but -inf. Overwrites `scratch`."""
    chosen = _check(x, weight, tiling)
    num_rows, num_outputs = x.shape[0], weight.shape[0]
    assert out.shape == (num_rows,)
    assert out.dtype == torch.int64
    row_tiles, output_tiles = chosen.num_tiles(num_rows, num_outputs)
    assert scratch.largest.shape[0] >= output_tiles
    assert scratch.largest.shape[1] >= num_rows
    width = scratch.largest.stride(0)
    launch(
        find_largest_of_tiles,
        (row_tiles * output_tiles,),
        [scratch.largest, scratch.index, x, weight, soft_cap, num_rows, width, x.stride(0)],
        {"INPUTS": x.shape[1], "NUM_OUTPUTS": num_outputs} | chosen.constants,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )
    launch(find_largest_of_rows, (num_rows,), [out, scratch.largest, scratch.index, output_tiles, width], {})


def _check(x: torch.Tensor, weight: torch.Tensor, tiling: Tiling | None) -> Tiling:
    assert weight.shape[1] == x.shape[1]
    assert weight.is_contiguous()
    assert weight.dtype == x.dtype
    assert x.dtype in TRITON_DTYPES
    assert x.stride(1) == 1
    return tiling_of(x, weight) if tiling is None else tiling


@kernel("num_rows")
def multiply_into_logits(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    soft_cap: tl.tensor,
    num_rows: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
) -> None:
    """One program for each tile."""
    row_tile, output_tile = place_of(tl.program_id(0), num_rows, NUM_OUTPUTS, ROWS, OUTPUTS)
    y = product(
        x,
        weight,
        row_tile,
        output_tile,
        num_rows,
        x_stride,
        INPUTS,
        NUM_OUTPUTS,
        ROWS,
        OUTPUTS,
        BLOCK_K,
        WEIGHTS_FIRST,
    )
    if soft_cap is not None:
        y = capped(y, soft_cap)
    row, output = indices(row_tile, output_tile, ROWS, OUTPUTS, WEIGHTS_FIRST)
    mask = (row < num_rows) & (output < NUM_OUTPUTS)
    tl.store(out + row.to(tl.int64) * out_stride + output, y, mask=mask)


@kernel("num_rows", "scratch_stride")
def find_largest_of_tiles(
    largest: tl.tensor,
    index: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    soft_cap: tl.tensor,
    num_rows: tl.tensor,
    scratch_stride: tl.tensor,
    x_stride: tl.tensor,
    INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
) -> None:
    """One program for each tile."""
    row_tile, output_tile = place_of(tl.program_id(0), num_rows, NUM_OUTPUTS, ROWS, OUTPUTS)
    y = product(
        x,
        weight,
        row_tile,
        output_tile,
        num_rows,
        x_stride,
        INPUTS,
        NUM_OUTPUTS,
        ROWS,
        OUTPUTS,
        BLOCK_K,
        WEIGHTS_FIRST,
    )
    if soft_cap is not None:
        y = capped(y, soft_cap)
    row, output = indices(row_tile, output_tile, ROWS, OUTPUTS, WEIGHTS_FIRST)
    y = tl.where(y != y, _INFINITY, y)  # maxima ignore NaN, and its row has no argmax either
    y = tl.where(output < NUM_OUTPUTS, y, -_INFINITY)
    axis: tl.constexpr = 0 if WEIGHTS_FIRST else 1
    top = tl.max(y, axis, keep_dims=True)
    first = tl.min(tl.where(y == top, output, NUM_OUTPUTS), axis, keep_dims=True)
    at = output_tile.to(tl.int64) * scratch_stride + row
    tl.store(largest + at, top, mask=row < num_rows)
    tl.store(index + at, first, mask=row < num_rows)


@kernel("num_tiles", "scratch_stride")
def find_largest_of_rows(
    out: tl.tensor, largest: tl.tensor, index: tl.tensor, num_tiles: tl.tensor, scratch_stride: tl.tensor
) -> None:
    """One program for each row."""
    row = tl.program_id(0)
    best = tl.full([_TILES_AT_ONCE], float("-inf"), tl.float32)
    where = tl.full([_TILES_AT_ONCE], -1, tl.int32)
    for start in range(0, num_tiles, _TILES_AT_ONCE):
        tile = start + tl.arange(0, _TILES_AT_ONCE)
        at = tile.to(tl.int64) * scratch_stride + row
        tops = tl.load(largest + at, mask=tile < num_tiles, other=float("-inf"))
        firsts = tl.load(index + at, mask=tile < num_tiles, other=-1)
        is_above = tops > best  # among equals the earlier tile wins: its indices are lower
        best, where = tl.where(is_above, tops, best), tl.where(is_above, firsts, where)
    top = tl.max(best, 0)
    lowest = tl.min(tl.where(best == top, where, 0x7FFFFFFF), 0)
    is_number = (top > -_INFINITY) & (top < _INFINITY)
    tl.store(out + row, tl.where(is_number, lowest, -1))
