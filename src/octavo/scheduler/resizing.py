"""The pool grows and shrinks while it serves: blocks move by copies of the next plan, and the tail's memory
goes back to the system when that plan has run.

It never becomes smaller than its floor: what pins may hold, what tenants are guaranteed, and the largest
request that was taken. Running sequences beyond that are preempted (victims.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import ResizeRefused
from octavo.scheduler.events import Event, EventKind
from octavo.types import BlockCopy

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler


def floor_of(scheduler: Scheduler) -> int:
    """Blocks below which somebody who was let in could not be served."""
    return max(scheduler.tenancy.floor(firm=True), scheduler.tenancy.floor(firm=False))


def resize(scheduler: Scheduler, num_blocks: int, *, for_now: bool = False) -> bool:
    """Make the pool `num_blocks` large; `for_now`: until memory is to be had again. False, and nothing is
    changed, while blocks that would have to move are on their way to or from the tier below: try again after
    a step.

    Raises ResizeRefused, which says what the bounds are and why.
    """
    memory, before = scheduler.memory, scheduler.memory.pool.num_blocks
    floor, capacity = floor_of(scheduler), memory.pool.capacity
    if not floor <= num_blocks <= capacity:
        reason = (
            f"a pool of {num_blocks:,} blocks was asked for; allowed: {floor:,} (pins may hold "
            f"{scheduler.pins.num_blocks:,}; guarantees and the largest request need the rest) to "
            f"{capacity:,} (reserved at start)"
        )
        scheduler.events.note(Event(scheduler.now, EventKind.REFUSED, reason))
        raise ResizeRefused(reason)
    fixed = scheduler.transfers.blocks()
    if any(num_blocks <= block for block in fixed) or num_blocks < len(_unmoved_by_preempting(scheduler)):
        return False
    while memory.pool.num_blocks - memory.num_unheld > num_blocks and _make_room(scheduler):
        pass
    evicted_before = memory.pool.num_evictions
    copies = memory.resize(num_blocks, fixed)
    if copies is None:
        return False
    if memory.pool.num_evictions > evicted_before:
        scheduler.events.note_evictions(scheduler.now, memory.pool.num_evictions - evicted_before)
    if not for_now:
        scheduler.elastic.want(num_blocks)
    if num_blocks > before:
        scheduler.diff.keep(num_blocks)
    if num_blocks < before:
        _tell_rows(scheduler, copies)
        scheduler.diff.move(copies, (num_blocks, before))
    text = f"the pool went from {before:,} to {num_blocks:,} blocks; {len(copies):,} were moved"
    scheduler.events.note(Event(scheduler.now, EventKind.RESIZED, text, blocks=abs(before - num_blocks)))
    return True


def _unmoved_by_preempting(scheduler: Scheduler) -> set[int]:
    """Blocks that stay held when nobody runs and every complete fetch has let go."""
    kept = [pin.table for pin in scheduler.pins.all() if pin.table is not None]
    return {block for table in kept + scheduler.transfers.tables_in_flight() for block in table.blocks}


def _tell_rows(scheduler: Scheduler, copies: tuple[BlockCopy, ...]) -> None:
    """The tables of running sequences name other blocks now."""
    moved = {copy.target for copy in copies}
    for sequence in scheduler.running if moved else ():
        assert sequence.table is not None
        for index, block in enumerate(sequence.table.blocks):
            if block in moved:
                scheduler.diff.write_table(sequence.row, index, [block])


def _make_room(scheduler: Scheduler) -> bool:
    """One holder less that may go: a complete fetch, or a running sequence."""
    if scheduler.transfers.give_back(None, others_too=True):
        return True
    if not scheduler.running:
        return False
    scheduler.victims.preempt(scheduler.victims.find(scheduler.running, 1), None)
    return True
