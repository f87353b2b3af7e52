"""The rights of a viewer: the operator sees everything, a tenant its own things, and nothing that reveals
another's. This module alone decides; every view is made through a `Sight`.

A tenant sees its own requests, pins, sessions, blocks and events. It sees no name, text or id of others, and
no number that others change: not how many blocks are free, not how long the queue is. A text written for the
operator is shown only if it concerns no other tenant. Otherwise a text is made from the tenant's own numbers,
so a new kind of event shows nothing until it is listed here.

Its blocks are numbered in its own order, equally in every view:

    pins, sessions, sequences, each in the order in which they came    [7 9] [4 9 2]  ->  [0 1] [2 1 3]

Their places in the pool would reveal how many blocks others took in between.
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

# Kinds of event whose text concerns only one request or pin.
_SHOWN_AS_WRITTEN = frozenset({EventKind.FAILED, EventKind.PINNED, EventKind.UNPINNED, EventKind.PIN_EXPIRED})
# Holders of a tenant's own blocks, long-lived ones first.
_OWN_ORDER = (HolderKind.PIN, HolderKind.SESSION, HolderKind.SEQUENCE)


class HasTenant(Protocol):
    """A thing of one tenant."""

    @property
    def tenant(self) -> str:
        """The tenant's name."""


OwnedT = TypeVar("OwnedT", bound=HasTenant)


@dataclass(frozen=True, slots=True)
class VisibleBlocks:
    """The visible holders, and the viewer's numbers of blocks."""

    holders: list[Holder]
    numbers: Mapping[int, int] | None  # by place in the pool; None: the places are the numbers
    num_holders: Sequence[int] | Mapping[int, int]  # by place, counting visible holders

    def numbered(self, blocks: list[int]) -> list[int]:
        """A new list of these blocks by the viewer's numbers. KeyError: one is not visible."""
        return blocks[:] if self.numbers is None else list(map(self.numbers.__getitem__, blocks))

    def names(self, pool: BlockPool) -> list[bytes | None]:
        """Names by number, one for each block of the pool; None for a block without a name or not visible."""
        if self.numbers is None:
            return pool.name_of[:]
        names = [pool.name_of[block] for block in self.numbers]
        return names + [None] * (pool.capacity - len(names))


@dataclass(frozen=True, slots=True)
class Sight:
    """The rights of one viewer. `tenant` is None for the operator."""

    tenant: str | None

    @property
    def is_whole(self) -> bool:
        """Whether it may see numbers of all tenants together."""
        return self.tenant is None

    def sees(self, tenant: str) -> bool:
        """Whether it may see things of that tenant."""
        return self.tenant is None or self.tenant == tenant

    def own(self, things: Iterable[OwnedT]) -> Iterable[OwnedT]:
        """The visible ones of these."""
        return things if self.is_whole else (thing for thing in things if self.sees(thing.tenant))

    def requests(self, live: LiveSequences) -> Iterable[list[LiveSequence]]:
        """The unfinished sequences of each visible request, in order of arrival."""
        return (found for found in live.unfinished.values() if self.sees(found[0].request.tenant))

    def places(self, live: LiveSequences) -> dict[LiveSequence, int]:
        """Waiting sequences by place in the queue; empty for a tenant, who would see others' number."""
        return {sequence: place for place, sequence in enumerate(live.waiting)} if self.is_whole else {}

    def words(self, wait: Wait) -> str:
        """Why a sequence waits."""
        return wait.in_words_of(self.tenant or "")

    def split(self, split: PromptSplit | None) -> PromptSplit | None:
        """A prompt by source; only the operator sees which requests evicted blocks."""
        return split if split is None or self.is_whole else split.for_tenant()

    def events(self, ring: EventRing, count: int) -> tuple[Event, ...]:
        """The last `count` visible ones, newest first."""
        if self.is_whole:
            return tuple(ring.recent(count))
        return tuple(map(own_event, islice(self.own(ring.recent(EVENTS_MAX)), count)))

    def blocks(self, ledger: Ledger) -> VisibleBlocks:
        """All blocks and holders; or the tenant's, in its own order. Copies in flight belong to no tenant:
        they would reveal the activity of others. O(holders), for a tenant O(its blocks)."""
        if self.is_whole:
            return VisibleBlocks(list(ledger.holders.values()), None, ledger.pool.holders)
        own = [holder for holder in self.own(ledger.holders.values()) if holder.kind in _OWN_ORDER]
        own.sort(key=lambda holder: _OWN_ORDER.index(holder.kind))
        num_holders = Counter(chain.from_iterable(holder.blocks for holder in own))
        numbers = {block: number for number, block in enumerate(num_holders)}  # by first place in the tables
        return VisibleBlocks(own, numbers, num_holders)


def own_event(event: Event) -> Event:
    """The event as its tenant may read it."""
    if event.kind in _SHOWN_AS_WRITTEN:
        return event
    whose = "" if event.request_id is None else f"request {event.request_id}: "
    return replace(event, text=f"{whose}{event.kind.value.replace('_', ' ')}, {event.blocks:,} blocks")
