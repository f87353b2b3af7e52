"""Penalties and bias on the device: what `sampling/penalties.py` does to a row of logits, bit for bit.

Tokens of the rows are looked at, and not the vocabulary: of each token before the one that is drawn the new
logit is computed from the old one, so a token that stands there several times gets the same several times.
S rows of logits, V tokens of the vocabulary, L tokens of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.params import SamplerParams


@dataclass(frozen=True, slots=True)
class Adjusting:
    """How S rows are adjusted: float32 and int64 tensors (S,); the first `num_biases` of biases (S, B)."""

    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    num_prompt: Tensor
    num_biases: Tensor
    biased: Tensor  # ids, int64
    biases: Tensor  # float32


def is_adjusted_on_device(params: SamplerParams) -> bool:
    """Whether nothing changes its logits, or only what can be changed here."""
    biased = {token for token, _ in params.logit_bias}
    return (
        params.min_tokens == 0
        and params.allowed_token_ids is None
        and not params.banned_sequences
        and len(biased) == len(params.logit_bias)
    )


def adjust(logits: Tensor, asked: Adjusting, history: Tensor, positions: Tensor) -> None:
    """Change logits (S, V) float32, drawn from for `positions` (S,): how many of the tokens `history` (S, L)
    stand before it."""
    _penalise(logits, asked, history.to(torch.int64), positions)
    if asked.biased.shape[1]:
        _add_bias(logits, asked)


def _penalise(logits: Tensor, asked: Adjusting, history: Tensor, positions: Tensor) -> None:
    place = torch.arange(history.shape[1], device=logits.device)[None, :]
    is_there = place < positions[:, None]
    tokens = torch.where(is_there, history, history[:, :1])
    is_output = is_there & (place >= asked.num_prompt[:, None])
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    counts = counts.scatter_add_(1, tokens, is_output.to(torch.int32)).gather(1, tokens)
    values, factor = logits.gather(1, tokens), asked.repetition[:, None]
    values = torch.where(values > 0, values / factor, values * factor)
    fall = asked.frequency[:, None] * counts.to(torch.float32) + asked.presence[:, None]
    logits.scatter_(1, tokens, values - torch.where(counts > 0, fall, 0.0))


def _add_bias(logits: Tensor, asked: Adjusting) -> None:
    """Beyond a row's own biases its first one stands again, and gives the same; where it has none, minus zero
    changes nothing."""
    place = torch.arange(asked.biased.shape[1], device=logits.device)[None, :]
    count = asked.num_biases[:, None]
    first = torch.where(count > 0, asked.biased[:, :1], 0)
    tokens = torch.where(place < count, asked.biased, first)
    value = torch.where(count > 0, asked.biases[:, :1], -0.0)
    values = torch.where(place < count, asked.biases, value)
    logits.scatter_(1, tokens, logits.gather(1, tokens) + values)
