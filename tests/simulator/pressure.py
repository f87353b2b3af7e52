"""A machine that is short of memory now and then, for random lives: others take and leave memory, the pool
steps back and grows again, idle blocks give their memory back.

What is available follows from which blocks of the oracle have bytes in them, so memory that is given back in
words only is seen.
"""

from __future__ import annotations

from random import Random

from octavo.scheduler.pressure import CALM_S, PressureConfig, PressurePolicy
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import OracleExecutor
from octavo.step.events import EventKind

BLOCK_BYTES = 4096


class SimulatedMachine:
    """`look` as an engine would, at a random rate; `total` is the machine's memory, in blocks."""

    def __init__(self, random: Random, capacity: int) -> None:
        self.rate = random.choice([0.0, 0.05, 0.3])
        self._random = random
        self._total = 2 * capacity
        self._others = 0  # blocks' worth of memory that others have
        idle_return_s = random.choice([0.0, 0.5, 20.0])
        reserve = random.randint(1, capacity // 2 + 1) * BLOCK_BYTES
        self._policy = PressurePolicy(PressureConfig(BLOCK_BYTES, idle_return_s, reserve))

    def look(self, scheduler: Scheduler, executor: OracleExecutor, now: float) -> float:
        """Others may change their mind, then the pool may; returns what time it is now."""
        r = self._random
        if r.random() < 0.3:
            self._others = r.choice([0, r.randint(0, self._total)])
            now += r.choice([0.0, 1.0, CALM_S])
        resident = count_resident(executor)
        available = max(0, self._total - self._others - resident) * BLOCK_BYTES
        scheduler.context.now = now
        before = scheduler.ledger.pool.num_blocks
        self._policy.act(scheduler.resizer, now, r.choice([available, available, None]), scheduler.has_work)
        after, elastic = scheduler.ledger.pool.num_blocks, scheduler.idle_memory
        assert after <= elastic.blocks_wanted, "the pool became larger than was asked for"
        assert after < elastic.blocks_wanted or not elastic.why_smaller, "a reason for nothing"
        assert after == elastic.blocks_wanted or elastic.why_smaller, "it is smaller for no reason"
        assert after <= before or available >= self._policy.config.reserve_bytes, "it grew under pressure"
        return now

    def rest(self, scheduler: Scheduler, now: float) -> None:
        """Nothing has run for a long time, in which the pool was looked at."""
        self._policy.act(scheduler.resizer, now - 2 * self._policy.config.idle_return_s, None, has_work=True)
        self._policy.act(scheduler.resizer, now, None, scheduler.has_work)

    def check_rested(self, scheduler: Scheduler, executor: OracleExecutor) -> None:
        """After it: only blocks that are cached, or on their way below, have memory."""
        if self._policy.config.idle_return_s:
            assert scheduler.idle_memory.count_unused() == 0, "idle blocks kept their memory"
            pool = scheduler.ledger.pool
            assert count_resident(executor, pool.capacity) <= pool.backing.count


def count_resident(executor: OracleExecutor, capacity: int | None = None) -> int:
    """Blocks that have bytes in them: all, or those of the pool without its staging arena."""
    slots, size = executor.slots, executor.block_size
    end = len(slots) if capacity is None else capacity * size
    return sum(any(slots[first : first + size]) for first in range(0, end, size))


def check_resident(scheduler: Scheduler, executor: OracleExecutor) -> None:
    """Every block that has bytes in it is one of which the ledger knows that it has memory."""
    backing, size = scheduler.ledger.pool.backing, executor.block_size
    for block in range(scheduler.ledger.pool.capacity):
        has_bytes = any(executor.slots[block * size : (block + 1) * size])
        assert block in backing or not has_bytes, f"block {block} has memory that nobody will give back"


def count_acts(scheduler: Scheduler) -> tuple[int, int, int]:
    """How often memory was returned by idle blocks, the pool stepped back, and grew again."""
    counts = scheduler.events.counts
    return (
        counts[EventKind.RETURNED],
        counts[EventKind.MEMORY_PRESSURE],
        counts[EventKind.MEMORY_PRESSURE_CLEARED],
    )
