"""Builds views from the parts of one scheduler. It changes nothing, and runs on the engine's thread between
two steps, so all numbers of one answer belong together.

A watching client needs a glimpse many times a second, and steps wait meanwhile. So the engine's thread only
copies: whole lists, no single blocks, and only the first of many requests, pins and sessions. Another thread
computes the changes and writes them. The pool does not know of glimpses.

    tables     every holder's block table, from which owners, sharers and counts follow
    names      the name of each block, None without a name
    offloaded  which blocks of a window are in an offload tier too: the window cycles through the pool
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from octavo.inspect.readers import (
    view_ended,
    view_first_tokens,
    view_pin,
    view_request,
    view_session,
    view_tables,
    view_target,
    view_tenants,
    view_tier,
    with_blocks,
    with_places,
    with_tables,
    with_usage,
)
from octavo.inspect.sight import Sight
from octavo.inspect.stats import EngineCounters, EngineStats
from octavo.inspect.views import Glimpse, PinView, PoolView, RequestView, SessionBlocks, Totals
from octavo.memory.holders import HolderKind
from octavo.retention.offload_stager import OffloadStager
from octavo.retention.pins import Pins
from octavo.retention.session_table import SessionTable
from octavo.retention.transfers import Transfers
from octavo.retention.warm_pins import WarmPins
from octavo.scheduler.cold_chunks import ColdChunks
from octavo.scheduler.first_tokens import FirstTokens
from octavo.scheduler.idle_memory import IdleMemory
from octavo.scheduler.live import LiveSequences
from octavo.speculation.speculator import Speculator
from octavo.step.context import Context
from octavo.step.events import EventKind
from octavo.types import RankState

EVENTS_SHOWN = 100  # per answer
OFFLOADED_WINDOW = 4096  # blocks; each is a lookup in the tier's ledger
EVENTS_GLIMPSED = 30
PINS_GLIMPSED = 200
REQUESTS_GLIMPSED = 1000
SESSIONS_GLIMPSED = 100  # the newest ones; a server may have thousands
TENANTS_GLIMPSED = 200


@dataclass(frozen=True, slots=True)
class Inspector:
    """Reads views. `tenant` is None for the operator, who sees everything; a tenant sees its own."""

    context: Context
    live: LiveSequences
    pins: Pins
    sessions: SessionTable
    warm_pins: WarmPins
    transfers: Transfers
    idle_memory: IdleMemory
    staging: OffloadStager
    speculator: Speculator | None
    cold_chunks: ColdChunks
    first_tokens: FirstTokens
    ranks: Callable[[], tuple[RankState, ...]]

    def stats(self, counters: EngineCounters) -> EngineStats:
        """All numbers of an engine; `counters` has the monotonic ones. O(running sequences)."""
        context, live, transfers, speculator = self.context, self.live, self.transfers, self.speculator
        ledger, events = context.ledger, context.events
        counts, size = ledger.counts(), ledger.block_size
        preemptions = counters.preemptions_before + live.num_preemptions
        kept = counters.kept_before + self.staging.num_kept
        waste = sum(len(s.table) * size - s.num_planned for s in live.running if s.table is not None)
        return EngineStats(
            waiting=len(live.waiting.line),
            running=len(live.running),
            blocks_total=counts.total,
            blocks_held=counts.held,
            blocks_cached=counts.cached,
            blocks_free=counts.free,
            device=context.config.device,
            block_size=size,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=counters.output_tokens,
            steps=counters.steps,
            preemptions=preemptions,
            preemptions_kept=kept,
            preemptions_recomputed=preemptions - kept,
            tokens_recomputed=counters.tokens_recomputed_before + live.tokens_recomputed,
            requests_finished=counters.finished,
            tail_slots_wasted=waste,
            step_seconds=counters.step_seconds,
            schedule_seconds=counters.schedule_seconds,
            mask_seconds=counters.mask_seconds,
            device_steps=dict(counters.device_steps),
            forced_tokens=counters.forced_tokens,
            event_gaps=counters.event_gaps,
            events_lost=counters.events_lost,
            draft_tokens={} if speculator is None else dict(speculator.drafted),
            accepted_draft_tokens={} if speculator is None else dict(speculator.accepted),
            drafter_bytes=0 if speculator is None else speculator.num_bytes,
            evictions=events.blocks[EventKind.EVICTED],
            blocks_resident=ledger.pool.backing.count,
            blocks_wanted=self.idle_memory.blocks_wanted,
            blocks_pinned=self.pins.num_blocks,
            blocks_offloaded=0 if transfers.tier is None else transfers.tier.num_stored,
            blocks_stored=transfers.num_stored,
            blocks_loaded=transfers.num_loaded,
            transfers_failed=transfers.num_failed,
            sessions=len(self.sessions),
            blocks_kept_offloaded=0 if transfers.tier is None else transfers.tier.num_kept,
            blocks_cold=0 if transfers.tier is None else transfers.tier.num_read,
            events={kind.value: events.counts[kind] for kind in EventKind},
            ranks=self.ranks(),
            target=view_target(self.context.target),
            first_tokens=view_first_tokens(self.first_tokens),
            ages_at_hit=ledger.history.ages_at_hit,
            ages_at_eviction=ledger.history.ages_at_eviction,
        )

    def kv(self, now: float, tenant: str | None = None) -> PoolView:
        """The pool, or the tenant's part of it. O(live sequences + pins + events), for the operator O(blocks
        held), too."""
        return self._pool(Sight(tenant), now)

    def glimpse(self, now: float, offloaded_from: int = 0, tenant: str | None = None) -> Glimpse:
        """All data of the live map, or the tenant's part of it. O(blocks), at the speed of copying lists, and
        O(`OFFLOADED_WINDOW` + requests)."""
        sight, live, tier = Sight(tenant), self.live, self.transfers.tier
        ledger, pool = self.context.ledger, self.context.ledger.pool
        blocks, places = sight.blocks(ledger), sight.places(live)
        names = blocks.names(pool)
        offloaded_from = offloaded_from if offloaded_from < pool.num_blocks else 0
        window = names[offloaded_from : offloaded_from + OFFLOADED_WINDOW]
        requests = islice(sight.requests(live), REQUESTS_GLIMPSED)
        sessions = islice(sight.own(self.sessions.newest_first()), SESSIONS_GLIMPSED)
        return Glimpse(
            pool=self._pool(sight, now, is_glimpse=True),
            names=names,
            offloaded_from=offloaded_from,
            offloaded=bytes(tier is not None and name is not None and name in tier for name in window),
            tables=tuple(view_tables(live, blocks)),
            requests=tuple([view_request(live, sequences, places, sight, now) for sequences in requests]),
            sessions=tuple([view_session(session, self._bytes_per_block) for session in sessions]),
        )

    def requests(
        self, now: float, tenant: str | None = None, request_id: int | None = None
    ) -> list[RequestView]:
        """All unfinished requests, or the tenant's, in order of arrival, without their block tables; or only
        this one with them, if it is unfinished."""
        if request_id is not None:
            view = self.request(request_id, now, tenant)
            return [] if view is None else [view]
        sight, live = Sight(tenant), self.live
        places = sight.places(live)
        return [with_usage(view_request(live, s, places, sight, now), s) for s in sight.requests(live)]

    def request(self, request_id: int, now: float, tenant: str | None = None) -> RequestView | None:
        """An unfinished request, with its block tables, or one of the last that have ended; None if it is
        neither, or another tenant's."""
        sight, live, ledger = Sight(tenant), self.live, self.context.ledger
        sequences = live.sequences_of(request_id)
        if not sequences:
            card = live.ended.find(request_id)
            return view_ended(card, sight, now) if card is not None and sight.sees(card.tenant) else None
        if not sight.sees(sequences[0].request.tenant):
            return None
        view = with_usage(view_request(live, sequences, sight.places(live), sight, now), sequences)
        return with_tables(view, sequences, ledger.pool, sight.blocks(ledger))

    def all_pins(self, now: float, tenant: str | None = None) -> list[PinView]:
        """All pins that clients named, or the tenant's, oldest first."""
        return [view_pin(pin, now) for pin in Sight(tenant).own(self.pins.named())]

    def session(self, session_id: str) -> SessionBlocks:
        """The session's blocks; none for an unknown session. O(blocks)."""
        session = self.sessions.get(session_id)
        if session is None:
            return SessionBlocks()
        is_stuck = session.hold is not None and self.warm_pins.is_stuck(session.hold)
        view = view_session(session, self._bytes_per_block)
        return with_places(view, session, self.context.ledger.pool, self.transfers.tier, is_stuck=is_stuck)

    @property
    def _bytes_per_block(self) -> int:
        return self.context.config.bytes_per_block

    def _pool(self, sight: Sight, now: float, *, is_glimpse: bool = False) -> PoolView:
        ledger, config = self.context.ledger, self.context.config
        held = Counter[HolderKind]()
        for holder in sight.own(ledger.holders.values()):
            held[holder.kind] += len(holder.blocks)
        running = Counter(request.tenant for request in sight.own(self.live.running_requests()))
        waiting = Counter(request.tenant for request in sight.own(self.live.waiting_requests()))
        pins = islice(sight.own(self.pins.named()), PINS_GLIMPSED if is_glimpse else None)
        return PoolView(
            now=now,
            tenant=sight.tenant,
            block_size=ledger.block_size,
            bytes_per_block=self._bytes_per_block,
            num_blocks=ledger.pool.num_blocks,
            capacity=ledger.pool.capacity,
            device=config.device,
            held_by_sequences=held[HolderKind.SEQUENCE],
            held_by_pins=held[HolderKind.PIN],
            held_by_sessions=held[HolderKind.SESSION],
            waiting=waiting.total(),
            running=running.total(),
            pins=tuple(view_pin(pin, now) for pin in pins),
            events=sight.events(self.context.events, EVENTS_GLIMPSED if is_glimpse else EVENTS_SHOWN),
            totals=self._totals(running, waiting, is_glimpse) if sight.is_whole else None,
        )

    def _totals(self, running: Counter[str], waiting: Counter[str], is_glimpse: bool) -> Totals:
        ledger, pins = self.context.ledger, self.pins
        tenants = view_tenants(ledger, pins, running, waiting)
        return Totals(
            counts=ledger.counts(),
            pin_budget=self.context.config.pin_blocks,
            num_sessions=len(self.sessions),
            blocks_resident=ledger.pool.backing.count,
            blocks_wanted=self.idle_memory.blocks_wanted,
            why_smaller=self.idle_memory.why_smaller,
            event_counts={kind.value: count for kind, count in self.context.events.counts.items()},
            tenants=tuple(
                islice(tenants, TENANTS_GLIMPSED) if is_glimpse else with_blocks(tenants, ledger, pins)
            ),
            tier=view_tier(self.transfers, self.cold_chunks.blocks_per_s),
            ranks=self.ranks(),
            target=view_target(self.context.target),
            first_tokens=view_first_tokens(self.first_tokens),
        )
