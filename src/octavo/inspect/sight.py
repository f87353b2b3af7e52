"""What a viewer may see: the operator everything, a tenant its own things, and nothing from which another's
could be read. The one place that decides it; every view is made through a `Sight`.

A tenant sees its own requests, pins, sessions, blocks and events. It sees no other's name, text or id, and no
number that others move: not how many blocks are free, not how long the queue is. Texts that were written for
the operator are shown only where they speak of no other tenant; elsewhere new ones are made from the tenant's
own numbers, so a kind of event that is added later shows nothing until it is listed here.

Its blocks are numbered by its own order, in every view alike:

    pins, sessions, sequences, each in the order in which they came    [7 9] [4 9 2]  ->  [0 1] [2 1 3]

Their places in the pool would show how many blocks others took in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Protocol, TypeVar

from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.pool import BlockPool
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence as LiveSequence
from octavo.scheduler.sequence_parts import PromptSplit
from octavo.scheduler.waits import Wait
from octavo.step.events import EVENTS_MAX, Event, EventKind, EventRing

# Kinds whose text is about one request or pin alone.
_SHOWN_AS_WRITTEN = frozenset({EventKind.FAILED, EventKind.PINNED, EventKind.UNPINNED, EventKind.PIN_EXPIRED})
# What holds a tenant's own blocks; what stays for long comes first.
_OWN_ORDER = (HolderKind.PIN, HolderKind.SESSION, HolderKind.SEQUENCE)


class Owned(Protocol):
    """What is one tenant's."""

    @property
    def tenant(self) -> str:
        """Its name."""


OwnedT = TypeVar("OwnedT", bound=Owned)


@dataclass(frozen=True, slots=True)
class VisibleBlocks:
    """Holders that a viewer sees, and blocks of the pool by its numbers."""

    holders: list[Holder]
    numbers: Mapping[int, int] | None  # by place in the pool; None: the places themselves
    num_holders: Sequence[int] | Mapping[int, int]  # by place, among those that it sees

    def numbered(self, blocks: list[int]) -> list[int]:
        """These blocks by the viewer's numbers, a list of its own. KeyError: it does not see one."""
        return blocks[:] if self.numbers is None else list(map(self.numbers.__getitem__, blocks))

    def names(self, pool: BlockPool) -> list[bytes | None]:
        """By number, as many as the pool can have blocks; None where there is none, or where the viewer sees
        no block."""
        if self.numbers is None:
            return pool.name_of[:]
        names = [pool.name_of[block] for block in self.numbers]
        return names + [None] * (pool.capacity - len(names))


@dataclass(frozen=True, slots=True)
class Sight:
    """What one viewer may see. `tenant` is None for the operator."""

    tenant: str | None

    @property
    def is_whole(self) -> bool:
        """It may see numbers of all tenants together."""
        return self.tenant is None

    def sees(self, tenant: str) -> bool:
        """Whether that tenant's things may be seen."""
        return self.tenant is None or self.tenant == tenant

    def own(self, things: Iterable[OwnedT]) -> Iterable[OwnedT]:
        """Those that may be seen."""
        return things if self.is_whole else (thing for thing in things if self.sees(thing.tenant))

    def requests(self, live: LiveSequences) -> Iterable[list[LiveSequence]]:
        """The unfinished sequences of each request that may be seen, in order of arrival."""
        return (found for found in live.unfinished.values() if self.sees(found[0].request.tenant))

    def places(self, live: LiveSequences) -> dict[LiveSequence, int]:
        """Those that wait, by place in the queue. A tenant's would show how many others wait."""
        return {sequence: place for place, sequence in enumerate(live.waiting)} if self.is_whole else {}

    def words(self, wait: Wait) -> str:
        """Why a sequence waits."""
        return wait.in_words_of(self.tenant or "")

    def split(self, split: PromptSplit | None) -> PromptSplit | None:
        """A prompt by source; for whom blocks were evicted is the operator's alone."""
        return split if split is None or self.is_whole else split.for_tenant()

    def events(self, ring: EventRing, count: int) -> tuple[Event, ...]:
        """The last `count` that may be seen, newest first."""
        if self.is_whole:
            return tuple(ring.recent(count))
        return tuple(map(own_event, islice(self.own(ring.recent(EVENTS_MAX)), count)))

    def blocks(self, ledger: Ledger) -> VisibleBlocks:
        """All blocks and holders; or the tenant's, in its own order. Copies on their way are no tenant's own:
        where they come and go, others are at work. O(holders), for a tenant O(its blocks)."""
        if self.is_whole:
            return VisibleBlocks(list(ledger.holders.values()), None, ledger.pool.holders)
        own = [holder for holder in self.own(ledger.holders.values()) if holder.kind in _OWN_ORDER]
        own.sort(key=lambda holder: _OWN_ORDER.index(holder.kind))
        num_holders = Counter(chain.from_iterable(holder.blocks for holder in own))
        numbers = {block: number for number, block in enumerate(num_holders)}  # by first places in the tables
        return VisibleBlocks(own, numbers, num_holders)


def own_event(event: Event) -> Event:
    """The same as its tenant may read it."""
    if event.kind in _SHOWN_AS_WRITTEN:
        return event
    whose = "" if event.request_id is None else f"request {event.request_id}: "
    return replace(event, text=f"{whose}{event.kind.value.replace('_', ' ')}, {event.blocks:,} blocks")
