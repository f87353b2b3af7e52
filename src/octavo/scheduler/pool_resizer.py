"""Grows and shrinks the pool while it serves: copies of the next plan move blocks, and the tail's memory
returns to the system after that plan.

The pool stays above its floor: the blocks of pins, the guarantees of tenants, and the largest accepted
request. Running sequences beyond that are preempted (reclaimer.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ResizeRefused
from octavo.retention.room import Room
from octavo.scheduler.idle_memory import IdleMemory
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.reclaimer import Reclaimer
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.types import BlockCopy


@dataclass(eq=False)
class PoolResizer:
    """Changes the size of the pool, between two plans."""

    context: Context
    _live: LiveSequences
    _room: Room
    _reclaimer: Reclaimer
    idle_memory: IdleMemory

    def floor(self) -> int:
        """The least number of blocks that can serve every accepted request."""
        return self._room.floor()

    def resize(self, num_blocks: int, *, for_now: bool = False) -> bool:
        """Make the pool `num_blocks` large; `for_now`: until memory is available again. Returns False and
        changes nothing while blocks that must move are in transfer: retry after a step.

        Raises ResizeRefused, with the bounds and their reasons.
        """
        memory, before = self.context.ledger, self.context.ledger.pool.num_blocks
        floor, capacity = self.floor(), memory.pool.capacity
        if not floor <= num_blocks <= capacity:
            reason = (
                f"a pool of {num_blocks:,} blocks was asked for; allowed: {floor:,} (pins may hold "
                f"{self._room.num_pinned:,}; guarantees and the largest request need the rest) to "
                f"{capacity:,} (reserved at start)"
            )
            self.context.events.record(Event(self.context.now, EventKind.REFUSED, reason))
            raise ResizeRefused(reason)
        fixed = self._reclaimer.for_smaller_pool(num_blocks)
        if fixed is None:
            return False
        evicted_before = memory.pool.num_evictions
        copies = memory.resize(num_blocks, fixed)
        if copies is None:
            return False
        if memory.pool.num_evictions > evicted_before:
            self.context.events.record_evictions(self.context.now, memory.pool.num_evictions - evicted_before)
        if not for_now:
            self.idle_memory.set_size(num_blocks)
        if num_blocks > before:
            self.context.plan.keep(num_blocks)
        if num_blocks < before:
            self._update_rows(copies)
            self.context.plan.move(copies, (num_blocks, before))
        text = f"the pool went from {before:,} to {num_blocks:,} blocks; {len(copies):,} were moved"
        self.context.events.record(
            Event(self.context.now, EventKind.RESIZED, text, blocks=abs(before - num_blocks))
        )
        return True

    def _update_rows(self, copies: tuple[BlockCopy, ...]) -> None:
        """Update the rows of running sequences whose tables have moved blocks."""
        moved = {copy.target for copy in copies}
        for sequence in self._live.running if moved else ():
            assert sequence.table is not None
            for index, block in enumerate(sequence.table.blocks, len(sequence.table.cold)):
                if block in moved:
                    self.context.plan.write_table(sequence.row, index, [block])
