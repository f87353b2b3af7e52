"""Products of activations with weight matrices.

An element y[t, n] is one chain: products of x[t, k] and w[n, k] are added to the accumulator in order of k,
by the tensor core's steps of sixteen; no program sums a part of k. So neither the tile that an element falls
into nor the number of inputs loaded at a time changes its bits, and tiles are free to follow the rows:

    few rows    weights are the product's M side (64 outputs or more, wgmma's least); 16, 32 or 64 rows are
                its N side. Rows beyond the last are zeros: their memory is not read. (With the last row read
                instead, one row took up to two and a half times as long as sixteen: all multiprocessors read
                the same cache lines.)
    more        rows on M. Rows beyond the last repeat the first ones: a mask, though full tiles need none,
                cost 4 to 8 % of most products of 256 rows.

Outputs beyond the last are zeros. Gate and up are one product with interleaved weights (gate 0, up 0, gate 1,
...): each program has both numbers of its outputs, and writes the gated result.

T rows, K inputs, N outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton.language as tl

from octavo.device.triton.arithmetic import ACTIVATIONS, activated
from octavo.device.triton.launch import TRITON_DTYPES, Constant, jit, kernel, launch

# The number of row tiles that neighbouring programs share, so that L2 holds their weights.
_GROUP = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiling of a product. Shapes choose it (`tiling_for`); the device bounds its stages."""

    rows: int
    outputs: int
    weights_first: bool  # weights on the product's M side
    num_warps: int
    num_stages: int
    block_k: int = 64  # inputs that are loaded at a time

    def num_tiles(self, num_rows: int, num_outputs: int) -> tuple[int, int]:
        """Tiles of rows, tiles of outputs."""
        return -(-num_rows // self.rows), -(-num_outputs // self.outputs)

    def within(self, shared_bytes: int, bytes_per_number: int) -> Tiling:
        """This tiling with no more stages than fit into shared memory. Float32, whose products are no tensor
        core's and hold inputs in registers, has 64 of them at a time."""
        block_k = min(self.block_k, 64) if bytes_per_number > 2 else self.block_k
        bytes_per_stage = (self.rows + self.outputs) * block_k * bytes_per_number
        stages = max(1, min(self.num_stages, shared_bytes // bytes_per_stage))
        return replace(self, num_stages=stages, block_k=block_k)

    @property
    def constants(self) -> dict[str, Constant]:
        """The constants that kernels take."""
        return {
            "ROWS": self.rows,
            "OUTPUTS": self.outputs,
            "BLOCK_K": self.block_k,
            "WEIGHTS_FIRST": self.weights_first,
        }


# From sweeps of 26 November 2026 (H200, Triton 3.6, bf16; one product at a time, not in a step; docs/gpu.md)
# over 1, 16, 32, 64 and 256 rows, 1024 to 6144, 28672 and 128256 or more outputs, 1024 to 14336 inputs.
#
# Few programs. With 2048 inputs or more each loads some 55 to 80 GB/s whatever its tile, so the smallest tile
# whose programs all run at once is fastest. With one on each multiprocessor (an H200 has 132) it was so, or
# within 5 %, in every product swept; from 65 to 255 rows, and with 1024 outputs at 256, it is reasoning.
_PROGRAMS_AT_ONCE = 128
_FEW_OUTPUTS, _FEW_ROWS = 8192, 256  # up to these the last tile suffices
_SMALLEST_FIRST = (
    Tiling(16, 64, True, 4, 6, 128),
    Tiling(32, 64, True, 4, 6, 128),
    Tiling(64, 64, True, 4, 6, 128),
    Tiling(64, 128, True, 8, 4, 64),
    Tiling(128, 128, False, 8, 4, 64),
)
# Others, mostly of more programs, two or more on a multiprocessor: a tile by rows. The fastest in the sweeps,
# or within 3 % of it; beyond 256 rows nothing was measured.
_MANY_PROGRAMS = (
    Tiling(16, 64, True, 4, 4, 128),
    Tiling(32, 64, True, 4, 4, 128),
    Tiling(64, 128, True, 8, 4, 64),
    Tiling(128, 128, False, 8, 3, 64),
)


def tiling_for(num_rows: int, num_outputs: int, num_inputs: int) -> Tiling:
    """The tiles of a product, for a device with memory for all stages."""
    if num_rows <= _FEW_ROWS and num_outputs <= _FEW_OUTPUTS:
        fitting = (
            each
            for each in _SMALLEST_FIRST
            if math.prod(each.num_tiles(num_rows, num_outputs)) <= _PROGRAMS_AT_ONCE
        )
        chosen = next(fitting)
    else:
        chosen = next((each for each in _MANY_PROGRAMS if num_rows <= each.rows), _MANY_PROGRAMS[-1])
    return chosen if num_inputs % chosen.block_k == 0 else replace(chosen, block_k=64)


def tiling_of(x: torch.Tensor, weight: torch.Tensor) -> Tiling:
    """The tiles of x (T, K) @ weight (N, K).T on its device."""
    chosen = tiling_for(x.shape[0], *weight.shape)
    return chosen.within(shared_bytes_of(weight.device), weight.element_size())


@cache
def shared_bytes_of(device: torch.device) -> int:
    """Shared memory of one program; in the interpreter that of a large device."""
    if device.type != "cuda":
        return 227 * 1024
    per_multiprocessor: int = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    return per_multiprocessor - 1024  # reserved for each program


def linear(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    tiling: Tiling | None = None,
) -> None:
    """out (T, N) = x (T, K) @ weight (N, K).T + bias (N,) + residual (T, N), summed in float32, rounded once.

    Rows of x, out and residual may be strided; out may be residual.
    """
    assert out.shape == (x.shape[0], weight.shape[0])
    assert residual is None or (residual.shape == out.shape and residual.stride(1) == 1)
    _multiply(out, x, weight, bias, residual, None, tiling)


def linear_gated(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    activation: str,
    bias: torch.Tensor | None = None,
    tiling: Tiling | None = None,
) -> None:
    """out (T, N / 2) = activation(gate) * up, both rounded before, of products with weights (N, K) and biases
    (N,) that are interleaved: gate 0, up 0, gate 1, ... The bits of two products and a gate.
    """
    assert out.shape == (x.shape[0], weight.shape[0] // 2)
    assert activation in ACTIVATIONS
    _multiply(out, x, weight, bias, None, activation, tiling)


def _multiply(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
    tiling: Tiling | None,
) -> None:
    (num_rows, num_inputs), num_outputs = x.shape, weight.shape[0]
    assert weight.shape[1] == num_inputs
    assert weight.is_contiguous()
    assert weight.dtype == x.dtype
    assert x.dtype in TRITON_DTYPES
    assert x.stride(1) == 1
    assert out.stride(1) == 1
    assert bias is None or bias.shape == (num_outputs,)
    chosen = tiling_of(x, weight) if tiling is None else tiling
    row_tiles, output_tiles = chosen.num_tiles(num_rows, num_outputs)
    launch(
        multiply,
        (row_tiles * output_tiles,),
        [
            *(out, x, weight, bias, residual, num_rows, out.stride(0), x.stride(0)),
            0 if residual is None else residual.stride(0),
        ],
        {"INPUTS": num_inputs, "NUM_OUTPUTS": num_outputs, "ACTIVATION": activation} | chosen.constants,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )


@kernel("num_rows")
def multiply(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    num_rows: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
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
    row, output = indices(row_tile, output_tile, ROWS, OUTPUTS, WEIGHTS_FIRST)
    mask = (row < num_rows) & (output < NUM_OUTPUTS)
    if bias is not None:
        y += tl.load(bias + output, mask=output < NUM_OUTPUTS, other=0.0).to(tl.float32)
    if residual is not None:
        at = row.to(tl.int64) * residual_stride + output
        y += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION is not None:
        gate, up = _pairs(y.to(out.dtype.element_ty).to(tl.float32), WEIGHTS_FIRST)
        y = activated(gate, ACTIVATION) * up
        row, output = indices(row_tile, output_tile, ROWS, OUTPUTS // 2, WEIGHTS_FIRST)
        mask = (row < num_rows) & (output < NUM_OUTPUTS // 2)
    tl.store(out + row.to(tl.int64) * out_stride + output, y.to(out.dtype.element_ty), mask=mask)


@jit
def _pairs(y: tl.tensor, WEIGHTS_FIRST: tl.constexpr) -> tl.tensor:
    """The outputs of a tile with even numbers, and those with odd ones."""
    if WEIGHTS_FIRST:
        pairs = tl.permute(tl.reshape(y, [y.shape[0] // 2, 2, y.shape[1]]), [0, 2, 1])
    else:
        pairs = tl.reshape(y, [y.shape[0], y.shape[1] // 2, 2])
    return tl.split(pairs)


@jit
def product(
    x: tl.tensor,
    weight: tl.tensor,
    row_tile: tl.tensor,
    output_tile: tl.tensor,
    num_rows: tl.tensor,
    x_stride: tl.tensor,
    INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
) -> tl.tensor:
    """A tile in float32: (OUTPUTS, ROWS) with weights first, (ROWS, OUTPUTS) otherwise.

    Rows and outputs beyond the last are not written.
    """
    row = row_tile * ROWS + tl.arange(0, ROWS)
    if not WEIGHTS_FIRST:
        row = row % num_rows
    output = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    inner = tl.arange(0, BLOCK_K)
    is_row, is_output = (row < num_rows)[:, None], (output < NUM_OUTPUTS)[:, None]
    x_at = x + row.to(tl.int64)[:, None] * x_stride + inner[None, :]
    weight_at = weight + output.to(tl.int64)[:, None] * INPUTS + inner[None, :]
    if WEIGHTS_FIRST:
        y = tl.zeros([OUTPUTS, ROWS], tl.float32)
    else:
        y = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        if INPUTS // BLOCK_K * BLOCK_K == INPUTS:  # constexpr has no reflected %
            if WEIGHTS_FIRST:
                x_tile = tl.load(x_at + start, mask=is_row, other=0.0)
            else:
                x_tile = tl.load(x_at + start)
            if NUM_OUTPUTS // OUTPUTS * OUTPUTS == NUM_OUTPUTS:
                weight_tile = tl.load(weight_at + start)
            else:
                weight_tile = tl.load(weight_at + start, mask=is_output, other=0.0)
        else:
            is_input = (start + inner < INPUTS)[None, :]
            x_tile = tl.load(x_at + start, mask=is_row & is_input, other=0.0)
            weight_tile = tl.load(weight_at + start, mask=is_output & is_input, other=0.0)
        if WEIGHTS_FIRST:
            y = tl.dot(weight_tile, tl.trans(x_tile), y, input_precision="ieee")
        else:
            y = tl.dot(x_tile, tl.trans(weight_tile), y, input_precision="ieee")
    return y


@jit
def indices(
    row_tile: tl.tensor,
    output_tile: tl.tensor,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
) -> tl.tensor:
    """The rows and outputs of a tile, which broadcast to its shape."""
    row = row_tile * ROWS + tl.arange(0, ROWS)
    output = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    if WEIGHTS_FIRST:
        row, output = row[None, :], output[:, None]
    else:
        row, output = row[:, None], output[None, :]
    return row, output


@jit
def place_of(
    program: tl.tensor,
    num_rows: tl.tensor,
    NUM_OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> tl.tensor:
    """A program's tile of rows and of outputs: all tiles of a group of rows, output after output."""
    row_tiles, output_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(NUM_OUTPUTS, OUTPUTS)
    group = program // (_GROUP * output_tiles)
    size = tl.minimum(row_tiles - group * _GROUP, _GROUP)
    inside = program % (_GROUP * output_tiles)
    return group * _GROUP + inside % size, inside // size
