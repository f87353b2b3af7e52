"""Penalties and bias in few launches, with the bits of `device/sampler.py`, the version in torch.

    1. tokens       of each row: those before the sampled one, and their counts among the outputs
    2. vocabulary   the logit of each token that was seen
    3. biases       the logits of the tokens that have one

S rows of logits, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.rows import BIASES, FREQUENCY, NUM_BIASES, NUM_PROMPT, PRESENCE, REPETITION
from octavo.device.triton.launch import kernel, launch
from octavo.params import LOGIT_BIAS_MAX

_BLOCK = 1024
_SEEN = tl.constexpr(1 << 30)  # a flag next to the number of outputs
_REPETITION, _FREQUENCY = tl.constexpr(REPETITION), tl.constexpr(FREQUENCY)
_PRESENCE, _NUM_PROMPT = tl.constexpr(PRESENCE), tl.constexpr(NUM_PROMPT)
_NUM_BIASES, _BIASES = tl.constexpr(NUM_BIASES), tl.constexpr(BIASES)
_BIAS_VALUES = tl.constexpr(BIASES + LOGIT_BIAS_MAX)


def penalise(
    logits: torch.Tensor,
    adjusted: torch.Tensor,
    tokens: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    longest: int,
) -> None:
    """Apply penalties in rows (S,) int64 of `adjusted` (R, ...) int32 to logits (S, V) float32, for
    `positions` (S,) int64, the largest being `longest`: the number of tokens (R, context) int32 before."""
    _check(logits, adjusted, rows)
    assert tokens.is_contiguous()
    assert positions.is_contiguous()
    num_rows, size = logits.shape
    seen = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    strides = (adjusted.stride(0), size)
    launch(
        count_tokens,
        (num_rows, -(-longest // _BLOCK)),
        [seen, tokens, adjusted, rows, positions, tokens.stride(0), *strides],
        {"BLOCK": _BLOCK},
    )
    launch(
        penalise_seen,
        (num_rows, -(-size // _BLOCK)),
        [logits, seen, adjusted, rows, *strides],
        {"BLOCK": _BLOCK},
    )


def add_biases(logits: torch.Tensor, adjusted: torch.Tensor, rows: torch.Tensor, most: int) -> None:
    """Add the biases of rows (S,) int64 of `adjusted` to logits (S, V) float32: `most` of a row at most."""
    _check(logits, adjusted, rows)
    launch(
        add_row_biases,
        (logits.shape[0], -(-most // _BLOCK)),
        [logits, adjusted, rows, adjusted.stride(0), logits.shape[1]],
        {"BLOCK": _BLOCK},
    )


def _check(logits: torch.Tensor, adjusted: torch.Tensor, rows: torch.Tensor) -> None:
    assert logits.is_contiguous()
    assert logits.dtype == torch.float32
    assert adjusted.is_contiguous()
    assert adjusted.dtype == torch.int32
    assert rows.shape == logits.shape[:1]
    assert rows.dtype == torch.int64


@kernel("tokens_stride", "adjusted_stride")
def count_tokens(
    seen: tl.tensor,
    tokens: tl.tensor,
    adjusted: tl.tensor,
    rows: tl.tensor,
    positions: tl.tensor,
    tokens_stride: tl.tensor,
    adjusted_stride: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each row and block of its tokens."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(rows + row)
    inside = place < tl.load(positions + row)
    token = tl.load(tokens + own * tokens_stride + place, mask=inside, other=0)
    at = seen + row * size + token
    is_output = place >= tl.load(adjusted + own * adjusted_stride + _NUM_PROMPT)
    tl.atomic_or(at, tl.full([BLOCK], _SEEN, tl.int32), mask=inside)
    tl.atomic_add(at, tl.full([BLOCK], 1, tl.int32), mask=inside & is_output)


@kernel("adjusted_stride")
def penalise_seen(
    logits: tl.tensor,
    seen: tl.tensor,
    adjusted: tl.tensor,
    rows: tl.tensor,
    adjusted_stride: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each row and block of the vocabulary."""
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    asked = adjusted + tl.load(rows + row) * adjusted_stride
    factor = tl.load(asked + _REPETITION).to(tl.float32, bitcast=True)
    frequency = tl.load(asked + _FREQUENCY).to(tl.float32, bitcast=True)
    presence = tl.load(asked + _PRESENCE).to(tl.float32, bitcast=True)
    at = row * size + token
    counted = tl.load(seen + at, mask=token < size, other=0)
    count, is_seen = counted & (_SEEN - 1), counted >= _SEEN
    logit = tl.load(logits + at, mask=is_seen, other=0.0)
    value = tl.where(logit > 0, tl.div_rn(logit, factor + tl.zeros_like(logit)), logit * factor)
    fall = frequency * count.to(tl.float32) + presence
    tl.store(logits + at, value - tl.where(count > 0, fall, 0.0), mask=is_seen)


@kernel("adjusted_stride")
def add_row_biases(
    logits: tl.tensor,
    adjusted: tl.tensor,
    rows: tl.tensor,
    adjusted_stride: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program for each row and block of its biases, which are of different tokens."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    asked = adjusted + tl.load(rows + row) * adjusted_stride
    inside = place < tl.load(asked + _NUM_BIASES)
    token = tl.load(asked + _BIASES + place, mask=inside, other=0)
    value = tl.load(asked + _BIAS_VALUES + place, mask=inside, other=0).to(tl.float32, bitcast=True)
    at = logits + row * size + token
    tl.store(at, tl.load(at, mask=inside, other=0.0) + value, mask=inside)
