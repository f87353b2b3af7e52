"""The cards of the requests that ended last, so they remain readable. No prompt, output or block is kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from octavo.scheduler.sequence import Sequence
from octavo.scheduler.sequence_parts import PromptSplit
from octavo.types import FinishReason, Update, Usage

ENDED_MAX = 1000  # requests


@dataclass(frozen=True, slots=True)
class EndedChoice:
    """The end of one choice. `error`: the message that its client received."""

    usage: Usage
    finish: FinishReason
    error: str


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """The card of an ended request."""

    request_id: int
    tenant: str
    priority: int
    arrival: float
    session: str
    fills_pin: str
    follows: str  # the client's name for the output constraint, and its kind
    not_enforced: tuple[str, ...]
    ended: float  # when its last choice ended
    split: PromptSplit | None  # None: it was never admitted
    choices: dict[int, EndedChoice]


class EndedRequests:
    """The newest `ENDED_MAX` cards."""

    def __init__(self, most: int = ENDED_MAX) -> None:
        self._most = most
        self._cards: OrderedDict[int, EndedRequest] = OrderedDict()  # the first to end comes first
        self._choices: dict[int, dict[int, EndedChoice]] = {}  # of requests with unfinished choices

    def __len__(self) -> int:
        return len(self._cards)

    def find(self, request_id: int) -> EndedRequest | None:
        """The card of a request; None: it has not ended, never existed, or ended too long ago."""
        return self._cards.get(request_id)

    def cards(self) -> list[EndedRequest]:
        """All cards: for checks."""
        return list(self._cards.values())

    def add(self, sequence: Sequence, now: float) -> None:
        """The last sequence of a request has ended. O(1)."""
        request, grammar = sequence.request, sequence.request.params.grammar
        self._cards[request.request_id] = EndedRequest(
            request.request_id,
            request.tenant,
            request.priority,
            request.arrival,
            request.session,
            request.fills_pin,
            "" if grammar is None else f"{grammar.param} ({grammar.kind})",
            () if grammar is None else grammar.not_enforced,
            now,
            sequence.split,
            self._choices.pop(request.request_id, {}),
        )
        if len(self._cards) > self._most:
            self._cards.popitem(last=False)

    def note_final(self, update: Update, *, is_live: bool) -> None:
        """A choice's final update; `is_live`: other choices of its request are unfinished."""
        if update.finish is None:
            return
        choice = EndedChoice(update.usage, update.finish, update.error)
        if is_live:
            self._choices.setdefault(update.request_id, {})[update.choice] = choice
        elif update.request_id in self._cards:
            self._cards[update.request_id].choices[update.choice] = choice
