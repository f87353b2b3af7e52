"""Builds the view of each thing of the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from octavo.inspect.sight import Sight, VisibleBlocks
from octavo.inspect.views import (
    BlockView,
    FirstTokenView,
    PinView,
    RequestView,
    SequenceView,
    SessionBlocks,
    TableView,
    TargetView,
    TenantUse,
    TierView,
)
from octavo.memory.holders import HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.pool import BlockPool
from octavo.memory.tiers import OffloadTier
from octavo.retention.pins import Pin, Pins
from octavo.retention.session_table import Session
from octavo.retention.transfers import Transfers
from octavo.scheduler.ended_requests import EndedChoice, EndedRequest
from octavo.scheduler.first_tokens import FirstTokens
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.step.latency_target import LatencyTarget


def view_request(
    live: LiveSequences, sequences: list[Sequence], places: Mapping[Sequence, int], sight: Sight, now: float
) -> RequestView:
    """The request of these unfinished sequences; `places`: of all waiting sequences."""
    request = sequences[0].request
    total, grammar = request.timeouts.total, request.params.grammar
    return RequestView(
        now,
        request.request_id,
        request.tenant,
        request.priority,
        request.arrival,
        None if total is None else request.arrival + total,
        places.get(sequences[0]),
        request.session,
        request.fills_pin,
        "" if grammar is None else f"{grammar.param} ({grammar.kind})",
        () if grammar is None else grammar.not_enforced,
        tuple([view_sequence(live, sequence, sight) for sequence in sequences]),
        sight.split(sequences[0].split),
    )


def view_ended(card: EndedRequest, sight: Sight, now: float) -> RequestView:
    """The card of a request that has ended."""
    choices = [_view_ended_choice(number, card.choices[number]) for number in sorted(card.choices)]
    return RequestView(
        now,
        card.request_id,
        card.tenant,
        card.priority,
        card.arrival,
        None,
        None,
        card.session,
        card.fills_pin,
        card.follows,
        card.not_enforced,
        tuple(choices),
        sight.split(card.split),
        card.ended,
    )


def _view_ended_choice(number: int, choice: EndedChoice) -> SequenceView:
    usage = choice.usage
    return SequenceView(
        choice=number,
        state=State.FINISHED,
        why="",
        reason="",
        num_computed=0,
        num_prompt=usage.num_prompt,
        num_output=usage.num_output,
        num_cached=usage.num_cached,
        num_drafted=usage.num_drafted,
        num_accepted=usage.num_accepted,
        preemptions=usage.preemptions,
        num_blocks=0,
        num_cold=0,
        in_grammar=False,
        forced_tokens=0,
        blocks_peak=usage.blocks_peak,
        block_seconds=usage.block_seconds,
        phases=usage.phases,
        finish=choice.finish.value,
        error=choice.error,
    )


def view_sequence(live: LiveSequences, sequence: Sequence, sight: Sight) -> SequenceView:
    """The cheap fields only."""
    drafting = sequence.drafting
    wait = live.why_waiting(sequence) if sequence.state is State.WAITING else None
    return SequenceView(
        choice=sequence.choice,
        state=sequence.state,
        why="" if wait is None else sight.words(wait),
        reason="" if wait is None else wait.reason.value,
        num_computed=sequence.num_computed,
        num_prompt=sequence.num_prompt,
        num_output=sequence.num_output,
        num_cached=sequence.num_cached,
        num_drafted=0 if drafting is None else drafting.num_drafted,
        num_accepted=0 if drafting is None else drafting.num_accepted,
        preemptions=sequence.preemptions,
        num_blocks=0 if sequence.table is None else len(sequence.table.blocks),
        num_cold=0 if sequence.table is None else len(sequence.table.cold),
        in_grammar=sequence.in_grammar,
        forced_tokens=sequence.num_forced,
    )


def with_usage(view: RequestView, sequences: list[Sequence]) -> RequestView:
    """Add the use of blocks over time."""
    full = []
    for one, sequence in zip(view.sequences, sequences, strict=True):
        usage = sequence.usage(view.now)
        peak, seconds = usage.blocks_peak, usage.block_seconds
        full.append(replace(one, blocks_peak=peak, block_seconds=seconds, phases=usage.phases))
    return replace(view, sequences=tuple(full))


def with_tables(
    view: RequestView, sequences: list[Sequence], pool: BlockPool, blocks: VisibleBlocks
) -> RequestView:
    """Add the block tables of its sequences. O(their blocks)."""
    full = []
    for one, sequence in zip(view.sequences, sequences, strict=True):
        held = sequence.holder.blocks
        entries = zip(held, blocks.numbered(held), strict=True)
        table = (BlockView(n, blocks.num_holders[b], pool.name_of[b] is not None) for b, n in entries)
        full.append(replace(one, table=tuple(table)))
    return replace(view, sequences=tuple(full))


def view_tables(live: LiveSequences, blocks: VisibleBlocks) -> Iterator[TableView]:
    """Every holder's block table."""
    choices = {sequence.table: sequence.choice for sequence in live.running}
    for holder in blocks.holders:
        table = holder.table
        assert table is not None, "a holder without blocks is not registered"
        yield TableView(
            table.number,
            holder.kind,
            holder.tenant,
            holder.label,
            holder.group if holder.kind is HolderKind.SEQUENCE else None,
            choices.get(table),
            blocks.numbered(table.blocks),
        )


def view_pin(pin: Pin, now: float) -> PinView:
    """The view of a pin."""
    return PinView(
        now=now,
        tenant=pin.tenant,
        name=pin.name,
        strength=pin.strength,
        num_blocks=pin.num_blocks,
        num_tokens=pin.num_tokens,
        filling=pin.table is None,
        created=pin.created,
        expires=pin.expires,
        num_held=0 if pin.table is None else len(pin.table),
        num_offloaded=_num_kept(pin),
    )


def view_session(session: Session, bytes_per_block: int) -> SessionBlocks:
    """The cheap fields only. O(1), except for a session that was resumed while its blocks were held."""
    tables = [pin.holder.blocks for pin in session.pins]
    return SessionBlocks(
        session_id=session.session_id,
        tenant=session.tenant,
        state=session.state,
        num_blocks=len(session.names),
        held=len(tables[0]) if len(tables) == 1 else len(set[int]().union(*tables)),
        kept=0 if session.hold is None else _num_kept(session.hold),
        expires=session.expires,
        note=session.note,
        bytes_per_block=bytes_per_block,
    )


def with_places(
    view: SessionBlocks, session: Session, pool: BlockPool, tier: OffloadTier | None, *, is_stuck: bool
) -> SessionBlocks:
    """Add the places of its blocks. O(blocks)."""
    return replace(
        view,
        in_pool=sum(pool.find(name) is not None for name in session.names),
        offloaded=0 if tier is None else sum(name in tier for name in session.names),
        stuck=is_stuck,
        num_suspended=session.num_suspended,
        is_resumed=session.resumed is not None and session.resumed.table is not None,
    )


def view_tenants(
    ledger: Ledger, pins: Pins, running: Mapping[str, int], waiting: Mapping[str, int]
) -> Iterator[TenantUse]:
    """Every tenant ever seen, with its cheap fields; `running`, `waiting`: requests of each."""
    quotas = ledger.quotas
    for policy in quotas.policies():
        name = policy.name
        yield TenantUse(
            name=name,
            running=running.get(name, 0),
            waiting=waiting.get(name, 0),
            charged=quotas.charged(name),
            cached=quotas.cached(name),
            budgeted=pins.blocks_of(name),
            guaranteed=policy.guaranteed,
            maximum=policy.maximum,
        )


def with_blocks(uses: Iterator[TenantUse], ledger: Ledger, pins: Pins) -> Iterator[TenantUse]:
    """Tenants that use anything, by name, with their blocks. O(blocks held)."""
    held: dict[str, set[int]] = {}
    for holder in ledger.holders.values():
        if holder.kind not in (HolderKind.FETCH, HolderKind.STORE):  # short-lived
            held.setdefault(holder.tenant, set()).update(holder.blocks)
    pinned = Counter[str]()
    for pin in pins.all():
        pinned[pin.tenant] += pin.num_blocks
    for use in sorted(uses, key=lambda use: use.name):
        if use.waiting or use.name in held or use.name in pinned:
            blocks_held = len(held.get(use.name, ()))
            yield replace(use, blocks_held=blocks_held, blocks_pinned=pinned[use.name])


def view_target(target: LatencyTarget) -> TargetView | None:
    """The target and its results; None without one."""
    if target.seconds is None:
        return None
    return TargetView(
        target.seconds,
        target.last_predicted_s,
        target.margin,
        target.num_gaps,
        target.num_missed,
        target.num_missed_alone,
    )


def view_first_tokens(first: FirstTokens) -> FirstTokenView | None:
    """The target and its results; None without one."""
    if first.seconds is None:
        return None
    counts = (first.num_predicted, first.num_late, first.num_shed)
    return FirstTokenView(first.seconds, first.last_predicted_s, *counts)


def view_tier(transfers: Transfers, cold_blocks_per_s: float | None) -> TierView | None:
    """The offload tiers; None without any."""
    tier = transfers.tier
    if tier is None:
        return None
    return TierView(
        num_slots=tier.num_slots,
        num_stored=tier.num_stored,
        in_flight=transfers.in_flight,
        stored=transfers.num_stored,
        loaded=transfers.num_loaded,
        failed=transfers.num_failed,
        evictions=tier.num_evictions,
        num_host_slots=tier.num_host,
        num_in_host=tier.num_in_host,
        num_cold=tier.num_read,
        cold_max=tier.num_to_read,
        cold_blocks_per_s=cold_blocks_per_s or 0.0,
    )


def _num_kept(pin: Pin) -> int:
    """The session's blocks in the tier that only damage drops."""
    return len(pin.names) - len(pin.missing) if pin.is_kept else 0
