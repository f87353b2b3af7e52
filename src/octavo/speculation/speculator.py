"""Guesses of all sequences of an engine: what each has to offer, and how many of them a step takes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from octavo.speculation.acceptance import Acceptance, Fate
from octavo.speculation.automaton import SuffixAutomaton
from octavo.speculation.choosing import DraftCandidate, choose
from octavo.speculation.drafter import NO_DRAFT, Draft, Drafter, NewDrafter
from octavo.step.size_costs import SizeCosts

DRAFTS_MAX = 16  # guesses of one sequence in one step
STEP_DRAFTS_MAX = 64  # of all
READ_TOKENS = 64  # tokens that drafters read beside one step, and one more for each of its positions
BYTES_MAX = 256 << 20  # that drafters hold together; beyond, sequences decode plainly
_NGRAM_DRAFTS, _NGRAM_MATCH = 8, 2
_PROBE_STEPS = 64  # between two looks whether a step should be made to measure it
_PROBED_LEAST, _PROBED_SHARE = 2, 4  # guesses of a step that is made to measure it: 2, or a quarter more


class Speculation(enum.StrEnum):
    """How many guesses are taken along."""

    OFF = "off"
    AUTO = "auto"  # as many as make the most tokens a second, by measured costs
    NGRAM = "ngram"  # 8 where two tokens or more match, whatever they cost


@dataclass(slots=True, eq=False)
class Drafting:
    """One sequence's guesses."""

    drafter: Drafter
    fate: Fate = field(default_factory=Fate)
    draft: Draft = NO_DRAFT  # at what follows its newest token
    num_drafted: int = 0  # guesses that were computed
    num_accepted: int = 0  # of them, those that were right
    was_taken: bool = True  # some of its guesses, when they were offered last


class Speculator:
    """Learns from what came of guesses, and from what steps cost. It knows no block and no row."""

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
        self.num_bytes = 0  # that drafters hold
        self._steps_since_probe = 0

    def begin(self) -> Drafting:
        """For a sequence; it reads the prompt later, see `read`."""
        drafting = Drafting(self._new_drafter())
        self.num_bytes += drafting.drafter.num_bytes
        return drafting

    def fork(self, parent: Drafting) -> Drafting | None:
        """For a sequence that goes on from where another is; what was guessed before is not its own. None
        where drafters hold too much. O(tokens)."""
        if self.num_bytes + parent.drafter.num_bytes > BYTES_MAX:
            return None
        twin = Drafting(parent.drafter.copy(), parent.fate.copy(), parent.draft)
        self.num_bytes += twin.drafter.num_bytes
        return twin

    def end(self, drafting: Drafting) -> None:
        """Its sequence has ended."""
        self.num_bytes -= drafting.drafter.num_bytes

    def forget_sequences(self) -> None:
        """All of them are gone; what was learned from them stays."""
        self.num_bytes = 0

    def read(self, drafting: Drafting, tokens: Sequence[int], limit: int) -> int:
        """Read the next of a sequence's `tokens`, at most `limit`; returns how many. When it has read all of
        them, it guesses what comes."""
        begun = drafting.drafter.num_tokens
        count = min(limit, len(tokens) - begun)
        if count <= 0:
            return 0
        if self.num_bytes > BYTES_MAX:
            drafting.draft = NO_DRAFT
            return 0
        bytes_before = drafting.drafter.num_bytes
        drafting.drafter.extend(tokens[begun : begun + count])
        self.num_bytes += drafting.drafter.num_bytes - bytes_before
        is_read = begun + count == len(tokens)
        drafting.draft = drafting.drafter.draft(DRAFTS_MAX) if is_read else NO_DRAFT
        return count

    def learn(self, drafting: Drafting, came: Sequence[int], num_drafted: int, num_accepted: int) -> None:
        """`came`, one token or more, behind what the drafting has read. The guesses at them are compared,
        up to the first that is wrong, whether they were computed or not."""
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

    def promises(self, drafting: Drafting) -> bool:
        """Whether its next guess is more likely right than not."""
        draft = drafting.draft
        return bool(draft.tokens) and self._rate(drafting, 0) > 0.5

    def counts(
        self,
        offers: Sequence[tuple[Drafting, int]],
        num_positions: int,
        budget: int,
        *,
        is_measured: bool = True,
    ) -> list[int]:
        """How many guesses of each sequence the step takes, `budget` in all; an offer's number is how many it
        may. The step computes `num_positions` without them, each of which counts as a token made.
        `is_measured`: the step's time will be told to `costs`."""
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
        # What is not chosen is not measured: now and then a step is made the other way.
        if any(counts):
            return [0] * len(counts) if costs.is_stale(num_positions) else counts
        self._steps_since_probe += 1
        if self._steps_since_probe < _PROBE_STEPS:
            return counts
        self._steps_since_probe = 0
        few = min(budget, max(_PROBED_LEAST, num_positions // _PROBED_SHARE))
        probed = choose(candidates, num_positions, num_positions, costs.at_best, few)
        return probed if costs.is_stale(num_positions + sum(probed)) else counts

    def _rate(self, drafting: Drafting, place: int) -> float:
        """How likely the guess at `place` is right, if those before it are."""
        return drafting.fate.rate(self._acceptance, drafting.draft.match + place)


def _fixed(offers: Sequence[tuple[Drafting, int]], budget: int) -> list[int]:
    """The same for each that has a match, as long as the budget lasts."""
    counts = []
    for drafting, limit in offers:
        draft = drafting.draft
        most = max(0, min(_NGRAM_DRAFTS, limit, len(draft.tokens), budget))
        count = most if draft.match >= _NGRAM_MATCH else 0
        counts.append(count)
        budget -= count
    return counts
