"""What each tenant uses now, counted over the holders; for whoever runs the server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One tenant's part of what is in use. A block that two tenants hold counts for both."""

    name: str
    running: int  # sequences
    waiting: int
    blocks_held: int  # by its sequences and pins, each block once
    blocks_pinned: int  # that its pins may hold, filling ones included


def view_uses(scheduler: Scheduler) -> tuple[TenantUse, ...]:
    """Every tenant that has anything, by name. O(sequences + blocks held)."""
    held: dict[str, set[int]] = {}
    running, waiting, pinned = Counter[str](), Counter[str](), Counter[str]()
    for sequence in scheduler.live.running:
        tenant = sequence.request.tenant
        running[tenant] += 1
        held.setdefault(tenant, set()).update(sequence.table.blocks if sequence.table is not None else ())
    for sequence in scheduler.live.waiting:
        waiting[sequence.request.tenant] += 1
    for pin in scheduler.pins.all():
        pinned[pin.tenant] += pin.num_blocks
        held.setdefault(pin.tenant, set()).update(pin.table.blocks if pin.table is not None else ())
    return tuple(
        TenantUse(name, running[name], waiting[name], len(held.get(name, ())), pinned[name])
        for name in sorted(held.keys() | waiting.keys())
    )
