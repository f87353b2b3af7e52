"""Products of activations with weight matrices.

An element y[t, n] is one chain: products of x[t, k] and w[n, k] are added to the accumulator in order of k,
in blocks of `BLOCK_K`, by the tensor core's steps of sixteen; no program sums a part of k. So the tile that
an element falls into does not change its bits, and tiles are free to follow the number of rows:

    up to 16 rows   weights stand on the product's M side (its least there is 16 too, but wgmma's is 64, and
                    the rows fit its N side); tiles of few outputs, so that all multiprocessors read weights
    up to 64 rows   the same with 64 columns
    more            rows on M

T rows, K inputs, N outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from octavo.device.triton.launch import TRITON_DTYPES, Constant, jit, kernel, launch

BLOCK_K = tl.constexpr(64)
_GROUP = tl.constexpr(
    8
)  # neighbouring programs share this many tiles of rows, so that L2 holds their weights
_WIDE = 8192  # outputs from which tiles of 32 still keep every multiprocessor busy


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut. A pure function of shapes chooses it (`tiling_for`)."""

    rows: int
    outputs: int
    weights_first: bool  # weights on the product's M side
    num_warps: int
    num_stages: int

    def num_tiles(self, num_rows: int, num_outputs: int) -> tuple[int, int]:
        """Tiles of rows, tiles of outputs."""
        return -(-num_rows // self.rows), -(-num_outputs // self.outputs)

    @property
    def constants(self) -> dict[str, Constant]:
        """As kernels take them."""
        return {"ROWS": self.rows, "OUTPUTS": self.outputs, "WEIGHTS_FIRST": self.weights_first}


def tiling_for(num_rows: int, num_outputs: int) -> Tiling:
    """The tiles of a product of so many rows and outputs."""
    if num_rows <= 16:
        outputs = 16 if num_outputs < _WIDE else 32
        return Tiling(16, outputs, weights_first=True, num_warps=2 if outputs == 16 else 4, num_stages=6)
    if num_rows <= 64:
        return Tiling(64, 64, weights_first=True, num_warps=4, num_stages=4)
    return Tiling(128, 128, weights_first=False, num_warps=8, num_stages=3)


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
    (num_rows, num_inputs), num_outputs = x.shape, weight.shape[0]
    assert weight.shape[1] == num_inputs
    assert weight.is_contiguous()
    assert weight.dtype == x.dtype
    assert out.shape == (num_rows, num_outputs)
    assert x.dtype in TRITON_DTYPES
    assert x.stride(1) == 1
    assert out.stride(1) == 1
    assert bias is None or bias.shape == (num_outputs,)
    assert residual is None or (residual.shape == out.shape and residual.stride(1) == 1)
    chosen = tiling_for(num_rows, num_outputs) if tiling is None else tiling
    row_tiles, output_tiles = chosen.num_tiles(num_rows, num_outputs)
    launch(
        multiply,
        (row_tiles * output_tiles,),
        [
            *(out, x, weight, bias, residual, num_rows, out.stride(0), x.stride(0)),
            0 if residual is None else residual.stride(0),
        ],
        {"INPUTS": num_inputs, "NUM_OUTPUTS": num_outputs} | chosen.constants,
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
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
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
        WEIGHTS_FIRST,
    )
    row, output = indices(row_tile, output_tile, ROWS, OUTPUTS, WEIGHTS_FIRST)
    mask = (row < num_rows) & (output < NUM_OUTPUTS)
    if bias is not None:
        y += tl.load(bias + output, mask=output < NUM_OUTPUTS, other=0.0).to(tl.float32)
    if residual is not None:
        at = row.to(tl.int64) * residual_stride + output
        y += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * out_stride + output, y.to(out.dtype.element_ty), mask=mask)


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
    WEIGHTS_FIRST: tl.constexpr,
) -> tl.tensor:
    """A tile in float32: (OUTPUTS, ROWS) with weights first, (ROWS, OUTPUTS) otherwise.

    Rows and outputs beyond the last read the last one's numbers, and are not written.
    """
    row = tl.minimum(row_tile * ROWS + tl.arange(0, ROWS), num_rows - 1).to(tl.int64)
    output = tl.minimum(output_tile * OUTPUTS + tl.arange(0, OUTPUTS), NUM_OUTPUTS - 1).to(tl.int64)
    inner = tl.arange(0, BLOCK_K)
    x_at = x + row[:, None] * x_stride + inner[None, :]
    weight_at = weight + output[:, None] * INPUTS + inner[None, :]
    if WEIGHTS_FIRST:
        y = tl.zeros([OUTPUTS, ROWS], tl.float32)
    else:
        y = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        if INPUTS // BLOCK_K * BLOCK_K == INPUTS:  # constexpr has no reflected %
            x_tile, weight_tile = tl.load(x_at + start), tl.load(weight_at + start)
        else:
            mask = (start + inner < INPUTS)[None, :]
            x_tile = tl.load(x_at + start, mask=mask, other=0.0)
            weight_tile = tl.load(weight_at + start, mask=mask, other=0.0)
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
