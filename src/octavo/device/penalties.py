"""Penalties and bias on a device, spelled out in torch: what `sampling/penalties.py` does to a row of logits,
bit for bit. On a GPU `triton/penalties.py` does the same.

Tokens of the rows are looked at, and not the vocabulary: of each token before the one that is drawn the new
logit is computed from the old one, so a token that stands there several times gets the same several times.
S rows of logits, V tokens of the vocabulary, L tokens of the longest row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.rows import BIASES, FREQUENCY, NUM_BIASES, NUM_PROMPT, PRESENCE, REPETITION
from octavo.params import LOGIT_BIAS_MAX, SamplerParams


def is_adjusted_on_device(params: SamplerParams) -> bool:
    """Whether nothing changes its logits, or only what can be changed here."""
    biased = {token for token, _ in params.logit_bias}
    return (
        params.min_tokens == 0
        and params.allowed_token_ids is None
        and not params.banned_sequences
        and len(biased) == len(params.logit_bias)
    )


def penalise(logits: Tensor, adjusted: Tensor, history: Tensor, positions: Tensor) -> None:
    """Change logits (S, V) float32, drawn from for `positions` (S,): how many of the tokens `history` (S, L)
    int64 stand before; adjusted (S, ...) int32 as `DeviceRows` has it."""
    floats = adjusted.view(torch.float32)
    place = torch.arange(history.shape[1], device=logits.device)[None, :]
    is_there = place < positions[:, None]
    tokens = torch.where(is_there, history, history[:, :1])
    is_output = is_there & (place >= adjusted[:, NUM_PROMPT, None])
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    counts = counts.scatter_add_(1, tokens, is_output.to(torch.int32)).gather(1, tokens)
    values, factor = logits.gather(1, tokens), floats[:, REPETITION, None]
    values = torch.where(values > 0, values / factor, values * factor)
    fall = floats[:, FREQUENCY, None] * counts.to(torch.float32) + floats[:, PRESENCE, None]
    logits.scatter_(1, tokens, values - torch.where(counts > 0, fall, 0.0))


def add_biases(logits: Tensor, adjusted: Tensor, most: int) -> None:
    """The same for biases, of which no row has more than `most`.

    Beyond a row's own biases its first one stands again, and gives the same; where it has none, minus zero
    changes nothing."""
    place = torch.arange(most, device=logits.device)[None, :]
    count = adjusted[:, NUM_BIASES, None]
    biased = adjusted[:, BIASES : BIASES + most].to(torch.int64)
    first_value = BIASES + LOGIT_BIAS_MAX
    biases = adjusted[:, first_value : first_value + most].clone().view(torch.float32)
    first = torch.where(count > 0, biased[:, :1], 0)
    tokens = torch.where(place < count, biased, first)
    value = torch.where(count > 0, biases[:, :1], -0.0)
    values = torch.where(place < count, biases, value)
    logits.scatter_(1, tokens, logits.gather(1, tokens) + values)
