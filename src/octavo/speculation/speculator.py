"""The guesses of all sequences of an engine, and how many of them a step verifies."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from octavo.speculation.automaton import SuffixAutomaton
from octavo.speculation.drafter import NO_DRAFT, Draft, Drafter, NewDrafter
from octavo.speculation.goodput import Acceptance, DraftCandidate, Fate, choose
from octavo.step.size_costs import SizeCosts

DRAFTS_MAX = 16  # guesses of one sequence in one step
STEP_DRAFTS_MAX = 64  # of all sequences
READ_TOKENS = 64  # tokens that drafters read during one step, and one more for each of its positions
BYTES_MAX = 256 << 20  # memory of all drafters; beyond it, sequences decode without guesses
_NGRAM_DRAFTS, _NGRAM_MATCH = 8, 2
_PROBE_STEPS = 64  # steps between two checks whether to run a step only to measure it
_PROBED_LEAST, _PROBED_SHARE = 2, 4  # guesses of such a step: 2, or a quarter of its positions


class Speculation(enum.StrEnum):
    """How many guesses a step verifies."""

    OFF = "off"
    AUTO = "auto"  # as many as make the most tokens a second, by measured costs
    NGRAM = "ngram"  # 8 if two tokens or more match, at any cost


@dataclass(slots=True, eq=False)
class DrafterState:
    """One sequence's guesses."""

    drafter: Drafter
    fate: Fate = field(default_factory=Fate)
    draft: Draft = NO_DRAFT  # guesses at what follows its newest token
    num_drafted: int = 0  # guesses that were computed
    num_accepted: int = 0  # of them, those that were right
    was_taken: bool = True  # the last step with its offer took some of its guesses


class Speculator:
    """Learns from the outcome of guesses and from the cost of steps. It knows no block and no row."""

    def __init__(
        self,
        mode: Speculation,
        new_drafter: NewDrafter = SuffixAutomaton,
        padded: Callable[[int], int] | None = None,
    ) -> None:
        """`padded`: see `SizeCosts`."""
        assert mode is not Speculation.OFF
        self.mode = mode
        self.costs = SizeCosts(padded)
        self._acceptance = Acceptance()
        self._new_drafter = new_drafter
        self.drafted: dict[str, int] = {}  # guesses that were computed, by kind of drafter
        self.accepted: dict[str, int] = {}
        self.num_bytes = 0  # memory of all drafters
        self._steps_since_probe = 0

    def begin(self) -> DrafterState:
        """The state of a new sequence; `read` feeds it the prompt later."""
        drafting = DrafterState(self._new_drafter())
        self.num_bytes += drafting.drafter.num_bytes
        return drafting

    def fork(self, parent: DrafterState) -> DrafterState | None:
        """The state of a sequence forked from another, with counts of its own that begin at 0. None if all
        drafters hold too much memory. O(tokens)."""
        if self.num_bytes + parent.drafter.num_bytes > BYTES_MAX:
            return None
        twin = DrafterState(parent.drafter.copy(), parent.fate.copy(), parent.draft)
        self.num_bytes += twin.drafter.num_bytes
        return twin

    def end(self, drafting: DrafterState) -> None:
        """Forget a sequence that has ended."""
        self.num_bytes -= drafting.drafter.num_bytes

    def forget_sequences(self) -> None:
        """Drop all sequences; the learned rates and costs stay."""
        self.num_bytes = 0

    def read(self, drafting: DrafterState, tokens: Sequence[int], limit: int) -> int:
        """Read the next of a sequence's `tokens`, at most `limit`; returns how many. Once all are read, the
        drafter guesses the next ones."""
        start = drafting.drafter.num_tokens
        count = min(limit, len(tokens) - start)
        if count <= 0:
            return 0
        if self.num_bytes > BYTES_MAX:
            drafting.draft = NO_DRAFT
            return 0
        bytes_before = drafting.drafter.num_bytes
        drafting.drafter.extend(tokens[start : start + count])
        self.num_bytes += drafting.drafter.num_bytes - bytes_before
        is_read = start + count == len(tokens)
        drafting.draft = drafting.drafter.draft(DRAFTS_MAX) if is_read else NO_DRAFT
        return count

    def learn(self, drafting: DrafterState, came: Sequence[int], num_drafted: int, num_accepted: int) -> None:
        """Compare the guesses with the tokens that `came` after those read (one or more), up to the first
        wrong guess, whether or not they were computed."""
        draft = drafting.draft
        for place, (guess, token) in enumerate(zip(draft.tokens, came, strict=False)):
            drafting.fate.learn(self._acceptance, draft.match + place, guess == token)
            if guess != token:
                break
        drafting.draft = NO_DRAFT
        if num_drafted:
            drafting.num_drafted += num_drafted
            drafting.num_accepted += num_accepted
            name = drafting.drafter.name
            self.drafted[name] = self.drafted.get(name, 0) + num_drafted
            self.accepted[name] = self.accepted.get(name, 0) + num_accepted

    def is_promising(self, drafting: DrafterState) -> bool:
        """Whether its next guess is more likely right than not."""
        draft = drafting.draft
        return bool(draft.tokens) and self._rate(drafting, 0) > 0.5

    def counts(
        self,
        offers: Sequence[tuple[DrafterState, int]],
        num_positions: int,
        budget: int,
        *,
        is_measured: bool = True,
    ) -> list[int]:
        """The number of guesses of each sequence, `budget` in all; the number in an offer is its limit. The
        step computes `num_positions` without them, each of which counts as a token made. `is_measured`:
        `costs` will receive the step's time."""
        budget = min(budget, STEP_DRAFTS_MAX)
        if self.mode is Speculation.NGRAM:
            return _fixed(offers, budget)
        candidates = [
            DraftCandidate(min(limit, len(drafting.draft.tokens)), partial(self._rate, drafting))
            for drafting, limit in offers
        ]
        costs = self.costs
        counts = choose(candidates, num_positions, num_positions, costs.of, budget)
        if not is_measured:
            return counts
        # A choice never made is never measured: now and then a step makes the other one.
        if any(counts):
            return [0] * len(counts) if costs.is_stale(num_positions) else counts
        self._steps_since_probe += 1
        if self._steps_since_probe < _PROBE_STEPS:
            return counts
        self._steps_since_probe = 0
        few = min(budget, max(_PROBED_LEAST, num_positions // _PROBED_SHARE))
        probed = choose(candidates, num_positions, num_positions, costs.at_best, few)
        return probed if costs.is_stale(num_positions + sum(probed)) else counts

    def _rate(self, drafting: DrafterState, place: int) -> float:
        """The probability that the guess at `place` is right, given that those before it are."""
        return drafting.fate.rate(self._acceptance, drafting.draft.match + place)


def _fixed(offers: Sequence[tuple[DrafterState, int]], budget: int) -> list[int]:
    """An equal number for each sequence with a match, until the budget is used up."""
    counts = []
    for drafting, limit in offers:
        draft = drafting.draft
        most = max(0, min(_NGRAM_DRAFTS, limit, len(draft.tokens), budget))
        count = most if draft.match >= _NGRAM_MATCH else 0
        counts.append(count)
        budget -= count
    return counts
