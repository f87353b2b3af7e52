"""What preemption promises to whoever runs: the best-ranked sequence is nobody's victim."""

from __future__ import annotations

from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence, State


def best_running(scheduler: Scheduler) -> Sequence | None:
    """The running sequence that ranks first by itself, before a plan is made."""
    return min(scheduler.live.running, key=lambda s: s.own_rank, default=None)


def check_best_stays(scheduler: Scheduler, best: Sequence | None) -> None:
    """After the plan was made: `best` still runs, unless one that ranks before it has entered (or was lent
    its rank)."""
    if best is None or best.state is State.RUNNING or scheduler.ledger.quotas.has_guarantees:
        return  # a guarantee may be claimed from anybody who borrows
    ranks = [s.rank for s in scheduler.live.running]
    assert ranks, "the best-ranked sequence was preempted, and nobody runs"
    assert min(ranks) < best.own_rank, "the best-ranked sequence was preempted by one that ranks behind it"
