"""Rows of an embedding table for the step's tokens. T tokens, E hidden size, V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from octavo.device.triton.launch import TRITON_DTYPES, kernel, launch

_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """The places of a step's tokens, int32: token t is tokens[table_rows[chunks[t]], positions[t]]. A token
    at position -1 is padding."""

    tokens: torch.Tensor  # (rows, context)
    table_rows: torch.Tensor  # (C,)
    chunks: torch.Tensor  # (T,)
    positions: torch.Tensor  # (T,)


def embed(
    out: torch.Tensor,
    table: torch.Tensor,
    step: TokenPlaces,
    factor: float = 1.0,
    positions_table: torch.Tensor | None = None,
) -> None:
    """out (T, E) = table[tokens] * factor + positions_table[positions], in float32, rounded once.

    table (V, E), positions_table (context, E). Padding becomes zeros.
    """
    num_tokens, size = out.shape
    assert table.shape[1] == size
    assert table.is_contiguous()
    assert out.stride(1) == 1
    assert step.chunks.shape == step.positions.shape == (num_tokens,)
    assert step.tokens.stride(1) == 1
    for vector in (step.tokens, step.table_rows, step.chunks, step.positions):
        assert vector.dtype == torch.int32
    assert out.dtype in TRITON_DTYPES
    assert positions_table is None or (positions_table.shape[1] == size and positions_table.is_contiguous())
    launch(
        gather_rows,
        (num_tokens, -(-size // _BLOCK)),
        [
            *(out, table, step.tokens, step.table_rows, step.chunks, step.positions, positions_table),
            *(factor, out.stride(0), step.tokens.stride(0)),
        ],
        {"SIZE": size, "BLOCK": _BLOCK},
    )


@kernel()
def gather_rows(
    out: tl.tensor,
    table: tl.tensor,
    tokens: tl.tensor,
    table_rows: tl.tensor,
    chunks: tl.tensor,
    positions: tl.tensor,
    positions_table: tl.tensor,
    factor: tl.tensor,
    out_stride: tl.tensor,
    tokens_stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each token and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(positions + row).to(tl.int64)
    position = tl.maximum(own, 0)
    table_row = tl.load(table_rows + tl.load(chunks + row)).to(tl.int64)
    token = tl.load(tokens + table_row * tokens_stride + position).to(tl.int64)
    mask = column < SIZE
    y = tl.load(table + token * SIZE + column, mask=mask, other=0.0).to(tl.float32) * factor
    if positions_table is not None:
        y += tl.load(positions_table + position * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    y = tl.where(own < 0, 0.0, y)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=mask)
