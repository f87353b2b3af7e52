"""What a person may ask of the scheduler, as frozen values: who waits and why, who holds what, what happened.

Made on the engine's thread between two steps, so that all numbers of one answer belong together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.memory.memory import BlockCounts
from octavo.memory.pins import Pin, Strength
from octavo.scheduler.events import Event
from octavo.scheduler.sequence import Sequence, State
from octavo.scheduler.uses import TenantUse, view_uses
from octavo.scheduler.waits import QUEUED
from octavo.types import Usage

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler

EVENTS_TOLD = 100


@dataclass(frozen=True, slots=True)
class BlockView:
    """One entry of a block table: which block of the pool it is, and how many hold it."""

    block: int
    holders: int
    published: bool


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One choice of a request. `why` says what a waiting one waits for."""

    choice: int
    state: State
    why: str
    reason: str
    num_computed: int
    usage: Usage
    table: tuple[BlockView, ...]


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request that has not ended. Times are in seconds."""

    request_id: int
    tenant: str
    priority: int
    age: float
    seconds_left: float | None  # until its total deadline
    place: int | None  # in the queue, from 0; None unless it waits
    sequences: tuple[SequenceView, ...]


@dataclass(frozen=True, slots=True)
class PinView:
    """A pin; `filling` until its prompt has been computed."""

    tenant: str
    name: str
    strength: Strength
    num_blocks: int
    num_tokens: int
    filling: bool
    age: float
    seconds_left: float
    num_held: int = 0  # of its blocks, in the pool
    num_below: int = 0  # of its blocks, kept below for it


@dataclass(frozen=True, slots=True)
class TierView:
    """The tier below: slots taken, and what has moved since the start."""

    num_slots: int
    num_stored: int
    in_flight: int
    stored: int
    loaded: int
    failed: int
    evictions: int
    num_host_slots: int = 0  # of the slots, in host memory; the others are on disk
    num_in_host: int = 0


@dataclass(frozen=True, slots=True)
class KvView:
    """The pool as a whole: blocks by state and by kind of holder, pins, and what happened lately."""

    counts: BlockCounts
    capacity: int  # blocks that the pool can grow to
    bytes_per_block: int  # 0: not known
    block_size: int
    held_by_sequences: int  # table entries, so a shared block counts for each
    held_by_pins: int
    pin_budget: int
    pins: tuple[PinView, ...]
    below: TierView | None
    waiting: int
    running: int
    events: tuple[Event, ...]  # newest first
    event_counts: dict[str, int]
    now: float
    tenants: tuple[TenantUse, ...] = ()  # that have anything
    blocks_resident: int = 0  # that have memory behind them
    blocks_wanted: int = 0  # the size that was asked for
    why_smaller: str = ""  # in words, while the pool is smaller than that
    sessions: int = 0
    held_by_sessions: int = 0


@dataclass(frozen=True, slots=True)
class MapView:
    """One character for each block, and one number: which of `owners` holds it (-1: nobody, the first if
    several do).

    "." free, "c" cached, "t" in transfer, "s" one sequence, "S" shared by sequences, "p" a pin (and perhaps
    sequences).
    """

    states: str
    owner: tuple[int, ...]
    owners: tuple[str, ...]  # "request 17, choice 0", "pin greeting"


def view_map(scheduler: Scheduler, now: float) -> MapView:
    """Every block of the pool. O(blocks)."""
    pool = scheduler.ledger.pool
    states = ["." if name is None else "c" for name in pool.name_of[: pool.num_blocks]]
    owner, owners = [-1] * pool.num_blocks, []
    for sequence in scheduler.live.running:
        owners.append(f"request {sequence.request.request_id}, choice {sequence.choice}")
        for block in sequence.table.blocks if sequence.table is not None else ():
            owner[block] = len(owners) - 1 if owner[block] < 0 else owner[block]
            states[block] = "S" if pool.holders[block] > 1 else "s"
    owners.append("on its way to or from the tier below")
    for table in scheduler.transfers.tables():
        for block in table.blocks:
            owner[block] = len(owners) - 1 if owner[block] < 0 else owner[block]
            states[block] = "t" if states[block] in ".c" else states[block]
    for pin in scheduler.pins.all():
        owners.append(pin.name.replace(":", " ") if pin.is_of_session else f"pin {pin.name}")
        for block in pin.table.blocks if pin.table is not None else ():
            owner[block] = len(owners) - 1
            states[block] = "p"
    return MapView("".join(states), tuple(owner), tuple(owners))


def view_requests(scheduler: Scheduler, now: float) -> list[RequestView]:
    """All that have not ended, in order of arrival."""
    views = (view_request(scheduler, request_id, now) for request_id in scheduler.live.live_requests())
    return [view for view in views if view is not None]


def view_request(scheduler: Scheduler, request_id: int, now: float) -> RequestView | None:
    """The request, or None when there is no live one of that id."""
    sequences = scheduler.live.sequences_of(request_id)
    if not sequences:
        return None
    request = sequences[0].request
    total = request.timeouts.total
    line = list(scheduler.live.waiting)
    return RequestView(
        request_id,
        request.tenant,
        request.priority,
        now - request.arrival,
        None if total is None else request.arrival + total - now,
        line.index(sequences[0]) if sequences[0] in line else None,
        tuple(_view_sequence(scheduler, s, now) for s in sequences),
    )


def view_pin(pin: Pin, now: float) -> PinView:
    """One pin."""
    return PinView(
        pin.tenant,
        pin.name,
        pin.strength,
        pin.num_blocks,
        pin.num_tokens,
        pin.table is None,
        now - pin.created,
        pin.expires - now,
        0 if pin.table is None else len(pin.table),
        len(pin.names) - len(pin.missing) if pin.is_kept else 0,
    )


def view_kv(scheduler: Scheduler, now: float) -> KvView:
    """The whole pool."""
    memory, events = scheduler.ledger, scheduler.events
    pins = scheduler.pins.all()
    return KvView(
        memory.counts(),
        memory.pool.capacity,
        scheduler.config.bytes_per_block,
        memory.block_size,
        sum(len(s.table) for s in scheduler.live.running if s.table is not None),
        sum(len(pin.table) for pin in pins if pin.table is not None and not pin.is_of_session),
        scheduler.config.pin_blocks,
        tuple(view_pin(pin, now) for pin in pins if not pin.is_of_session),
        _view_tier(scheduler),
        len(scheduler.live.waiting),
        len(scheduler.live.running),
        tuple(events.recent(EVENTS_TOLD)),
        {kind.value: count for kind, count in events.counts.items()},
        now,
        view_uses(scheduler),
        memory.pool.backing.count,
        scheduler.elastic.blocks_wanted,
        scheduler.elastic.why_smaller,
        len(scheduler.session_table),
        sum(len(pin.table) for pin in pins if pin.table is not None and pin.is_of_session),
    )


def _view_tier(scheduler: Scheduler) -> TierView | None:
    transfers = scheduler.transfers
    if transfers.tier is None:
        return None
    return TierView(
        transfers.tier.num_slots,
        transfers.tier.num_stored,
        transfers.in_flight,
        transfers.num_stored,
        transfers.num_loaded,
        transfers.num_failed,
        transfers.tier.num_evictions,
        transfers.tier.num_host,
        transfers.tier.num_in_host,
    )


def _view_sequence(scheduler: Scheduler, sequence: Sequence, now: float) -> SequenceView:
    pool = scheduler.ledger.pool
    blocks = sequence.table.blocks if sequence.table is not None else []
    waits = sequence.state is State.WAITING
    wait = scheduler.live.why_waiting(sequence) if waits else QUEUED
    return SequenceView(
        sequence.choice,
        sequence.state,
        wait.in_words() if waits else "",
        wait.reason.value if waits else "",
        sequence.num_computed,
        sequence.usage(now),
        tuple(BlockView(b, pool.holders[b], pool.name_of[b] is not None) for b in blocks),
    )
