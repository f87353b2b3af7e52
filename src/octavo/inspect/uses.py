"""What each tenant uses now, counted over the holders; for the operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from octavo.memory.holders import HolderKind
from octavo.memory.ledger import Ledger
from octavo.retention.pins import Pins
from octavo.scheduler.live import LiveSequences


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One tenant's part of what is in use. A block that two tenants hold counts for both."""

    name: str
    running: int  # requests, also below
    waiting: int
    blocks_held: int  # by its sequences and pins, each block once
    blocks_pinned: int  # that its pins may hold, filling ones included


def view_uses(ledger: Ledger, live: LiveSequences, pins: Pins) -> tuple[TenantUse, ...]:
    """Every tenant that has anything, by name. O(sequences + blocks held)."""
    held: dict[str, set[int]] = {}
    for holder in ledger.holders.values():
        if holder.kind not in (HolderKind.FETCH, HolderKind.STORE):  # for a moment only
            held.setdefault(holder.tenant, set()).update(holder.blocks)
    running = Counter(request.tenant for request in live.running_requests())
    waiting = Counter(request.tenant for request in live.waiting_requests())
    pinned = Counter[str]()
    for pin in pins.all():
        pinned[pin.tenant] += pin.num_blocks
    return tuple(
        TenantUse(name, running[name], waiting[name], len(held.get(name, ())), pinned[name])
        for name in sorted(held.keys() | waiting.keys() | pinned.keys())
    )
