"""Penalties and bias on a device, in torch: the same as `sampling/penalties.py`, bit for bit. On a GPU
`triton/penalties.py` does the same.

The loop is over tokens of the rows, not over the vocabulary: the new logit of each earlier token is computed
from the old one, so a token that occurs several times is written several times with the same value.
S rows of logits, V tokens of the vocabulary, L tokens of the longest row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.rows import BIASES, FREQUENCY, NUM_BIASES, NUM_PROMPT, PRESENCE, REPETITION
from octavo.params import LOGIT_BIAS_MAX, SamplerParams


def is_adjusted_on_device(params: SamplerParams) -> bool:
    """Whether nothing changes its logits, or only penalties that this module supports."""
    biased = {token for token, _ in params.logit_bias}
    return (
        params.min_tokens == 0
        and params.allowed_token_ids is None
        and not params.banned_sequences
        and len(biased) == len(params.logit_bias)
    )


def penalise(logits: Tensor, adjusted: Tensor, history: Tensor, positions: Tensor) -> None:
    """Change logits (S, V) float32, for `positions` (S,): the number of tokens of `history` (S, L) int64 that
    come before; adjusted (S, ...) int32 as in `DeviceRows`."""
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

    A row with fewer biases repeats its first one, which gives the same; in a row without biases, adding minus
    zero changes nothing."""
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
