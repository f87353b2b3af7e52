"""Where each prompt came from, checked: its parts add up, what is said to be gone cannot be found, and no
tenant's card tells of another tenant.
"""

from __future__ import annotations

from octavo.engine.port import inspector_of
from octavo.inspect.views import RequestView
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence_parts import PromptSplit


def check_splits(scheduler: Scheduler, names: set[str], now: float) -> None:
    """Raise AssertionError where a request that was admitted, or one of `names`, is told something wrong.
    O(tenants * requests)."""
    history, live, inspector = scheduler.ledger.history, scheduler.live, inspector_of(scheduler)
    gone = [name for name in history.names() if any(name in place for place in history.places)]
    assert not gone, "a name that can be found is said to be gone"
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
