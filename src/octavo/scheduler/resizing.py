"""The pool grows and shrinks while it serves: blocks move by copies of the next plan, and the tail's memory
goes back to the system when that plan has run.

It never becomes smaller than its floor: what pins may hold, what tenants are guaranteed, and the largest
request that was taken. Running sequences beyond that are preempted (victims.py).
"""

from __future__ import annotations

from octavo.errors import ResizeRefused
from octavo.memory.pins import Pins
from octavo.scheduler.capacity import Capacity
from octavo.scheduler.context import Context
from octavo.scheduler.elastic import Elastic
from octavo.scheduler.events import Event, EventKind
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.transfers import Transfers
from octavo.scheduler.victims import Victims
from octavo.types import BlockCopy


class Resizing:
    """Changes the size of the pool, between two plans."""

    def __init__(
        self,
        context: Context,
        pins: Pins,
        live: LiveSequences,
        capacity: Capacity,
        transfers: Transfers,
        victims: Victims,
        preemption: Preemption,
        elastic: Elastic,
    ) -> None:
        self.context = context
        self._pins = pins
        self._live = live
        self._capacity = capacity
        self._transfers = transfers
        self._victims = victims
        self._preemption = preemption
        self.elastic = elastic

    def floor(self) -> int:
        """Blocks below which somebody who was let in could not be served."""
        return max(self._capacity.floor(firm=True), self._capacity.floor(firm=False))

    def resize(self, num_blocks: int, *, for_now: bool = False) -> bool:
        """Make the pool `num_blocks` large; `for_now`: until memory is to be had again. False, and nothing is
        changed, while blocks that would have to move are on their way to or from the tier below: try again
        after a step.

        Raises ResizeRefused, which says what the bounds are and why.
        """
        memory, before = self.context.ledger, self.context.ledger.pool.num_blocks
        floor, capacity = self.floor(), memory.pool.capacity
        if not floor <= num_blocks <= capacity:
            reason = (
                f"a pool of {num_blocks:,} blocks was asked for; allowed: {floor:,} (pins may hold "
                f"{self._pins.num_blocks:,}; guarantees and the largest request need the rest) to "
                f"{capacity:,} (reserved at start)"
            )
            self.context.events.note(Event(self.context.now, EventKind.REFUSED, reason))
            raise ResizeRefused(reason)
        fixed = self._transfers.blocks()
        if any(num_blocks <= block for block in fixed) or num_blocks < len(self._unmoved_by_preempting()):
            return False
        while memory.pool.num_blocks - memory.num_unheld > num_blocks and self._make_room():
            pass
        evicted_before = memory.pool.num_evictions
        copies = memory.resize(num_blocks, fixed)
        if copies is None:
            return False
        if memory.pool.num_evictions > evicted_before:
            self.context.events.note_evictions(self.context.now, memory.pool.num_evictions - evicted_before)
        if not for_now:
            self.elastic.want(num_blocks)
        if num_blocks > before:
            self.context.plan.keep(num_blocks)
        if num_blocks < before:
            self._tell_rows(copies)
            self.context.plan.move(copies, (num_blocks, before))
        text = f"the pool went from {before:,} to {num_blocks:,} blocks; {len(copies):,} were moved"
        self.context.events.note(
            Event(self.context.now, EventKind.RESIZED, text, blocks=abs(before - num_blocks))
        )
        return True

    def _unmoved_by_preempting(self) -> set[int]:
        """Blocks that stay held when nobody runs and every complete fetch has let go."""
        kept = [pin.table for pin in self._pins.all() if pin.table is not None]
        return {block for table in kept + self._transfers.tables_in_flight() for block in table.blocks}

    def _tell_rows(self, copies: tuple[BlockCopy, ...]) -> None:
        """The tables of running sequences name other blocks now."""
        moved = {copy.target for copy in copies}
        for sequence in self._live.running if moved else ():
            assert sequence.table is not None
            for index, block in enumerate(sequence.table.blocks):
                if block in moved:
                    self.context.plan.write_table(sequence.row, index, [block])

    def _make_room(self) -> bool:
        """One holder less that may go: a complete fetch, or a running sequence."""
        if self._transfers.give_back(None, others_too=True):
            return True
        if not self._live.running:
            return False
        self._preemption.preempt_all(self._victims.find(self._live.running, 1), None)
        return True
