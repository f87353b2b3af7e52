"""A glimpse: everything that the live map shows, copied on the engine's thread between two steps.

Steps wait meanwhile, so the engine's thread only copies: whole lists, no block by itself. Another thread
finds out what changed and writes it. One is taken only while a client watches; nothing in the pool knows it.

    tables    every holder's block table: the truth, from which owners, sharers and counts follow
    names     the name of each block, None where it has none
    below     which of `BELOW_WINDOW` blocks can be found below, too: the pool is gone through in turn

A tenant's glimpse has that tenant's tables, names and requests alone, and its blocks by its own numbers:
`own_views` says what it may know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from octavo.inspect.own_views import number_blocks, own_event, own_holders
from octavo.inspect.views import TierView, view_tier
from octavo.memory.holders import HolderKind
from octavo.memory.ledger import Ledger
from octavo.retention.pins import Pins, Strength
from octavo.retention.session_table import SessionTable
from octavo.retention.transfers import Transfers
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.step.context import Context
from octavo.step.events import EVENTS_MAX, Event

BELOW_WINDOW = 4096  # blocks; each is a look into the tier's ledger
EVENTS_GLIMPSED = 30
SESSIONS_GLIMPSED = 100  # of the newest; a server may have thousands
PINS_GLIMPSED = 200
REQUESTS_GLIMPSED = 1000
TENANTS_GLIMPSED = 200


@dataclass(frozen=True, slots=True)
class TableGlimpse:
    """One holder and its blocks, in order. No two tables have the same number."""

    number: int
    kind: HolderKind
    tenant: str
    label: str
    request_id: int | None  # of a sequence
    choice: int | None
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class SequenceGlimpse:
    """One choice of a request. `why` says what a waiting one waits for."""

    choice: int
    is_running: bool
    why: str
    num_computed: int
    num_prompt: int
    num_output: int
    num_cached: int
    num_drafted: int
    num_accepted: int
    preemptions: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class RequestGlimpse:
    """A request that has not ended. Times are on the engine's clock, in seconds."""

    request_id: int
    tenant: str
    priority: int
    arrival: float
    deadline: float | None
    place: int | None  # in the queue, from 0; None unless it waits, or where it is not told
    session: str
    fills_pin: str
    sequences: tuple[SequenceGlimpse, ...]


@dataclass(frozen=True, slots=True)
class PinGlimpse:
    """A pin that a client named."""

    tenant: str
    name: str
    strength: Strength
    num_blocks: int
    num_held: int
    num_below: int
    filling: bool
    expires: float


@dataclass(frozen=True, slots=True)
class SessionGlimpse:
    """A chat session that the scheduler knows."""

    session_id: str
    tenant: str
    state: str
    num_blocks: int
    num_held: int
    num_kept: int  # below
    expires: float
    note: str


@dataclass(frozen=True, slots=True)
class TenantGlimpse:
    """What one tenant holds, beside its bounds in blocks."""

    name: str
    held: int
    cached: int
    pinned: int
    guaranteed: int
    maximum: int | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The whole, at one moment `now` of the engine's clock."""

    now: float
    block_size: int
    bytes_per_block: int  # 0: not known
    num_blocks: int
    capacity: int  # blocks that the pool can grow to
    names: list[bytes | None]  # by block
    below_from: int  # the first block of the window
    below: bytes  # 1 for each block of it that is below, too
    tables: tuple[TableGlimpse, ...]
    requests: tuple[RequestGlimpse, ...]
    pins: tuple[PinGlimpse, ...]
    sessions: tuple[SessionGlimpse, ...]
    tenants: tuple[TenantGlimpse, ...]  # none where a tenant looks
    tier: TierView | None  # likewise
    events: tuple[Event, ...]  # newest first
    device: str = ""  # where the blocks lie, and what computes

    @property
    def next_below_from(self) -> int:
        """Where the next glimpse's window begins: the pool is gone round."""
        after = self.below_from + len(self.below)
        return after if after < self.num_blocks else 0


@dataclass(frozen=True, slots=True)
class Glimpsed:
    """The parts of a scheduler that a glimpse reads."""

    context: Context
    live: LiveSequences
    pins: Pins
    sessions: SessionTable
    transfers: Transfers


def take_glimpse(parts: Glimpsed, now: float, below_from: int = 0, tenant: str | None = None) -> Glimpse:
    """Everything at this moment; or, of a tenant, its own. O(blocks), at the speed of copying lists, and
    O(`BELOW_WINDOW` + requests)."""
    ledger, live = parts.context.ledger, parts.live
    pool, tier = ledger.pool, parts.transfers.tier
    tables = tuple(_tables(ledger, live, tenant))
    names = pool.name_of[:]
    if tenant is not None:
        numbers = number_blocks(table.blocks for table in tables)
        names = [pool.name_of[block] for block in numbers]
        names += [None] * (pool.capacity - len(names))
        tables = tuple(
            replace(table, blocks=list(map(numbers.__getitem__, table.blocks))) for table in tables
        )
    below_from = below_from if below_from < pool.num_blocks else 0
    window = names[below_from : below_from + BELOW_WINDOW]
    return Glimpse(
        now=now,
        block_size=ledger.block_size,
        bytes_per_block=parts.context.config.bytes_per_block,
        num_blocks=pool.num_blocks,
        capacity=pool.capacity,
        names=names,
        below_from=below_from,
        below=bytes(tier is not None and name is not None and name in tier for name in window),
        tables=tables,
        requests=tuple(_requests(live, tenant)),
        pins=tuple(_pins(parts.pins, tenant)),
        sessions=tuple(_sessions(parts.sessions, tenant)),
        tenants=tuple(_tenants(ledger, live, parts.pins)) if tenant is None else (),
        tier=view_tier(parts.transfers) if tenant is None else None,
        events=tuple(_events(parts.context, tenant)),
        device=parts.context.config.device,
    )


def _tables(ledger: Ledger, live: LiveSequences, tenant: str | None) -> Iterator[TableGlimpse]:
    choices = {sequence.table: sequence.choice for sequence in live.running}
    for holder in ledger.holders.values() if tenant is None else own_holders(ledger, tenant):
        table = holder.table
        assert table is not None, "a holder without blocks is not registered"
        yield TableGlimpse(
            table.number,
            holder.kind,
            holder.tenant,
            holder.label,
            holder.group if holder.kind is HolderKind.SEQUENCE else None,
            choices.get(table),
            table.blocks[:],
        )


def _requests(live: LiveSequences, tenant: str | None) -> Iterator[RequestGlimpse]:
    places = {sequence: place for place, sequence in enumerate(live.waiting)}
    own = (found for found in live.unfinished.values() if tenant in (None, found[0].request.tenant))
    for sequences in islice(own, REQUESTS_GLIMPSED):
        request = sequences[0].request
        total = request.timeouts.total
        yield RequestGlimpse(
            request.request_id,
            request.tenant,
            request.priority,
            request.arrival,
            None if total is None else request.arrival + total,
            places.get(sequences[0]) if tenant is None else None,
            request.session,
            request.fills_pin,
            tuple(_sequence(live, sequence, tenant or "") for sequence in sequences),
        )


def _sequence(live: LiveSequences, sequence: Sequence, tenant: str) -> SequenceGlimpse:
    waits, drafting = sequence.state is State.WAITING, sequence.drafting
    return SequenceGlimpse(
        choice=sequence.choice,
        is_running=not waits,
        why=live.why_waiting(sequence).in_words_of(tenant) if waits else "",
        num_computed=sequence.num_computed,
        num_prompt=sequence.num_prompt,
        num_output=sequence.num_output,
        num_cached=sequence.num_cached,
        num_drafted=0 if drafting is None else drafting.num_drafted,
        num_accepted=0 if drafting is None else drafting.num_accepted,
        preemptions=sequence.preemptions,
        num_blocks=0 if sequence.table is None else len(sequence.table.blocks),
    )


def _pins(pins: Pins, tenant: str | None) -> Iterator[PinGlimpse]:
    own = (pin for pin in pins.named() if tenant in (None, pin.tenant))
    for pin in islice(own, PINS_GLIMPSED):
        yield PinGlimpse(
            pin.tenant,
            pin.name,
            pin.strength,
            pin.num_blocks,
            0 if pin.table is None else len(pin.table),
            len(pin.names) - len(pin.missing) if pin.is_kept else 0,
            pin.table is None,
            pin.expires,
        )


def _sessions(sessions: SessionTable, tenant: str | None) -> Iterator[SessionGlimpse]:
    own = (session for session in sessions.newest_first() if tenant in (None, session.tenant))
    for session in islice(own, SESSIONS_GLIMPSED):
        hold = session.hold
        yield SessionGlimpse(
            session.session_id,
            session.tenant,
            session.state,
            len(session.names),
            max((len(pin.holder.blocks) for pin in session.pins), default=0),
            len(hold.names) - len(hold.missing) if hold is not None and hold.is_kept else 0,
            session.expires,
            session.note,
        )


def _tenants(ledger: Ledger, live: LiveSequences, pins: Pins) -> Iterator[TenantGlimpse]:
    running = Counter(request.tenant for request in live.running_requests())
    waiting = Counter(request.tenant for request in live.waiting_requests())
    for policy in ledger.quotas.policies()[:TENANTS_GLIMPSED]:
        name = policy.name
        yield TenantGlimpse(
            name,
            ledger.quotas.charged(name),
            ledger.quotas.cached(name),
            pins.blocks_of(name),
            policy.guaranteed,
            policy.maximum,
            running[name],
            waiting[name],
        )


def _events(context: Context, tenant: str | None) -> Iterator[Event]:
    if tenant is None:
        yield from context.events.recent(EVENTS_GLIMPSED)
        return
    own = (event for event in context.events.recent(EVENTS_MAX) if event.tenant == tenant)
    for event in islice(own, EVENTS_GLIMPSED):
        yield own_event(event)
