"""Rows of an embedding table for the step's tokens. T tokens, E hidden size, V vocabulary."""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.triton.launch import TRITON_DTYPES, kernel, launch

_BLOCK = 1024


def embed(
    out: torch.Tensor,
    table: torch.Tensor,
    tokens: torch.Tensor,
    factor: float = 1.0,
    positions_table: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> None:
    """out (T, E) = table[tokens] * factor + positions_table[positions], in float32, rounded once.

    table (V, E), positions_table (context, E); tokens and positions (T,) int32 on the device. A negative
    token or position is padding, and reads row 0.
    """
    num_tokens, size = out.shape
    assert table.shape[1] == size
    assert table.is_contiguous()
    assert out.stride(1) == 1
    assert tokens.shape == (num_tokens,)
    assert tokens.dtype == torch.int32
    assert out.dtype in TRITON_DTYPES
    assert (positions_table is None) == (positions is None)
    assert positions_table is None or (positions_table.shape[1] == size and positions_table.is_contiguous())
    launch(
        gather_rows,
        (num_tokens, -(-size // _BLOCK)),
        [out, table, tokens, positions_table, positions, factor, out.stride(0)],
        {"SIZE": size, "BLOCK": _BLOCK},
    )


@kernel()
def gather_rows(
    out: tl.tensor,
    table: tl.tensor,
    tokens: tl.tensor,
    positions_table: tl.tensor,
    positions: tl.tensor,
    factor: tl.tensor,
    out_stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each token and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    token = tl.maximum(tl.load(tokens + row), 0).to(tl.int64)
    y = tl.load(table + token * SIZE + column, mask=mask, other=0.0).to(tl.float32) * factor
    if positions_table is not None:
        position = tl.maximum(tl.load(positions + row), 0).to(tl.int64)
        y += tl.load(positions_table + position * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=mask)
