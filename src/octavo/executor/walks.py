"""From hidden rows to the tokens of a step: each draw samples its hidden rows in order (a walk).

A token depends on those before it (penalties, noise, grammars), so a walk samples one position after another,
with the history that one-token steps would have had. It ends at the first token that the draft did not guess,
at a token that ends the output, or before one that cannot be sampled. All positions' logits are computed at
once; if the argmax is all that a row needs, no logits are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.executor.draws import Draw, SamplingResult
from octavo.executor.forward import Forward
from octavo.executor.rows import Row, Rows
from octavo.kernels.contract import Floats
from octavo.sampling.sampler import GRAMMAR_ENDED, SampleFailure, Sampler, SampleRow
from octavo.types import SampledToken


@dataclass(slots=True)
class _VerifyState:
    draw: Draw
    host_knew_constraint: bool  # the host knew before this step that a grammar constrains it
    taken: list[SampledToken] = field(default_factory=list)
    is_over: bool = False

    @property
    def row(self) -> int:
        """The row of the sequence."""
        return self.draw.row

    @property
    def place(self) -> int:
        """The hidden row that its next token is sampled from."""
        return self.draw.first + len(self.taken)

    @property
    def rest(self) -> range:
        """The hidden rows that it may still reach."""
        return range(self.place, self.draw.first + self.draw.count)


@dataclass(frozen=True, slots=True)
class _Logits:
    """Row `index` of `of` (R, V)."""

    of: Floats
    index: int


class TokenSampler:
    """Samples for rows, and appends to them."""

    def __init__(
        self,
        rows: Rows,
        sampler: Sampler,
        stop_ids: frozenset[int],
        *,
        fast_forward: bool,
    ) -> None:
        self._rows = rows
        self._sampler = sampler
        self._stop_ids = stop_ids
        self.fast_forward = fast_forward

    def sample(self, draws: Sequence[Draw], forward: Forward) -> SamplingResult:
        """The tokens of these draws; `forward` has run their step."""
        walks, taken = (
            [_VerifyState(draw, self._rows[draw.row].host_knows_constraint) for draw in draws],
            SamplingResult(),
        )
        likeliest = self._likeliest(forward, walks, taken)
        walks = self._take_greedy_all(walks, likeliest, taken)
        logits = self._logits_of(forward, walks)  # in one call: a result is valid until the next
        while walks:
            at = _gathered([logits[walk.place] for walk in walks])
            outcomes = self._sampler.sample(at, [self._sample_row(walk.row) for walk in walks])
            for walk, outcome in zip(walks, outcomes, strict=True):
                self._take(walk, outcome, taken)
            walks = self._take_greedy_all(walks, likeliest, taken)
        taken.in_grammar = frozenset(
            draw.seq_id for draw in draws if self._rows[draw.row].host_knows_constraint
        )
        return taken

    def _take_greedy_all(
        self, walks: list[_VerifyState], likeliest: dict[int, int], taken: SamplingResult
    ) -> list[_VerifyState]:
        """Run `_take_greedy` for each; the walks that are not over."""
        for walk in walks:
            self._take_greedy(walk, likeliest, taken)
        return [walk for walk in walks if not walk.is_over]

    def _likeliest(
        self, forward: Forward, walks: list[_VerifyState], taken: SamplingResult
    ) -> dict[int, int]:
        """By hidden row: its likeliest token, for walks that need no more. Rows with non-finite numbers have
        none: the sampler reports the error. A constrained row first takes tokens that its guide forces; then
        it is tried this way if its likeliest token was allowed the last time."""
        places: set[int] = set()
        for walk in walks:
            entry = self._rows[walk.row]
            if not entry.is_plain:
                continue
            if entry.is_constrained:
                assert entry.guide is not None
                self._take_only(walk, entry, taken)
                if walk.is_over or not entry.guide.was_allowed:
                    continue
            places.update(walk.rest)
        if not places:
            return {}
        unique = sorted(places)
        tokens = forward.argmax(unique).tolist()
        return {place: token for place, token in zip(unique, tokens, strict=True) if token >= 0}

    def _take_greedy(self, walk: _VerifyState, likeliest: dict[int, int], taken: SamplingResult) -> None:
        """Take likeliest and forced tokens as long as they suffice."""
        while not walk.is_over and (entry := self._rows[walk.row]).is_plain:
            if entry.is_constrained and self._take_only(walk, entry, taken):
                continue
            token = likeliest.get(walk.place)
            if token is None:
                return
            if entry.is_constrained:
                assert entry.guide is not None
                with self._sampler.timed():
                    is_allowed = entry.guide.allows(token)
                if not is_allowed:
                    return
            self._take(walk, SampledToken(token), taken)

    def _take_only(self, walk: _VerifyState, entry: Row, taken: SamplingResult) -> bool:
        """Take the only token that is allowed next; False: several are."""
        assert entry.guide is not None
        with self._sampler.timed():
            only = entry.guide.only()
        if only is None:
            return False
        self._take(walk, SampledToken(only), taken)
        return True

    def _logits_of(self, forward: Forward, walks: list[_VerifyState]) -> dict[int, _Logits]:
        """Logits of all hidden rows that these walks may reach."""
        places = sorted({place for walk in walks for place in walk.rest})
        if not places:
            return {}
        written = forward.logits(places)
        return {place: _Logits(written, index) for index, place in enumerate(places)}

    def _take(self, walk: _VerifyState, outcome: SampledToken | SampleFailure, taken: SamplingResult) -> None:
        """Take the row's next token; the walk continues if the draft guessed it."""
        entry = self._rows[walk.row]
        if isinstance(outcome, SampleFailure):
            self._fail(walk, entry, outcome, taken)
            return
        is_beam = entry.params.beams is not None  # a later plan chooses among its candidates
        if entry.guide is not None:
            why_not = entry.guide.accept(outcome.token)
            if why_not:
                self._fail(walk, entry, SampleFailure(GRAMMAR_ENDED + why_not, False), taken)
                return
            entry.host_knows_constraint = entry.host_knows_constraint or entry.guide.is_constrained
        if not is_beam:
            self._rows.append(walk.row, outcome.token)
        place = len(walk.taken)
        walk.taken.append(outcome)
        if walk.draw.is_continued(place, outcome.token, self._stop_ids):
            return
        walk.is_over = True
        forced = self._forced(entry) if walk.host_knew_constraint else []
        for token in forced:
            self._rows.append(walk.row, token)
        taken.num_forced += len(forced)
        taken.samples[entry.seq_id] = (*walk.taken, *map(SampledToken, forced))

    def _fail(self, walk: _VerifyState, entry: Row, failure: SampleFailure, taken: SamplingResult) -> None:
        """Fail a position that cannot be sampled; after accepted drafts, only once it is the newest one."""
        walk.is_over = True
        if walk.taken:
            taken.samples[entry.seq_id] = tuple(walk.taken)
            return
        taken.failed[entry.seq_id] = failure
        if entry.params.beams is None:
            self._rows.append(walk.row, 0)  # a plan in flight may expect a token; it will be dropped

    def _forced(self, entry: Row) -> list[int]:
        """Tokens that the grammar forces after the new one (fast-forward), if sampling would give the same:
        not if the request has logprobs, which need logits, or if something else forbids tokens, as an end
        token before `min_tokens`. Not before the host knows of the constraint: a plan in flight may expect a
        single token."""
        params, is_long_enough = entry.params, entry.length - entry.num_prompt >= entry.params.min_tokens
        if entry.guide is None or not self.fast_forward or params.logprobs is not None:
            return []
        return entry.guide.forced() if entry.masks is None and is_long_enough else []

    def _sample_row(self, row: int) -> SampleRow:
        entry = self._rows[row]
        history = self._rows.history(row)
        guide = entry.guide if entry.is_constrained else None
        return SampleRow(
            entry.params, entry.masks, entry.seed, entry.choice, entry.num_prompt, history, guide
        )


def _gathered(logits: list[_Logits]) -> Floats:
    """(S, V), without a copy where these are all rows of one array, in order."""
    whole = logits[0].of
    if len(whole) == len(logits) and all(one.of is whole and one.index == i for i, one in enumerate(logits)):
        return whole
    return np.stack([one.of[one.index] for one in logits])
