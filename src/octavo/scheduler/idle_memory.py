"""Returns the pool's memory to the system between two plans, and records the pool size requested.

A block that has no holder and no name is *unused*. Its memory may be returned by a plan in which it is unused
after all other decisions, and by no earlier plan, because

    a plan that still reads it was made before, and has run before (order is the fence)
    a transfer holds its block until it has ended
    the holder that takes it later writes a position before reading it, in a later plan
    a copy of this very plan may target a block that is free when the plan begins, and memory is
    returned after the copies: so ranges are gathered when the plan is complete, not on request

A cached block is dropped first, which makes it unused.
"""

from __future__ import annotations

from octavo.step.context import Context
from octavo.types import StepPlan


class IdleMemory:
    """Acts on the ledger and on the plan in the making."""

    def __init__(self, context: Context) -> None:
        self.blocks_wanted = context.ledger.pool.num_blocks  # the size set last, at start or later
        self.why_smaller = ""  # the reason while the pool is smaller than that
        self.worked_at: float | None = None  # time of the last computation
        self._context = context
        self.gives_back = False

    def set_size(self, num_blocks: int) -> None:
        """The operator has set the size: do not undo it later."""
        self.blocks_wanted, self.why_smaller = num_blocks, ""

    def count_unused(self) -> int:
        """Blocks whose memory `give_back` would return now. O(1)."""
        pool = self._context.ledger.pool
        return pool.count_unused()

    def drop_cached(self, count: int) -> int:
        """Evict up to `count` cached blocks, longest cached first; returns their number."""
        dropped = self._context.ledger.pool.drop_cached(count)
        if dropped:
            self._context.events.record_evictions(self._context.now, dropped)
        return dropped

    def give_back(self) -> None:
        """Let the next plan return the memory of all blocks that are unused when it is complete."""
        self.gives_back = True

    def finish_plan(self) -> None:
        """Add the ranges to return to the otherwise complete plan. They come after the plan's copies."""
        if self.gives_back:
            self.gives_back = False
            pool = self._context.ledger.pool
            self._context.plan.give_back(pool.backing.unused_runs(pool.holders, pool.name_of))

    def record(self, plan: StepPlan) -> None:
        """A plan was made that returns memory, or the tail of a smaller pool."""
        for first, last in plan.discarded:
            self._context.ledger.pool.backing.record_given_back(first, last)

    def continue_from(self, old: IdleMemory) -> None:
        """Continue over the same bytes with a new ledger."""
        self.blocks_wanted, self.why_smaller = old.blocks_wanted, old.why_smaller
        self.worked_at = old.worked_at
        self._context.ledger.pool.back_by(old._context.ledger.pool.backing)
