"""Sampling on a device, in torch: greedy, temperature, top-k, top-p, min-p and logprobs. On a GPU
`compiled.py` does the same by kernels.

The same as `sampling/sampler.py` for rows without masks, beams or grammars: the same penalties and noise, the
same order of filters, ties to the lowest id. Probabilities are summed as integers (units of 2^-40), so the
order of adding does not matter, and a row's bits do not depend on its neighbours.

    scores = (logits - largest) / temperature -> top-k -> top-p -> min-p -> + Gumbel noise -> argmax

Penalties and biases are those of `sampling/penalties.py`, bit for bit. The loop is over tokens of the rows,
not over the vocabulary: the new logit of each earlier token is computed from the old one, so a token that
occurs several times is written several times with the same value. S rows of logits, V tokens of the
vocabulary, L tokens of the longest row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from octavo.device.rows import (
    BIASES,
    CHOICE,
    FREQUENCY,
    NUM_BIASES,
    NUM_PROMPT,
    PRESENCE,
    REPETITION,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    DeviceRows,
)
from octavo.params import LOGIT_BIAS_MAX, SamplerParams
from octavo.sampling.filters import filters

_TEMPERATURE_MIN = 1e-5  # as in sampling/sampler.py
_UNIT_BITS = 40
_ROWS_AT_ONCE = 64  # bounds the float64 temporaries of a large vocabulary
_LOW = 0xFFFF_FFFF
_PHILOX = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ATANH_TERMS = [1.0 / n for n in range(21, 1, -2)]
_LOG2_E = 1.0 / math.log(2.0)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # so few bits that its multiples are exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_TERMS = [1.0 / math.factorial(n) for n in range(13, -1, -1)]
_EXP_LEAST, _EXP_MOST = -110.0, 100.0  # beyond float32 on either side


@dataclass(frozen=True, slots=True)
class DrawParams:
    """Sampling parameters of S rows: float32, float64 and int64 tensors (S,). Temperature 0 is greedy."""

    temperature: Tensor
    top_p: Tensor  # float64, as on the host
    min_p: Tensor
    top_k: Tensor  # 0: all
    seed_low: Tensor  # 32 bits each
    seed_high: Tensor
    choice: Tensor

    def part(self, rows: slice) -> DrawParams:
        """The parameters of some of the rows."""
        return DrawParams(*(getattr(self, field.name)[rows] for field in fields(self)))


class TorchSampler:
    """A `RowSampler` over the device's rows."""

    def __init__(self, rows: DeviceRows) -> None:
        self._rows = rows

    def append(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Write tokens to `positions` of rows."""
        kept = (positions < self._rows.context_length) & (tokens >= 0)
        self._rows.tokens[rows[kept], positions[kept]] = tokens[kept].to(torch.int32)

    def penalise(self, logits: Tensor, rows: Tensor, positions: Tensor, longest: int) -> None:
        """Apply these rows' penalties to logits."""
        history = self._rows.tokens[:, :longest][rows].to(torch.int64)
        penalise(logits, self._rows.adjusted[rows], history, positions)

    def add_biases(self, logits: Tensor, rows: Tensor, most: int) -> None:
        """Add these rows' biases to logits."""
        add_biases(logits, self._rows.adjusted[rows], most)

    def draw_greedily(self, logits: Tensor) -> Tensor:
        """The likeliest tokens."""
        return greedy_tokens(logits)

    def draw(self, logits: Tensor, rows: Tensor, positions: Tensor, *, is_filtered: bool) -> Tensor:
        """Draw one token for each row."""
        return draw(logits, params_of(self._rows.drawn[rows]), positions, is_filtered=is_filtered)

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Logprobs of each row's token, and of the likeliest."""
        return logprobs(logits, tokens, top)


def params_of(drawn: Tensor) -> DrawParams:
    """The parameters in rows (S, 9) int32, in the layout of `DeviceRows`."""
    bits = drawn[:, TOP_P:TOP_K].clone(memory_format=torch.contiguous_format)  # aligned for float64
    floats, wide = bits.view(torch.float64), drawn.to(torch.int64)
    return DrawParams(
        drawn[:, TEMPERATURE].clone().view(torch.float32),
        floats[:, 0],
        floats[:, 1],
        wide[:, TOP_K],
        wide[:, SEED] & _LOW,
        wide[:, SEED + 1] & _LOW,
        wide[:, CHOICE],
    )


def is_drawn_on_device(params: SamplerParams, is_constrained: bool) -> bool:
    """Whether a row never needs the host's sampler, from its first token on. It depends only on the request:
    the host's sampler rounds differently in places, so no request may use both."""
    is_search = params.beams is not None or params.pooling is not None
    return not is_search and not is_constrained and is_adjusted_on_device(params)


def has_filters(params: SamplerParams) -> bool:
    """Whether the request has filters, so that its row must be sorted."""
    return not params.greedy and filters(params)


def draw(logits: Tensor, params: DrawParams, positions: Tensor, *, is_filtered: bool) -> Tensor:
    """One token (S,) int64 for each row of logits (S, V) float32, for `positions` (S,): the number of tokens
    before it. -1 for a row that holds NaN or +inf, or nothing but -inf."""
    if logits.shape[0] > _ROWS_AT_ONCE:
        firsts = range(0, logits.shape[0], _ROWS_AT_ONCE)
        parts = [slice(first, first + _ROWS_AT_ONCE) for first in firsts]
        drawn = [draw(logits[p], params.part(p), positions[p], is_filtered=is_filtered) for p in parts]
        return torch.cat(drawn)
    best = logits.amax(dim=-1, keepdim=True)
    greedy = logits.argmax(dim=-1)
    scores = (logits - best) / params.temperature.clamp(min=_TEMPERATURE_MIN)[:, None]
    if is_filtered:
        scores = torch.where(kept_by_sort(scores, params), scores, -torch.inf)
    noisy = scores + gumbel_noise(params, positions, logits.shape[1])
    tokens = torch.where(params.temperature == 0.0, greedy, noisy.argmax(dim=-1))
    return torch.where(torch.isfinite(best[:, 0]), tokens, -1)


def greedy_tokens(logits: Tensor) -> Tensor:
    """The likeliest token (S,) int64 of each row, -1 as in `draw`."""
    is_sound = torch.isfinite(logits.amax(dim=-1))
    return torch.where(is_sound, logits.argmax(dim=-1), -1)


def logprobs(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The logprob (S,) of each row's token, and ids and logprobs (S, top) of the `top` likeliest, float32,
    the lowest id first among equals."""
    if logits.shape[0] > _ROWS_AT_ONCE:
        parts = zip(logits.split(_ROWS_AT_ONCE), tokens.split(_ROWS_AT_ONCE), strict=True)
        own, ids, values = zip(*(logprobs(rows, chosen, top) for rows, chosen in parts), strict=True)
        return torch.cat(own), torch.cat(ids), torch.cat(values)
    best = logits.amax(dim=-1, keepdim=True)
    units = torch.round(exp((logits - best).to(torch.float64)) * 2.0**_UNIT_BITS).to(torch.int64)
    total = units.sum(dim=-1, keepdim=True).to(torch.float64) * 2.0**-_UNIT_BITS
    normaliser = (best.to(torch.float64) + logarithm(total)).to(torch.float32)
    chosen = logits.gather(1, tokens.clamp(min=0)[:, None]) - normaliser
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :top]
    return chosen[:, 0], order, logits.gather(1, order) - normaliser


def gumbel_noise(params: DrawParams, positions: Tensor, size: int) -> Tensor:
    """(S, V) float32: the host's own, bit for bit. Four tokens share a counter of Philox 4x32 with 10 rounds
    (Salmon et al. 2011); the noise is -log(-log(u)), u of 24 bits."""
    device = positions.device
    counters = -(-size // 4)
    words = [
        torch.arange(counters, dtype=torch.int64, device=device)[None, :].expand(positions.shape[0], -1),
        positions.to(torch.int64)[:, None].expand(-1, counters),
        params.choice[:, None].expand(-1, counters),
        torch.zeros((1, 1), dtype=torch.int64, device=device).expand(positions.shape[0], counters),
    ]
    key = [params.seed_low[:, None], params.seed_high[:, None]]
    for _ in range(10):
        first, second = _product(_PHILOX[0], words[0]), _product(_PHILOX[1], words[2])
        words = [
            second.high ^ words[1] ^ key[0],
            second.low,
            first.high ^ words[3] ^ key[1],
            first.low,
        ]
        key = [(word + step) & _LOW for word, step in zip(key, _WEYL, strict=True)]
    bits = torch.stack(words, dim=-1).flatten(1)[:, :size]
    u = ((bits >> 8).to(torch.float64) + 0.5) * 2.0**-24
    return (-logarithm(-logarithm(u))).to(torch.float32)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of two numbers of 32 bits, in two halves."""

    high: Tensor
    low: Tensor


def _product(factor: int, x: Tensor) -> _Product:
    """Without the 64th bit, which int64 keeps for the sign: by halves of 16 bits."""
    upper, lower = factor >> 16, factor & 0xFFFF
    low_part = x * lower  # 48 bits
    high_part = x * upper + (low_part >> 16)
    return _Product(high_part >> 16, ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF))


def logarithm(x: Tensor) -> Tensor:
    """Logarithm of positive normal float64, op by op as in csrc/kernels/functions.hpp: the same bits."""
    bits = x.view(torch.int64)
    e = ((bits >> 52) - 1023).to(torch.float64)
    m = ((bits & 0x000F_FFFF_FFFF_FFFF) | 0x3FF0_0000_0000_0000).view(torch.float64)
    is_upper = m > 1.4142135623730951
    m = torch.where(is_upper, 0.5 * m, m)
    e = torch.where(is_upper, e + 1.0, e)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = torch.full_like(z, _ATANH_TERMS[0])
    for term in _ATANH_TERMS[1:]:
        p = p * z + term
    tail = 2.0 * s * z * p + e * 1.9082149292705877e-10
    return e * 0.69314718036912382 + (2.0 * s + tail)


def kept_by_sort(scores: Tensor, params: DrawParams) -> Tensor:
    """(S, V) bool: what top-k, then top-p, then min-p keep. `triton/cuts.py` finds it without a sort."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[1], device=scores.device)[None, :]
    top_k = torch.where(params.top_k > 0, params.top_k, scores.shape[1])[:, None]
    kept = rank < top_k
    chances = exp(order.values.to(torch.float64))
    units = torch.where(kept, torch.round(chances * 2.0**_UNIT_BITS).to(torch.int64), 0)
    reached = units.cumsum(dim=-1)
    target = params.top_p[:, None] * reached[:, -1:].to(torch.float64)
    before = (reached - units).to(torch.float64)
    kept &= (params.top_p[:, None] >= 1.0) | (before < target)  # the token that crosses is kept
    kept &= chances >= params.min_p[:, None]
    return torch.zeros_like(kept).scatter(1, order.indices, kept)


def exp(x: Tensor) -> Tensor:
    """float64 in the range of float32: 0 below it, infinity above it. Written in IEEE's operations, because a
    vector library rounds the body of an array and its tail differently."""
    inside = x.clamp(_EXP_LEAST, _EXP_MOST)
    turns = torch.round(inside * _LOG2_E)
    rest = (inside - turns * _LN2_HIGH) - turns * _LN2_LOW
    value = torch.full_like(rest, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        value = value * rest + term
    exponent = torch.where(torch.isnan(turns), 0, turns).to(torch.int64)
    value = value * ((exponent + 1023) << 52).view(torch.float64)
    value = torch.where(x < _EXP_LEAST, 0.0, value)
    return torch.where(x > _EXP_MOST, math.inf, value)


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
    """Add biases to the logits; no row has more than `most`.

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
