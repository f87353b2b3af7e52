"""Samples tokens from logits. Stateless: a row's token depends only on its logits, parameters and history.

The order is penalties, bias and masks (`penalties.py`), temperature, top-k, top-p, min-p (`filters.py`), then
Gumbel-max: the argmax of log-probability plus Gumbel noise is a sample of the distribution (Gumbel 1954;
Maddison et al. 2014). The noise is a pure function of (seed, choice, position), so preemption, forks and
speculation do not change a sequence's samples. Greedy rows take the argmax, without noise and without
filters, which never remove the likeliest token.

Ties go to the lowest id, everywhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo import _native
from octavo.kernels.contract import Floats, Ints
from octavo.params import SamplerParams
from octavo.sampling.filters import filters, keep_ids
from octavo.sampling.guides import Guide
from octavo.sampling.logprobs import log_normalisers, with_logprob
from octavo.sampling.masks import Masks
from octavo.sampling.penalties import adjust, adjusts
from octavo.types import SampledToken

# For smaller temperatures the division would overflow; the distribution is already a point.
_TEMPERATURE_MIN = 1e-5
GRAMMAR_ENDED = "its grammar cannot go on: "
NO_NUMBERS = "the model made logits that are not numbers (NaN or infinity)"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """The inputs of sampling one row of logits; `history` is every token before it, prompt then output;
    `masks` are those of `params`."""

    params: SamplerParams
    masks: Masks | None
    seed: int
    choice: int
    num_prompt: int
    history: Ints
    guide: Guide | None = None  # only if it forbids tokens

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.history) - self.num_prompt


@dataclass(frozen=True, slots=True)
class SampleFailure:
    """A row that cannot be sampled; only its request fails. `is_poisoned`: because of the model's numbers,
    not because of the client's limits."""

    reason: str
    is_poisoned: bool


def is_plain(params: SamplerParams, num_output: int) -> bool:
    """True if an unconstrained row needs only the argmax of its raw logits; `num_output`: output tokens so
    far."""
    return (
        params.greedy and params.logprobs is None and params.beams is None and not adjusts(params, num_output)
    )


class Sampler:
    """Draws one token for each row of logits. `stop_ids` are the model's end-of-sequence tokens."""

    def __init__(self, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self._vocab_size = vocab_size
        self._stop_ids = stop_ids
        self.mask_seconds = 0.0  # total time of computing grammars' masks

    def sample(self, logits: Floats, rows: Sequence[SampleRow]) -> list[SampledToken | SampleFailure]:
        """One token, or the failure, for each row of `logits` (S, V), which is not changed."""
        assert logits.shape == (len(rows), self._vocab_size)
        if not rows:
            return []
        logits = np.ascontiguousarray(logits, np.float32)
        tokens = np.empty(len(rows), np.int32)
        _native.argmax(logits, tokens)  # all that plain greedy rows need, and cheap next to the others
        outcomes = [None if token >= 0 else SampleFailure(NO_NUMBERS, True) for token in tokens.tolist()]

        for index, row in enumerate(rows):
            is_greedy = row.params.greedy and row.guide is None
            if outcomes[index] is None and (not is_greedy or adjusts(row.params, row.num_output)):
                drawn = self._draw(logits[index], row)
                if isinstance(drawn, SampleFailure):
                    outcomes[index] = drawn
                else:
                    tokens[index] = drawn
        return _with_logprobs(logits, [self._num_top(row.params) for row in rows], tokens, outcomes)

    def _num_top(self, params: SamplerParams) -> int | None:
        """How many of the likeliest tokens a row reports; None: no logprobs."""
        if params.beams is None:
            return params.logprobs
        return params.beams.num_candidates(len(params.end_ids(self._stop_ids)))

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of the body as time of grammars' masks."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.mask_seconds += time.perf_counter() - started

    def _draw(self, raw: Floats, row: SampleRow) -> int | SampleFailure:
        """Sample one row (V,) that is not a plain argmax. A constrained row is first sampled without its
        guide: that token is final if it is allowed, because then no allowed token scores higher. Filters
        apply to allowed tokens only, so with filters the whole mask is computed first."""
        scores, params, guide = raw.copy(), row.params, row.guide
        if adjusts(params, row.num_output):
            adjust(scores, params, row.masks, row.history, row.num_prompt, self._stop_ids)
        if guide is None:
            return self._drawn(scores, row)
        if params.greedy or not filters(params):
            first = self._drawn(scores.copy(), row)
            with self.timed():
                is_allowed = isinstance(first, int) and guide.allows(first)
            if is_allowed:
                return first
        with self.timed():
            why_not = guide.mask(scores)
            if not why_not and scores.max() == -np.inf:
                # The client's own limits forbid all allowed tokens: the guide takes precedence.
                scores = raw.copy()
                adjust(
                    scores, replace(params, min_tokens=0), None, row.history, row.num_prompt, self._stop_ids
                )
                why_not = guide.mask(scores)
        return SampleFailure(GRAMMAR_ENDED + why_not, False) if why_not else self._drawn(scores, row)

    def _drawn(self, scores: Floats, row: SampleRow) -> int | SampleFailure:
        """The token for scores (V,), which are changed."""
        params, best = row.params, scores.max()
        if not np.isfinite(best):
            return SampleFailure(
                "no token is left to sample from: allowed_token_ids, banned_sequences (bad_words), "
                "logit_bias, penalties, min_tokens and the grammar together forbid all of them",
                False,
            )
        if params.greedy:
            return int(scores.argmax())

        # The greatest becomes 0 first, so that a small temperature maps the others to -inf and never to NaN.
        with np.errstate(over="ignore"):
            scores -= best
            scores /= np.float32(max(params.temperature, _TEMPERATURE_MIN))
        noise = gumbel_noise(row.seed, row.choice, row.history.shape[0], self._vocab_size)
        kept = keep_ids(scores, params)
        if kept is None:
            return int((scores + noise).argmax())
        return int(kept[(scores[kept] + noise[kept]).argmax()])


def gumbel_noise(seed: int, choice: int, position: int, size: int) -> Floats:
    """The (V,) noise of one token; a negative seed is its two's complement in 64 bits."""
    out = np.empty(size, np.float32)
    _native.gumbel(seed & 0xFFFF_FFFF_FFFF_FFFF, choice, position, out)
    return out


def _with_logprobs(
    logits: Floats, tops: Sequence[int | None], tokens: Ints, outcomes: list[SampleFailure | None]
) -> list[SampledToken | SampleFailure]:
    """Add logprobs to the outcomes; only for rows that request them."""
    asked = [i for i, top in enumerate(tops) if top is not None and outcomes[i] is None]
    subset = logits if len(asked) == len(tops) else logits[asked]
    normalisers = dict(zip(asked, log_normalisers(subset).tolist(), strict=True)) if asked else {}
    results: list[SampledToken | SampleFailure] = []
    for index, (top, failure) in enumerate(zip(tops, outcomes, strict=True)):
        if failure is not None:
            results.append(failure)
        elif top is None:
            results.append(SampledToken(int(tokens[index])))
        else:
            results.append(with_logprob(logits[index], normalisers[index], int(tokens[index]), top))
    return results
