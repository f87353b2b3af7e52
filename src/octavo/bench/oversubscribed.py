"""What the scheduler makes of three times more demand than blocks, without a model: its throughput and gaps
between tokens, beside an admission that knows every length and never preempts, on the same pool and trace.

All times are virtual (sim/oversubscribed.py), so the same seed gives the same figures on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from octavo.bench.lengths import Trace
from octavo.sim.driver import Pool, requests_of
from octavo.sim.oversubscribed import (
    COMPUTE_BOUND,
    DEMAND,
    MEMORY_BOUND,
    Oversubscription,
    Setup,
    best_without_preempting,
)

SLOTS_BELOW = 10  # times the pool
STAGING_PART = 16  # of the pool, to stage in


@dataclass(frozen=True, slots=True)
class Oversubscribed:
    """One trace on one machine, with or without a tier below."""

    trace: str
    num_requests: int
    num_blocks: int
    demand: float  # times the pool
    costs: str  # what a step's time is made of
    tier: bool
    throughput_ratio: float  # tokens a second, over those of the admission that never preempts
    gap_p99_ratio: float  # time between two tokens of an answer, likewise
    tokens_per_second: float
    gap_p99_s: float
    running: float  # requests at once
    running_best: float  # under the admission that never preempts
    preemptions: int
    kept: int  # of them, after which blocks were below
    tokens: int
    recomputed: int  # positions computed again


def oversubscribed(trace: Trace, pool: Pool, seed: int) -> Iterator[Oversubscribed]:
    """The trace on two machines, each without a tier below and with one."""
    requests = requests_of(trace.jobs, seed)
    for costs in (COMPUTE_BOUND, MEMORY_BOUND):
        setup = Setup(pool.num_blocks, pool.block_size, costs)
        best = best_without_preempting(requests, setup)
        staging = pool.num_blocks // STAGING_PART
        below = replace(setup, num_slots=SLOTS_BELOW * pool.num_blocks, staging=staging)
        for given in (setup, below):
            served = Oversubscription(requests, given).run()
            assert served is not None
            yield Oversubscribed(
                trace=trace.name,
                num_requests=len(requests),
                num_blocks=pool.num_blocks,
                demand=DEMAND,
                costs=costs.name,
                tier=given is below,
                throughput_ratio=served.rate / best.rate,
                gap_p99_ratio=served.gap_p99_s / best.gap_p99_s if best.gap_p99_s else 1.0,
                tokens_per_second=served.rate,
                gap_p99_s=served.gap_p99_s,
                running=served.running,
                running_best=best.running,
                preemptions=served.preemptions,
                kept=served.kept,
                tokens=served.tokens,
                recomputed=served.recomputed,
            )
