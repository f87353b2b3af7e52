"""The scheduler under three times more demand than blocks, without a model: its throughput and inter-token
gaps, compared with an admission that knows the length of every answer and never preempts.

    trace -> virtual server (planner.py): the real scheduler; `Costs` has the times of steps and transfers
               |
               +-- the next request arrives when the demand of live ones is less than `DEMAND` times the pool

The reference (`KnownLengthLimits`) admits a request if the blocks of all running sequences fit at every step
from now on: each sequence grows by a position a step and ends with its answer. Its prediction is off by the
steps that prompts take, so it keeps a margin: the smallest of `MARGINS` with which it never preempts on that
trace. All times are virtual, so the same seed gives the same figures on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.bench.calibration import VERSION, Calibration
from octavo.bench.lengths import Trace
from octavo.bench.planner import Results, VirtualServer
from octavo.engine.scheduler_setup import SchedulerSetup, TierSetup
from octavo.memory.capacity import blocks_needed
from octavo.scheduler.admission_limits import AdmissionLimits
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence as LiveSequence
from octavo.sim.driver import Pool, requests_of
from octavo.step.context import SchedulerConfig
from octavo.step.step_times import StepWork
from octavo.types import Request

DEMAND = 3.0  # times the pool
STEP_TOKENS = 512
MARGINS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4)  # of the pool
TIER_SLOTS = 10  # times the pool
STAGING_PART = 16  # the staging arena is this part of the pool


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step and of a transfer."""

    name: str
    step_s: float
    position_s: float  # for each computed position
    read_s: float  # for a thousand positions that attention reads
    move_s: float  # for a block, to the tier or back


# Similar to measured costs: SmolLM2-135M in 4 bits on two cores (docs/performance.md), with blocks of 360 KiB
# on a disk of 1 GB/s; and a memory-bound model, where a step costs much more than a position, with blocks of
# 13 MB.
COMPUTE_BOUND = Costs("compute-bound", 0.006, 0.0011, 1e-4, 0.0004)
MEMORY_BOUND = Costs("memory-bound", 0.030, 0.00004, 1e-6, 0.013)


@dataclass(frozen=True, slots=True)
class Setup:
    """The server of a trace. `num_slots` 0: it has no offload tier."""

    num_blocks: int
    block_size: int
    costs: Costs
    num_slots: int = 0
    staging: int = 0

    def calibration(self, requests: Sequence[Request]) -> Calibration:
        """The calibration of a server for these requests."""
        config = SchedulerConfig(
            max_rows=min(len(requests), STEP_TOKENS),
            step_tokens=STEP_TOKENS,
            max_waiting=len(requests),
            context_length=1 + max(len(r.prompt) + r.max_tokens for r in requests),
            staging_blocks=self.staging,
        )
        costs = self.costs
        return Calibration(
            version=VERSION,
            setup=SchedulerSetup(config, self.num_blocks, self.num_blocks, self.block_size, ()),
            tier=TierSetup(self.num_slots, 0, None, []) if self.num_slots else None,
            depth=0,
            terms=[costs.position_s, costs.step_s, costs.position_s, costs.read_s, costs.read_s],
            corrections={},
            noise={},
            drifts=[],
            between_s=0.0,
            between_row_s=0.0,
            http_s=0.0,
            moves={"store disk": costs.move_s, "load disk": costs.move_s},
            rows_max=STEP_TOKENS,
            positions_max=STEP_TOKENS,
            num_steps=0,
            error_p50=0.0,
            error_p95=0.0,
        )


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The result of serving a trace. Times are virtual."""

    seconds: float  # to the last token
    tokens: int
    gap_p99_s: float  # between two tokens of an answer
    running: float  # running requests, the mean over steps
    preemptions: int
    kept: int  # preemptions after which blocks were in the tier
    recomputed: int  # positions computed a second time

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class KnownLengthLimits(AdmissionLimits):
    """Limits that know the length of every answer, and keep `margin` blocks free."""

    def __init__(self, scheduler: Scheduler, margin: int) -> None:
        super().__init__(
            scheduler.context, scheduler.live, scheduler.budget, scheduler.shares, scheduler.soft_holds
        )
        self._prefill_budget = scheduler.prefill_budget
        self._margin = margin

    def fits(self, sequence: LiveSequence, num_hits: int) -> bool:
        """Whether all running sequences, and this one, can run to their ends."""
        if self._live.num_free_rows < 1:
            return False
        if not self._live.running:
            return True
        together = [*self._live.running, sequence]
        known = np.array([s.known for s in together])
        left = np.array([s.max_length - s.known for s in together])  # future tokens
        prompts = np.array([s.remaining if s.remaining > 1 else 0 for s in together])
        num_prompts = int((prompts > 0).sum())
        budget = self._prefill_budget.prompt_budget(len(together) - num_prompts, num_prompts)
        last = left + (prompts > 0) * -(-int(prompts.sum()) // max(1, budget))  # most steps until it ends
        ends = np.unique(last)
        size = self._context.ledger.block_size
        blocks = -(-(known + np.minimum(ends[:, None], left)) // size)  # (ends, sequences)
        peak = int((blocks * (last >= ends[:, None])).sum(axis=1).max())
        return peak + self._margin <= self._context.ledger.pool.num_blocks


def serve(requests: Sequence[Request], setup: Setup, margin: int | None = None) -> TraceResult | None:
    """Serve the requests in order, while the demand of live ones is at most `DEMAND` times the pool. With a
    `margin` the admission knows all lengths; returns None if it preempts nevertheless."""
    calibration, results = setup.calibration(requests), Results()
    server = VirtualServer(calibration, calibration.setup, 0, results)
    scheduler, to_come = server.scheduler, deque(requests)
    if margin is not None:
        scheduler.admission.limits = KnownLengthLimits(scheduler, margin)
    # Step times are known from the start, as in an engine that has served before.
    one = setup.costs.step_s + setup.costs.position_s
    scheduler.context.times.observe(StepWork(1), one)
    scheduler.context.times.observe(StepWork(1, prompt=100), one + 100 * setup.costs.position_s)
    size, limit = setup.block_size, DEMAND * setup.num_blocks
    while to_come or scheduler.has_work:
        if scheduler.live.num_preemptions and margin is not None:
            return None
        wanted = sum(blocks_needed(request, size) for request in scheduler.live.requests())
        while to_come and (not wanted or wanted + blocks_needed(to_come[0], size) <= limit):
            wanted += blocks_needed(to_come[0], size)
            server.submit(to_come.popleft(), server.now)
        server.turn(math.inf)
    answers = results.done
    gaps = sorted(b - a for answer in answers for a, b in itertools.pairwise(answer.chunks))
    return TraceResult(
        server.now,
        sum(answer.tokens for answer in answers),
        gaps[int(0.99 * (len(gaps) - 1))] if gaps else 0.0,
        results.served["running_sum"] / results.served["steps"],
        scheduler.live.num_preemptions,
        scheduler.staging.num_kept,
        scheduler.live.tokens_recomputed,
    )


def best_without_preempting(requests: Sequence[Request], setup: Setup) -> TraceResult:
    """The trace under the admission that knows all lengths, with the smallest margin that never preempts."""
    for margin in MARGINS:
        served = serve(requests, setup, int(margin * setup.num_blocks))
        if served is not None:
            return served
    raise AssertionError("it preempts with every margin")


@dataclass(frozen=True, slots=True)
class Oversubscribed:
    """One trace on one machine, with or without an offload tier."""

    trace: str
    num_requests: int
    num_blocks: int
    demand: float  # times the pool
    costs: str  # the name of the `Costs`
    tier: bool
    throughput_ratio: float  # tokens a second over those of the reference
    gap_p99_ratio: float  # likewise of the time between two tokens of an answer
    tokens_per_second: float
    gap_p99_s: float
    running: float  # running requests, the mean over steps
    running_best: float  # those of the reference
    preemptions: int
    kept: int  # preemptions after which blocks were in the tier
    tokens: int
    recomputed: int  # positions computed again


def oversubscribed(trace: Trace, pool: Pool, seed: int) -> Iterator[Oversubscribed]:
    """Serve the trace with both costs, each without an offload tier and with one."""
    requests = requests_of(trace.jobs, seed)
    for costs in (COMPUTE_BOUND, MEMORY_BOUND):
        setup = Setup(pool.num_blocks, pool.block_size, costs)
        best = best_without_preempting(requests, setup)
        staging = pool.num_blocks // STAGING_PART
        tiered = replace(setup, num_slots=TIER_SLOTS * pool.num_blocks, staging=staging)
        for given in (setup, tiered):
            served = serve(requests, given)
            assert served is not None
            yield Oversubscribed(
                trace=trace.name,
                num_requests=len(requests),
                num_blocks=pool.num_blocks,
                demand=DEMAND,
                costs=costs.name,
                tier=given is tiered,
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
