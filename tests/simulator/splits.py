"""Where each prompt came from, checked: its parts add up, what is said to be gone cannot be found, and no
tenant's card tells of another tenant.
"""

from __future__ import annotations

from collections import Counter

from octavo.engine.port import inspector_of
from octavo.inspect.views import RequestView
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.sequence_parts import PromptSource, PromptSplit


class NameWatch:
    """Every name that one scheduler ever had, and a stupid split of each prompt that it admits."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._seen: set[bytes] = set()
        self._admit, scheduler.live.admit = scheduler.live.admit, self._check_admitted  # type: ignore[method-assign]

    def look(self) -> None:
        """After whatever changes names: raise AssertionError where the table of names that are gone is not
        what was seen, less what can be found."""
        found, gone = self._found(), set(self._scheduler.ledger.history.names())
        assert not gone & found, "a name that can be found is said to be gone"
        assert self._seen <= gone | found, "a name is gone, and it is not known why"
        self._seen |= gone | found

    def _found(self) -> set[bytes]:
        tier = self._scheduler.transfers.tier
        return {*self._scheduler.ledger.pool.by_name, *(() if tier is None else tier.names())}

    def _check_admitted(self, sequence: Sequence, num_hits: int) -> None:
        is_first, size = not sequence.was_admitted, self._scheduler.block_size
        found, gone = self._found(), set(self._scheduler.ledger.history.names())
        misses = sequence.chain.names[num_hits : (sequence.num_prompt - 1) // size]
        wanted, kind = Counter({"hit": num_hits * size}), "there"
        for name in misses:
            if name not in found:
                kind = "gone" if name in gone | self._seen else "never"
            wanted["unseen" if sequence.computes_all else kind] += size
        before = sequence.split
        self._admit(sequence, num_hits)
        if not is_first:
            assert sequence.split is before, "a prompt is split again after a preemption"
            return
        told = Counter[str]()
        for part in sequence.split.parts if sequence.split is not None else ():
            told[_KINDS.get(part.source, "hit")] += part.num_tokens
        tail = told.pop("tail", 0)
        assert 1 <= tail <= size
        assert told == +wanted, f"a prompt is split wrongly: {told}, not {wanted}"


_KINDS = {
    PromptSource.TAIL: "tail",
    PromptSource.NEVER_COMPUTED: "never",
    PromptSource.EVICTED: "gone",
    PromptSource.LOST: "gone",
    PromptSource.CHEAPER_TO_COMPUTE: "there",
    PromptSource.NOT_USED: "there",
    PromptSource.NOT_LOOKED_UP: "unseen",
}


def check_splits(scheduler: Scheduler, names: set[str], now: float) -> None:
    """Raise AssertionError where a request that was admitted, or one of `names`, is told something wrong.
    O(tenants * requests)."""
    live, inspector = scheduler.live, inspector_of(scheduler)
    for sequences in live.unfinished.values():
        for sequence in sequences:
            assert (sequence.split is not None) == sequence.was_admitted, "an admitted prompt is not split"
            _check_sum(sequence.split, sequence.num_prompt)
    for card in live.ended.cards():
        assert card.request_id not in live, "a request is listed as ended, and goes on"
        for choice in card.choices.values():
            _check_sum(card.split, choice.usage.num_prompt)
            assert card.split is None or choice.usage.num_cached in (0, card.split.num_cached)
    owners = {card.request_id: card.tenant for card in live.ended.cards()}
    owners |= {request.request_id: request.tenant for request in live.requests()}
    for request_id, owner in owners.items():
        told = inspector.request(request_id, now)
        assert told is not None, "the operator is not told of a request"
        for name in names:
            view = inspector.request(request_id, now, name)
            assert (view is not None) == (name == owner), (
                "another tenant's request is told, or its own is not"
            )
            if view is not None:
                _check_view(view, told)


def _check_sum(split: PromptSplit | None, num_prompt: int) -> None:
    if split is None:
        return
    assert all(part.num_tokens > 0 for part in split.parts)
    assert sum(part.num_tokens for part in split.parts) == num_prompt, "a prompt's parts are not the prompt"
    assert sum(part.num_tokens for part in split.parts if part.source.is_hit) == split.num_cached


def _check_view(view: RequestView, told: RequestView) -> None:
    """What its tenant sees, beside what the operator does."""
    assert (view.split is None) == (told.split is None)
    if view.split is None or told.split is None:
        return
    _check_sum(view.split, sum(part.num_tokens for part in told.split.parts))
    kinds = [(part.source, part.cause) for part in view.split.parts]
    assert len(kinds) == len(set(kinds)), "how many others evicted its blocks can be counted"
    assert all(part.request_id is None for part in view.split.parts), "another request is named"
    assert "request" not in view.split.in_words()
