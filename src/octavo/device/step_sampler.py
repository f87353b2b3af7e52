"""Sampling of a step's rows on the device, and the copy of their tokens to the host.

    greedy, no logprobs     the likeliest token alone; no logits are written
    the others              logits, which penalties and bias adjust, then a `RowSampler`

A chunk with drafts is sampled at all its positions at once: noise depends on the position alone, so a token
is the same as with one-token steps after the same tokens. Tokens after the first wrong draft stay in the row
until the next step overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.device.arithmetic import Arithmetic
from octavo.device.rows import to_device
from octavo.device.sampler import has_filters
from octavo.executor.draws import Draw, SamplingResult
from octavo.params import SamplerParams
from octavo.sampling.penalties import adjusts
from octavo.sampling.sampler import NO_NUMBERS, SampleFailure
from octavo.types import SampledToken


@dataclass(frozen=True, slots=True)
class _PendingDraws:
    """Draws of one kind, being copied to the host."""

    draws: Sequence[Draw]
    tokens: Tensor  # (S,) int64, on the host after the event
    logprobs: tuple[Tensor, Tensor, Tensor] | None


def start_draws(
    draws: Sequence[Draw],
    hidden: Tensor,
    arithmetic: Arithmetic,
    stop_ids: frozenset[int],
) -> Callable[[SamplingResult], None] | None:
    """Sample from the step's hidden rows (R, E) and start copying the tokens to the host. Returns a function
    that waits for them and adds them to a `SamplingResult`; None if there are no draws."""
    plain, others = list[Draw](), list[Draw]()
    for one in draws:
        (plain if _is_plain(one.params) else others).append(one)
    parts = [_begin(kind, hidden, arithmetic) for kind in (plain, others) if kind]
    if not parts:
        return None
    event = None
    if hidden.device.type == "cuda":
        event = torch.cuda.Event()
        event.record()

    def collect(taken: SamplingResult) -> None:
        if event is not None:
            event.synchronize()
        for part in parts:
            sampled, first = _sampled(part), 0
            for one in part.draws:
                if one.drafts or sampled[first].token < 0:
                    _take(one, sampled[first : first + one.count], stop_ids, taken)
                else:
                    taken.samples[one.seq_id] = (sampled[first],)
                first += 1 + len(one.drafts)

    return collect


def _is_plain(params: SamplerParams) -> bool:
    """Whether it needs only the likeliest token."""
    return params.greedy and params.logprobs is None and not adjusts(params, 0)


def _begin(draws: Sequence[Draw], hidden: Tensor, arithmetic: Arithmetic) -> _PendingDraws:
    columns = np.array([(one.first, one.row, one.position, one.count) for one in draws], np.int64).T
    counts = columns[3]
    places, rows, positions = np.repeat(columns[:3], counts, axis=1)
    later = np.arange(places.size) - np.repeat(np.cumsum(counts) - counts, counts)  # after its draw's first
    places, positions = places + later, positions + later
    place, row, position = to_device((places, rows, positions), hidden.device)
    is_all = np.array_equal(places, np.arange(hidden.shape[0]))
    chosen = hidden if is_all else hidden[place]
    tops = [one.params.logprobs for one in draws if one.params.logprobs is not None]
    found, sampler = None, arithmetic.sampler
    if _is_plain(draws[0].params):
        tokens = arithmetic.likeliest(chosen)
    else:
        logits = arithmetic.logits(chosen)
        adjusted = logits
        if any(adjusts(one.params, 0) for one in draws):
            adjusted = logits.clone() if tops else logits  # logprobs are those of the raw ones
            sampler.penalise(adjusted, row, position, int(positions.max()))
            most = max(len(one.params.logit_bias) for one in draws)
            if most:
                sampler.add_biases(adjusted, row, most)
        if all(one.params.greedy for one in draws):
            tokens = sampler.draw_greedily(adjusted)
        else:
            is_filtered = any(has_filters(one.params) for one in draws)
            tokens = sampler.draw(adjusted, row, position, is_filtered=is_filtered)
        if tops:
            found = sampler.logprobs(logits, tokens, max(tops))
    sampler.append(row, position, tokens)
    if found is not None:
        own, ids, values = map(_to_host, found)
        found = own, ids, values
    return _PendingDraws(draws, _to_host(tokens), found)


def _take(
    one: Draw, sampled: Sequence[SampledToken], stop_ids: frozenset[int], taken: SamplingResult
) -> None:
    """The draw's valid tokens."""
    kept: list[SampledToken] = []
    for place, token in enumerate(sampled):
        if token.token < 0:  # after a draft: the failure is reported once it is computed as the newest
            break
        kept.append(token)
        if not one.is_continued(place, token.token, stop_ids):
            break
    if kept:
        taken.samples[one.seq_id] = tuple(kept)
    else:
        taken.failed[one.seq_id] = SampleFailure(NO_NUMBERS, True)


def _to_host(x: Tensor) -> Tensor:
    """An asynchronous copy, complete after an event recorded behind it."""
    if x.device.type == "cpu":
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    return host


def _sampled(part: _PendingDraws) -> list[SampledToken]:
    """The part's tokens, each with its requested logprobs."""
    tokens: list[int] = part.tokens.tolist()
    if part.logprobs is None:
        return [SampledToken(token) for token in tokens]
    own, ids, values = (x.tolist() for x in part.logprobs)
    tops = [one.params.logprobs for one in part.draws for _ in range(one.count)]
    return [
        SampledToken(token)
        if top is None
        else SampledToken(token, own[i], tuple(zip(ids[i][:top], values[i][:top], strict=True)))
        for i, (token, top) in enumerate(zip(tokens, tops, strict=True))
    ]
