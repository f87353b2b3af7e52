"""The parts of one scheduler that views read, and the questions that they answer. It changes nothing, and is
asked on the engine's thread between two steps, so all numbers of one answer belong together."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.inspect.glimpse import Glimpse, Glimpsed, take_glimpse
from octavo.inspect.own_views import OwnKvView, view_own_kv, view_own_map, view_own_request
from octavo.inspect.session_views import SessionBlocks, view_session
from octavo.inspect.stats import EngineCounters, EngineStats
from octavo.inspect.views import (
    KvView,
    MapView,
    PinView,
    RequestView,
    view_kv,
    view_map,
    view_pin,
    view_request,
)
from octavo.retention.pins import Pins
from octavo.retention.session_table import SessionTable
from octavo.retention.staging import Staging
from octavo.retention.transfers import Transfers
from octavo.retention.warm_pins import WarmPins
from octavo.scheduler.idle_memory import IdleMemory
from octavo.scheduler.live import LiveSequences
from octavo.speculation.speculator import Speculator
from octavo.step.context import Context
from octavo.step.events import EventKind


@dataclass(frozen=True, slots=True)
class Inspector:
    """Reads. `tenant` is None for the operator, who sees everything; a tenant sees its own."""

    context: Context
    live: LiveSequences
    pins: Pins
    sessions: SessionTable
    warm_pins: WarmPins
    transfers: Transfers
    idle_memory: IdleMemory
    staging: Staging
    speculator: Speculator | None

    def stats(self, counters: EngineCounters) -> EngineStats:
        """All numbers of an engine, of which `counters` has what only grows. O(sequences that run)."""
        context, live, transfers, speculator = self.context, self.live, self.transfers, self.speculator
        ledger, events = context.ledger, context.events
        counts, size = ledger.counts(), ledger.block_size
        preemptions = counters.preemptions_before + live.num_preemptions
        kept = counters.kept_before + self.staging.num_kept
        waste = sum(len(s.table.blocks) * size - s.num_planned for s in live.running if s.table is not None)
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
            forced_tokens=counters.forced_tokens,
            draft_tokens={} if speculator is None else dict(speculator.drafted),
            accepted_draft_tokens={} if speculator is None else dict(speculator.accepted),
            drafter_bytes=0 if speculator is None else speculator.num_bytes,
            evictions=events.blocks[EventKind.EVICTED],
            blocks_resident=ledger.pool.backing.count,
            blocks_wanted=self.idle_memory.blocks_wanted,
            blocks_pinned=self.pins.num_blocks,
            blocks_below=0 if transfers.tier is None else transfers.tier.num_stored,
            blocks_stored=transfers.num_stored,
            blocks_loaded=transfers.num_loaded,
            transfers_failed=transfers.num_failed,
            sessions=len(self.sessions),
            blocks_kept_below=0 if transfers.tier is None else transfers.tier.num_kept,
            events={kind.value: events.counts[kind] for kind in EventKind},
        )

    def kv(self, now: float) -> KvView:
        """Pool, pins, and what happened lately."""
        return view_kv(
            self.context, self.live, self.pins, len(self.sessions), self.transfers, self.idle_memory, now
        )

    def own_kv(self, tenant: str, now: float) -> OwnKvView:
        """What of it is the tenant's."""
        return view_own_kv(self.context, self.live, self.pins, tenant, now)

    def map(self, tenant: str | None = None) -> MapView:
        """Every block and its owners; or only the tenant's."""
        return view_map(self.context.ledger) if tenant is None else view_own_map(self.context.ledger, tenant)

    def glimpse(self, now: float, below_from: int = 0, tenant: str | None = None) -> Glimpse:
        """All that the live map shows, as cheaply as can be; see there."""
        parts = Glimpsed(self.context, self.live, self.pins, self.sessions, self.transfers)
        return take_glimpse(parts, now, below_from, tenant)

    def requests(
        self, now: float, tenant: str | None = None, request_id: int | None = None
    ) -> list[RequestView]:
        """All that have not ended, or the tenant's, in order of arrival; or this one, if it is among them."""
        wanted = self.live.live_requests() if request_id is None else [request_id]
        views = (self.request(one, now, tenant) for one in wanted)
        return [view for view in views if view is not None]

    def request(self, request_id: int, now: float, tenant: str | None = None) -> RequestView | None:
        """One of them; None when it has ended, or never was, or is not the tenant's."""
        if tenant is None:
            return view_request(self.context.ledger, self.live, request_id, now)
        return view_own_request(self.context.ledger, self.live, tenant, request_id, now)

    def all_pins(self, now: float, tenant: str | None = None) -> list[PinView]:
        """All pins that clients have named, or the tenant's of them, oldest first."""
        return [view_pin(pin, now) for pin in self.pins.named() if tenant in (None, pin.tenant)]

    def session(self, session_id: str) -> SessionBlocks:
        """The session's blocks; none of one that is not known (yet). O(blocks)."""
        return view_session(self.context, self.sessions, self.warm_pins, self.transfers.tier, session_id)
