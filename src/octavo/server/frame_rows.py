"""The parts of a glimpse as JSON: short rows, with times on the engine's clock, so that a row stays the same
while only time passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.server.errors import JsonObject
from octavo.server.kv_rows import first_tokens_row

if TYPE_CHECKING:
    from octavo.engine.outputs import EngineStats, Event, Glimpse, RequestView, TableView, TierView


def holder_row(table: TableView) -> JsonObject:
    """The holder of a table."""
    row: JsonObject = {"kind": table.kind.value, "label": table.label, "tenant": table.tenant}
    if table.request_id is not None:
        row |= {"request": table.request_id, "choice": table.choice}
    return row


def request_row(request: RequestView) -> JsonObject:
    """One request with its choices; absent values are left out."""
    row: JsonObject = {
        "id": request.request_id,
        "tenant": request.tenant,
        "arrival": round(request.arrival, 3),
        "choices": [
            {
                "choice": one.choice,
                "running": one.is_running,
                "why": one.why,
                "computed": one.num_computed,
                "prompt": one.num_prompt,
                "output": one.num_output,
                "cached": one.num_cached,
                "drafted": one.num_drafted,
                "accepted": one.num_accepted,
                "preemptions": one.preemptions,
                "blocks": one.num_blocks,
                "cold": one.num_cold,
            }
            for one in request.sequences
        ],
    }
    if request.priority:
        row["priority"] = -request.priority  # as clients send it: lower is earlier
    if request.deadline is not None:
        row["deadline"] = round(request.deadline, 3)
    if request.place is not None:
        row["place"] = request.place
    if request.session:
        row["session"] = request.session
    if request.fills_pin:
        row["pin"] = request.fills_pin
    if request.split is not None:
        row["split"] = request.split.in_words()
        if request.split.left_at is not None:
            row["left_at"] = round(request.split.left_at, 3)
    return row


def event_row(event: Event) -> JsonObject:
    """The row of an event."""
    row: JsonObject = {"at": round(event.at, 3), "kind": event.kind.value, "text": event.text}
    if event.request_id is not None:
        row["request"] = event.request_id
    if event.tenant:
        row["tenant"] = event.tenant
    return row


def part_rows(glimpse: Glimpse) -> JsonObject:
    """The pool's sizes, in blocks, tokens and bytes; pins, sessions, tenants and the offload tier."""
    pool, totals = glimpse.pool, glimpse.pool.totals
    tier = None if totals is None else totals.tier
    return {
        "pool": {
            "blocks": pool.num_blocks,
            "capacity": pool.capacity,
            "block_size": pool.block_size,
            "bytes_per_block": pool.bytes_per_block,
            "device": pool.device,
        },
        "pins": [
            {
                "name": pin.name,
                "tenant": pin.tenant,
                "strength": pin.strength.value,
                "blocks": pin.num_blocks,
                "held": pin.num_held,
                "offloaded": pin.num_offloaded,
                "filling": pin.filling,
                "expires": round(pin.expires, 1),
            }
            for pin in pool.pins
        ],
        "sessions": [
            {
                "id": one.session_id,
                "tenant": one.tenant,
                "state": one.state,
                "blocks": one.num_blocks,
                "held": one.held,
                "kept": one.kept,
                "expires": round(one.expires, 1),
                "note": one.note,
            }
            for one in glimpse.sessions
        ],
        "tenants": [
            {
                "name": one.name,
                "held": one.charged,
                "cached": one.cached,
                "pinned": one.budgeted,
                "guaranteed": one.guaranteed,
                "maximum": one.maximum,
                "running": one.running,
                "waiting": one.waiting,
            }
            for one in (() if totals is None else totals.tenants)
        ],
        "first_tokens": None if totals is None else first_tokens_row(totals),
        "target": None
        if totals is None or totals.target is None
        else {"seconds": totals.target.seconds, "gaps": totals.target.gaps, "missed": totals.target.missed},
        "ranks": [
            {
                "rank": one.rank,
                "device": one.device,
                "memory": one.memory_bytes,
                "waited": round(one.waited_s),
            }
            for one in (() if totals is None else totals.ranks)
        ],
        "tier": None if tier is None else _tier_row(tier),
    }


def _tier_row(tier: TierView) -> JsonObject:
    return {
        "slots": tier.num_slots,
        "host_slots": tier.num_host_slots,
        "found": tier.num_stored,
        "in_host": tier.num_in_host,
        "cold": tier.num_cold,
        "cold_max": tier.cold_max,
        "cold_blocks_per_s": round(tier.cold_blocks_per_s),
        "in_flight": tier.in_flight,
        "stored": tier.stored,
        "loaded": tier.loaded,
        "failed": tier.failed,
    }


def stats_row(stats: EngineStats) -> JsonObject:
    """The engine's counters since its start."""
    return {
        "steps": stats.steps,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "output_tokens": stats.output_tokens,
        "preemptions": stats.preemptions,
        "evictions": stats.evictions,
        "finished": stats.requests_finished,
        "drafted": sum(stats.draft_tokens.values()),
        "accepted": sum(stats.accepted_draft_tokens.values()),
        "step_seconds": round(stats.step_seconds, 3),
    }
