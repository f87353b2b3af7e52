"""The scheduler's invariants, recomputed: for tests, the simulator, and idle moments. O(everything)."""

from __future__ import annotations

from octavo.memory.check import check
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import State


def check_scheduler(scheduler: Scheduler) -> None:
    """Raise AssertionError, saying what differs, unless ledger and scheduler agree."""
    memory = scheduler.memory
    check(memory)
    live = [s for request in scheduler.live_requests() for s in scheduler.sequences_of(request)]
    running = [s for s in live if s.state is State.RUNNING]
    assert set(running) == set(scheduler.running), "a running sequence is not in the list"
    ranks = [s.own_rank for s in scheduler.running]
    assert ranks == sorted(ranks), "running sequences are out of order"
    assert set(scheduler.waiting) == set(live) - set(running), "a waiting sequence is not in the queue"
    assert memory.tables == {s.table for s in running}, (
        "a holder without a sequence, or a sequence without its holder"
    )
    rows = [s.row for s in running]
    assert len(rows) == len(set(rows)), "two sequences share a row"
    assert scheduler.num_free_rows == scheduler.config.max_rows - len(rows) - sum(
        s.forks_left for s in running
    )
    assert scheduler.names.sequences() <= set(running), "a name is computed by nobody"
    for s in live:
        assert 0 <= s.num_computed <= s.num_planned <= s.known, f"counters of sequence {s.seq_id}"
        assert len(s.chain.names) == len(s.tokens) // memory.block_size
        if s.state is State.RUNNING:
            assert s.table is not None
            assert s.num_planned <= len(s.table) * memory.block_size
            assert s.table.num_published * memory.block_size <= s.num_computed, (
                "a block was published before its step"
            )
            for name, block in zip(s.chain.names, s.table.blocks[: s.table.num_published], strict=False):
                assert memory.pool.name_of[block] in (name, None), "a block has another prefix's name"
        else:
            assert s.table is None
            assert s.row == -1
            assert s.num_planned == 0
