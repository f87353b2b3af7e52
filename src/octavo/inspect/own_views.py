"""What one tenant may ask of the scheduler: its own part of `views`, and nothing from which another's could
be read.

A tenant sees its own requests, pins, blocks and events. It sees no other's name, text or id, and no number
that others move: not how many blocks are free, not how long the queue is. Texts that were written for the
operator are told only where they speak of no other tenant; elsewhere new ones are made from the tenant's own
numbers, so a kind of event that is added later tells nothing until it is listed here.

Its blocks are numbered by its own order, in every view alike:

    pins, sessions, sequences, each in the order in which they came    [7 9] [4 9 2]  ->  [0 1] [2 1 3]

Their places in the pool would tell how many blocks others took in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from octavo.inspect.views import EVENTS_TOLD, MapView, PinView, RequestView, draw, view_pin, view_request
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.retention.pins import Pins
from octavo.scheduler.live import LiveSequences
from octavo.step.context import Context
from octavo.step.events import EVENTS_MAX, Event, EventKind

# Kinds whose text is about one request or pin alone.
_TOLD_AS_THEY_ARE = frozenset({EventKind.FAILED, EventKind.PINNED, EventKind.UNPINNED, EventKind.PIN_EXPIRED})
# What holds a tenant's own blocks; what stays for long comes first.
_OWN_ORDER = (HolderKind.PIN, HolderKind.SESSION, HolderKind.SEQUENCE)


@dataclass(frozen=True, slots=True)
class OwnKvView:
    """The pool as far as it is one tenant's. Times are in seconds."""

    tenant: str
    bytes_per_block: int  # 0: not known
    block_size: int
    held_by_sequences: int  # table entries, so a shared block counts for each
    held_by_pins: int
    pins: tuple[PinView, ...]
    waiting: int  # requests
    running: int  # requests
    events: tuple[Event, ...]  # newest first
    now: float


def view_own_kv(context: Context, live: LiveSequences, pins: Pins, tenant: str, now: float) -> OwnKvView:
    """What the tenant holds, and what happened to it lately. O(live sequences + pins + events)."""
    own = [holder for holder in context.ledger.holders.values() if holder.tenant == tenant]
    of_pins = (HolderKind.PIN, HolderKind.SESSION)
    events = [event for event in context.events.recent(EVENTS_MAX) if event.tenant == tenant]
    return OwnKvView(
        tenant,
        context.config.bytes_per_block,
        context.ledger.block_size,
        sum(len(holder.blocks) for holder in own if holder.kind is HolderKind.SEQUENCE),
        sum(len(holder.blocks) for holder in own if holder.kind in of_pins),
        tuple(view_pin(pin, now) for pin in pins.named() if pin.tenant == tenant),
        sum(request.tenant == tenant for request in live.waiting_requests()),
        sum(request.tenant == tenant for request in live.running_requests()),
        tuple(own_event(event) for event in events[:EVENTS_TOLD]),
        now,
    )


def view_own_map(ledger: Ledger, tenant: str) -> MapView:
    """As many blocks as the pool has: those of its pins, sessions and sequences by its own numbers, then ".".
    O(blocks)."""
    states = ["."] * ledger.pool.num_blocks
    own = own_holders(ledger, tenant)
    numbers = number_blocks(holder.blocks for holder in own)
    owner, owners = draw(own, states, numbers)
    held = Counter(b for h in own if h.kind is HolderKind.SEQUENCE for b in h.blocks)
    for block, count in held.items():
        if count > 1 and states[numbers[block]] == "s":  # by its own: others' are not told
            states[numbers[block]] = "S"
    return MapView("".join(states), owner, owners)


def own_holders(ledger: Ledger, tenant: str) -> list[Holder]:
    """What holds blocks of the tenant's, in its own order. Copies on their way are nobody's own: where they
    come and go, others are at work. O(holders)."""
    own = [h for h in ledger.holders.values() if h.tenant == tenant and h.kind in _OWN_ORDER]
    return sorted(own, key=lambda holder: _OWN_ORDER.index(holder.kind))


def number_blocks(tables: Iterable[Sequence[int]]) -> Mapping[int, int]:
    """Blocks of the pool to their numbers, in the order of their first places in the tables. O(blocks)."""
    return {block: number for number, block in enumerate(dict.fromkeys(chain.from_iterable(tables)))}


def view_own_request(
    ledger: Ledger, live: LiveSequences, tenant: str, request_id: int, now: float
) -> RequestView | None:
    """One of them. None when it is another's, as when there is none; its place in the queue is not told."""
    sequences = live.sequences_of(request_id)
    if not sequences or sequences[0].request.tenant != tenant:
        return None
    view = view_request(ledger, live, request_id, now)
    if view is None:
        return None
    own = own_holders(ledger, tenant)
    numbers = number_blocks(holder.blocks for holder in own)
    held = Counter(chain.from_iterable(holder.blocks for holder in own))
    told = [
        replace(
            shown,
            why=live.why_waiting(sequence).in_words_of(tenant) if shown.why else "",
            table=tuple(replace(b, block=numbers[b.block], holders=held[b.block]) for b in shown.table),
        )
        for shown, sequence in zip(view.sequences, sequences, strict=True)
    ]
    return replace(view, place=None, sequences=tuple(told))


def own_event(event: Event) -> Event:
    """The same as its tenant may read it."""
    if event.kind in _TOLD_AS_THEY_ARE:
        return event
    whose = "" if event.request_id is None else f"request {event.request_id}: "
    return replace(event, text=f"{whose}{event.kind.value.replace('_', ' ')}, {event.blocks:,} blocks")
