"""What is kept of the last requests that have ended, so that their cards can still be read. No prompt, no
output and no block is kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from octavo.scheduler.sequence import Sequence
from octavo.scheduler.sequence_parts import PromptSplit
from octavo.types import FinishReason, Update, Usage

ENDED_MAX = 1000  # requests


@dataclass(frozen=True, slots=True)
class EndedChoice:
    """How one choice ended. `error`: why, in words, as its client read it."""

    usage: Usage
    finish: FinishReason
    error: str


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """The card of one of them."""

    request_id: int
    tenant: str
    priority: int
    arrival: float
    session: str
    fills_pin: str
    follows: str  # what its output had to follow: the client's name for it, and its kind
    let_go: tuple[str, ...]
    ended: float  # when its last choice did
    split: PromptSplit | None  # None: it was never admitted
    choices: dict[int, EndedChoice]


class EndedRequests:
    """The newest `ENDED_MAX` of them."""

    def __init__(self, most: int = ENDED_MAX) -> None:
        self._most = most
        self._cards: OrderedDict[int, EndedRequest] = OrderedDict()  # the one that ended first before others
        self._choices: dict[int, dict[int, EndedChoice]] = {}  # of requests of which others go on

    def __len__(self) -> int:
        return len(self._cards)

    def find(self, request_id: int) -> EndedRequest | None:
        """Its card; None: it has not ended, never was, or ended too long ago."""
        return self._cards.get(request_id)

    def cards(self) -> list[EndedRequest]:
        """All of them: for checks."""
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
            () if grammar is None else grammar.let_go,
            now,
            sequence.split,
            self._choices.pop(request.request_id, {}),
        )
        if len(self._cards) > self._most:
            self._cards.popitem(last=False)

    def note_final(self, update: Update, *, is_live: bool) -> None:
        """What the client of a choice learned last; `is_live`: others of its request go on."""
        if update.finish is None:
            return
        choice = EndedChoice(update.usage, update.finish, update.error)
        if is_live:
            self._choices.setdefault(update.request_id, {})[update.choice] = choice
        elif update.request_id in self._cards:
            self._cards[update.request_id].choices[update.choice] = choice
