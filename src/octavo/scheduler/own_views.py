"""What one tenant may ask of the scheduler: its own part of `views`, and nothing from which another's could
be read.

A tenant sees its own requests, pins, blocks and events. It sees no other's name, text or id, and no number
that others move: not how many blocks are free, not how long the queue is. Texts that were written for the
operator are told only where they speak of nobody else; elsewhere new ones are made from the tenant's own
numbers, so a kind of event that is added later tells nothing until it is listed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.scheduler.events import EVENTS_MAX, Event, EventKind
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.views import EVENTS_TOLD, MapView, PinView, RequestView, view_pin, view_request

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler

# Kinds whose text is about one request or pin alone.
_TOLD_AS_THEY_ARE = frozenset({EventKind.FAILED, EventKind.PINNED, EventKind.UNPINNED, EventKind.PIN_EXPIRED})


@dataclass(frozen=True, slots=True)
class OwnKvView:
    """The pool as far as it is one tenant's. Times are in seconds."""

    tenant: str
    bytes_per_block: int  # 0: not known
    block_size: int
    held_by_sequences: int  # table entries, so a shared block counts for each
    held_by_pins: int
    pins: tuple[PinView, ...]
    waiting: int
    running: int
    events: tuple[Event, ...]  # newest first
    now: float


def view_own_kv(scheduler: Scheduler, tenant: str, now: float) -> OwnKvView:
    """What the tenant holds, and what happened to it lately. O(live sequences + pins + events)."""
    pins = [pin for pin in scheduler.pins.all() if pin.tenant == tenant]
    running = [s for s in scheduler.live.running if s.request.tenant == tenant]
    events = [event for event in scheduler.events.recent(EVENTS_MAX) if event.tenant == tenant]
    return OwnKvView(
        tenant,
        scheduler.config.bytes_per_block,
        scheduler.ledger.block_size,
        sum(len(s.table) for s in running if s.table is not None),
        sum(len(pin.table) for pin in pins if pin.table is not None),
        tuple(view_pin(pin, now) for pin in pins if not pin.is_of_session),
        sum(s.request.tenant == tenant for s in scheduler.live.waiting),
        len(running),
        tuple(_own_event(event) for event in events[:EVENTS_TOLD]),
        now,
    )


def view_own_map(scheduler: Scheduler, tenant: str, now: float) -> MapView:
    """Every block of the pool; those that neither its sequences nor its pins hold are ".". O(blocks)."""
    pool = scheduler.ledger.pool
    states, owner, owners = ["."] * pool.num_blocks, [-1] * pool.num_blocks, []
    for sequence in scheduler.live.running:
        if sequence.request.tenant == tenant:
            owners.append(f"request {sequence.request.request_id}, choice {sequence.choice}")
            for block in sequence.table.blocks if sequence.table is not None else ():
                states[block] = "S" if owner[block] >= 0 else "s"
                owner[block] = len(owners) - 1 if owner[block] < 0 else owner[block]
    for pin in scheduler.pins.all():
        if pin.tenant == tenant:
            owners.append(pin.name.replace(":", " ") if pin.is_of_session else f"pin {pin.name}")
            for block in pin.table.blocks if pin.table is not None else ():
                states[block], owner[block] = "p", len(owners) - 1
    return MapView("".join(states), tuple(owner), tuple(owners))


def view_own_requests(scheduler: Scheduler, tenant: str, now: float) -> list[RequestView]:
    """Its requests that have not ended, in order of arrival."""
    views = (view_own_request(scheduler, tenant, i, now) for i in scheduler.live.live_requests())
    return [view for view in views if view is not None]


def view_own_request(scheduler: Scheduler, tenant: str, request_id: int, now: float) -> RequestView | None:
    """One of them. None when it is another's, as when there is none; its place in the queue is not told."""
    sequences = scheduler.live.sequences_of(request_id)
    if not sequences or sequences[0].request.tenant != tenant:
        return None
    view = view_request(scheduler, request_id, now)
    if view is None:
        return None
    told = [
        replace(shown, why=_own_words(scheduler, sequence, shown.why))
        for shown, sequence in zip(view.sequences, sequences, strict=True)
    ]
    return replace(view, place=None, sequences=tuple(told))


def _own_words(scheduler: Scheduler, sequence: Sequence, why: str) -> str:
    return scheduler.live.why_waiting(sequence).in_words_of(sequence.request.tenant) if why else ""


def _own_event(event: Event) -> Event:
    if event.kind in _TOLD_AS_THEY_ARE:
        return event
    whose = "" if event.request_id is None else f"request {event.request_id}: "
    return replace(event, text=f"{whose}{event.kind.value.replace('_', ' ')}, {event.blocks:,} blocks")
