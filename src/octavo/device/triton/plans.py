"""Kernels that write a plan's changes to the device's arrays before a step, and its tokens after it."""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.triton.launch import kernel, launch

_BLOCK = 256


def write_plan(
    state: torch.Tensor,
    indices: torch.Tensor,
    values: torch.Tensor,
    place: torch.Tensor | None = None,
    arrays: torch.Tensor | None = None,
) -> None:
    """state.view(-1)[indices[i]] = values[i] for indices and values (n,), and place = arrays (m,).

    All are int32, and contiguous; the indices must differ from one another: programs have no order.
    """
    for vector in (state, indices, values, place, arrays):
        assert vector is None or (vector.dtype == torch.int32 and vector.is_contiguous())
    assert indices.shape == values.shape
    assert indices.dim() == 1
    assert (place is None) == (arrays is None)
    assert place is None or arrays is None or place.shape == arrays.shape
    num_values, num_ints = indices.shape[0], 0 if arrays is None else arrays.shape[0]
    launch(
        write_changes,
        (-(-max(num_values, num_ints) // _BLOCK),),
        [state, indices, values, place, arrays, num_values, num_ints],
        {"BLOCK": _BLOCK},
    )


def append_tokens(
    tokens: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, appended: torch.Tensor
) -> None:
    """tokens[rows[i], positions[i]] = appended[i]; skips positions beyond the context, and negative tokens.

    tokens: (rows, context) int32; the others: (S,) int64. All are contiguous.
    """
    assert tokens.is_contiguous()
    assert tokens.dtype == torch.int32
    for vector in (rows, positions, appended):
        assert vector.shape == rows.shape
        assert vector.dtype == torch.int64
        assert vector.is_contiguous()
    launch(
        write_tokens,
        (-(-rows.shape[0] // _BLOCK),),
        [tokens, rows, positions, appended, rows.shape[0], tokens.shape[1]],
        {"BLOCK": _BLOCK},
    )


@kernel("num_values", "num_ints")
def write_changes(
    state: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    place: tl.tensor,
    arrays: tl.tensor,
    num_values: tl.tensor,
    num_ints: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each block of values, and of the arrays."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entry < num_values
    index = tl.load(indices + entry, mask=mask, other=0)
    tl.store(state + index, tl.load(values + entry, mask=mask, other=0), mask=mask)
    if place is not None:
        mask = entry < num_ints
        tl.store(place + entry, tl.load(arrays + entry, mask=mask, other=0), mask=mask)


@kernel("num_tokens")
def write_tokens(
    tokens: tl.tensor,
    rows: tl.tensor,
    positions: tl.tensor,
    appended: tl.tensor,
    num_tokens: tl.tensor,
    context_length: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each block of tokens."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < num_tokens
    position = tl.load(positions + entry, mask=inside, other=0)
    token = tl.load(appended + entry, mask=inside, other=-1)
    row = tl.load(rows + entry, mask=inside, other=0)
    kept = inside & (token >= 0) & (position < context_length)
    tl.store(tokens + row * context_length + position, token.to(tl.int32), mask=kept)
