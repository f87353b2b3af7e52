"""What a person may ask of the scheduler, as frozen values: who waits and why, who holds what, what happened.

Made on the engine's thread between two steps, so that all numbers of one answer belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo.inspect.uses import TenantUse, view_uses
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import BlockCounts, Ledger
from octavo.retention.pins import Pin, Pins, Strength
from octavo.retention.transfers import Transfers
from octavo.scheduler.idle_memory import IdleMemory
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.scheduler.waits import QUEUED
from octavo.step.context import Context
from octavo.step.events import Event
from octavo.types import Usage

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
    in_grammar: bool = False  # a grammar leads its output now
    forced_tokens: int = 0  # of its output, those that the grammar forced


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
    follows: str = ""  # what its output must follow: the client's name for it, and its kind
    let_go: tuple[str, ...] = ()  # what of its schemas is not followed: keywords and their places


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
    waiting: int  # requests, also below
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
    device: str = ""  # where the blocks lie, and what computes


@dataclass(frozen=True, slots=True)
class MapView:
    """One character for each block, and one number: which of `owners` holds it (-1: no holder, the first if
    several do).

    "." free, "c" cached, "t" in transfer, "s" one sequence, "S" shared by sequences, "p" a pin (and perhaps
    sequences).
    """

    states: str
    owner: tuple[int, ...]
    owners: tuple[str, ...]  # "request 17, choice 0", "pin greeting"


_MAP_LETTERS = {  # a later kind is drawn over an earlier one; any other as a pin
    HolderKind.FETCH: "t",
    HolderKind.STORE: "t",
    HolderKind.SEQUENCE: "s",
    HolderKind.SESSION: "p",
    HolderKind.PIN: "p",
}


def view_map(ledger: Ledger) -> MapView:
    """Every block of the pool. O(blocks)."""
    pool = ledger.pool
    states = ["." if name is None else "c" for name in pool.name_of[: pool.num_blocks]]
    owner, owners = draw(ledger.holders.values(), states)
    for block, letter in enumerate(states):
        if letter == "s" and pool.holders[block] > 1:
            states[block] = "S"
    return MapView("".join(states), owner, owners)


def draw(
    holders: Iterable[Holder], states: list[str], numbers: Mapping[int, int] | None = None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Write the letters of these holders' blocks into `states`, by their places in the pool or by these
    `numbers`; returns who owns which block, and their labels. O(blocks held)."""
    order = {kind: place for place, kind in enumerate(_MAP_LETTERS)}
    owner, owners = [-1] * len(states), dict[tuple[str, str], int]()
    for holder in sorted(holders, key=lambda holder: order.get(holder.kind, len(order))):
        number = owners.setdefault((holder.tenant, holder.label), len(owners))
        letter = _MAP_LETTERS.get(holder.kind, "p")
        for block in holder.blocks if numbers is None else map(numbers.__getitem__, holder.blocks):
            if states[block] != letter or owner[block] < 0 or letter == "p":
                owner[block] = number
            states[block] = letter
    return tuple(owner), tuple(label for _, label in owners)


def view_request(ledger: Ledger, live: LiveSequences, request_id: int, now: float) -> RequestView | None:
    """The request, or None when there is no live one of that id."""
    sequences = live.sequences_of(request_id)
    if not sequences:
        return None
    request = sequences[0].request
    total, grammar = request.timeouts.total, request.params.grammar
    line = list(live.waiting)
    return RequestView(
        request_id,
        request.tenant,
        request.priority,
        now - request.arrival,
        None if total is None else request.arrival + total - now,
        line.index(sequences[0]) if sequences[0] in line else None,
        tuple(_view_sequence(ledger, live, s, now) for s in sequences),
        "" if grammar is None else f"{grammar.param} ({grammar.kind})",
        () if grammar is None else grammar.let_go,
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


def view_kv(
    context: Context,
    live: LiveSequences,
    pins: Pins,
    num_sessions: int,
    transfers: Transfers,
    idle_memory: IdleMemory,
    now: float,
) -> KvView:
    """The whole pool."""
    ledger, events = context.ledger, context.events
    held = Counter[HolderKind]()  # table entries, so a shared block counts for each
    for holder in ledger.holders.values():
        held[holder.kind] += len(holder.blocks)
    return KvView(
        ledger.counts(),
        ledger.pool.capacity,
        context.config.bytes_per_block,
        ledger.block_size,
        held[HolderKind.SEQUENCE],
        held[HolderKind.PIN],
        context.config.pin_blocks,
        tuple(view_pin(pin, now) for pin in pins.named()),
        view_tier(transfers),
        len(live.waiting_requests()),
        len(live.running_requests()),
        tuple(events.recent(EVENTS_TOLD)),
        {kind.value: count for kind, count in events.counts.items()},
        now,
        view_uses(ledger, live, pins),
        ledger.pool.backing.count,
        idle_memory.blocks_wanted,
        idle_memory.why_smaller,
        num_sessions,
        held[HolderKind.SESSION],
        context.config.device,
    )


def view_tier(transfers: Transfers) -> TierView | None:
    """The tiers below, or None where there is none."""
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


def _view_sequence(ledger: Ledger, live: LiveSequences, sequence: Sequence, now: float) -> SequenceView:
    pool = ledger.pool
    waits = sequence.state is State.WAITING
    wait = live.why_waiting(sequence) if waits else QUEUED
    return SequenceView(
        sequence.choice,
        sequence.state,
        wait.in_words() if waits else "",
        wait.reason.value if waits else "",
        sequence.num_computed,
        sequence.usage(now),
        tuple(BlockView(b, pool.holders[b], pool.name_of[b] is not None) for b in sequence.holder.blocks),
        sequence.in_grammar,
        sequence.num_forced,
    )
