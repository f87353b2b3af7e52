"""The engine's views as JSON. A tenant sees only the fields that are listed here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import structs

from octavo.routing.slots import with_slot
from octavo.server.errors import JsonObject
from octavo.server.former_names import with_former_fields

if TYPE_CHECKING:
    from octavo.engine.outputs import (
        PinView,
        PoolView,
        PromptSplit,
        RequestView,
        SequenceView,
        TenantUse,
        Totals,
    )


def first_tokens_row(totals: Totals) -> dict[str, object] | None:
    """The target for first tokens; None: there is none."""
    return None if totals.first_tokens is None else structs.asdict(totals.first_tokens)


def kv_row(pool: PoolView) -> JsonObject:
    """The pool, or a tenant's part of it, which has no totals."""
    totals, pins = pool.totals, [pin_row(pin) for pin in pool.pins]
    events = [asdict(event) for event in pool.events]
    if totals is None:
        return {
            "tenant": pool.tenant,
            "bytes_per_block": pool.bytes_per_block,
            "block_size": pool.block_size,
            "held_by_sequences": pool.held_by_sequences,
            "held_by_pins": pool.held_by_pins + pool.held_by_sessions,
            "pins": pins,
            "waiting": pool.waiting,
            "running": pool.running,
            "events": events,
            "now": pool.now,
        }
    return with_former_fields(
        {
            "counts": asdict(totals.counts),
            "capacity": pool.capacity,
            "bytes_per_block": pool.bytes_per_block,
            "block_size": pool.block_size,
            "held_by_sequences": pool.held_by_sequences,
            "held_by_pins": pool.held_by_pins,
            "pin_budget": totals.pin_budget,
            "pins": pins,
            "offload_tier": None if totals.tier is None else structs.asdict(totals.tier),
            "waiting": pool.waiting,
            "running": pool.running,
            "events": events,
            "event_counts": totals.event_counts,
            "now": pool.now,
            "tenants": [use_row(use) for use in totals.tenants],
            "blocks_resident": totals.blocks_resident,
            "blocks_wanted": totals.blocks_wanted,
            "why_smaller": totals.why_smaller,
            "sessions": totals.num_sessions,
            "held_by_sessions": pool.held_by_sessions,
            "device": pool.device,
            "target": None if totals.target is None else structs.asdict(totals.target),
            "first_tokens": first_tokens_row(totals),
            "ranks": [structs.asdict(rank) for rank in totals.ranks],
        }
    )


def request_row(request: RequestView, slot: int | None = None) -> JsonObject:
    """A request with its choices. `slot`: a replica's, contained in the id."""
    request_id = request.request_id
    return with_former_fields(
        {
            "request_id": request_id if slot is None else with_slot(slot, str(request_id)),
            "tenant": request.tenant,
            "priority": request.priority,
            "age": request.age,
            "seconds_left": request.seconds_left,
            "place": request.place,
            "sequences": [_sequence_row(one) for one in request.sequences],
            "follows": request.follows,
            "not_enforced": request.not_enforced,
            "split": None if request.split is None else _split_row(request.split, request.now),
            "ended_ago": None if request.ended is None else request.now - request.ended,
        }
    )


def _split_row(split: PromptSplit, now: float) -> JsonObject:
    """A prompt by source; the tokens of the parts add up to the prompt."""
    parts = [
        {
            "source": part.source,
            "tokens": part.num_tokens,
            "cause": part.cause,
            "seconds_ago": None if part.at is None else now - part.at,
            "for_request": part.request_id,
        }
        for part in split.parts
    ]
    return {"text": split.in_words(), "parts": parts}


def _sequence_row(sequence: SequenceView) -> JsonObject:
    phases = sequence.phases
    return {
        "choice": sequence.choice,
        "state": sequence.state,
        "why": sequence.why,
        "reason": sequence.reason,
        "num_computed": sequence.num_computed,
        "num_cold": sequence.num_cold,
        "usage": {
            "num_prompt": sequence.num_prompt,
            "num_output": sequence.num_output,
            "num_cached": sequence.num_cached,
            "preemptions": sequence.preemptions,
            "blocks_peak": sequence.blocks_peak,
            "block_seconds": sequence.block_seconds,
            "num_drafted": sequence.num_drafted,
            "num_accepted": sequence.num_accepted,
            "phases": None if phases is None else asdict(phases),
        },
        "table": [structs.asdict(entry) for entry in sequence.table],
        "in_grammar": sequence.in_grammar,
        "forced_tokens": sequence.forced_tokens,
        "finish_reason": sequence.finish or None,
        "error": sequence.error,
    }


def pin_row(pin: PinView) -> JsonObject:
    """The JSON of a pin."""
    return with_former_fields(
        {
            "tenant": pin.tenant,
            "name": pin.name,
            "strength": pin.strength,
            "num_blocks": pin.num_blocks,
            "num_tokens": pin.num_tokens,
            "filling": pin.filling,
            "age": pin.age,
            "seconds_left": pin.seconds_left,
            "num_held": pin.num_held,
            "num_offloaded": pin.num_offloaded,
        }
    )


def use_row(use: TenantUse) -> JsonObject:
    """The row of a tenant's use."""
    return {
        "name": use.name,
        "running": use.running,
        "waiting": use.waiting,
        "blocks_held": use.blocks_held,
        "blocks_pinned": use.blocks_pinned,
    }
