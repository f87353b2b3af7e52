"""More demand than blocks: the real scheduler on a virtual clock, against an admission that never preempts
because it knows how long every answer will be.

    trace -> clients -> Scheduler + Memory -> StepPlan -> costs -> the clock -> commit
               |                                  |
               |                                  +-- transfers, one at a time, on the same clock
               +-- whoever comes next comes as soon as what is wanted is below so many times the pool

A step lasts what `Costs` says of it: a constant, a part for each position, a part for each position that
attention reads. Tokens mean nothing here; whether they are right is what driver.py tests.

The admission that knows (`Foreseeing`) lets a request in if, at every step from now on, the blocks of all
that run fit: each grows by a position a step and leaves when its answer ends. What it foresees is off by the
steps that prompts take, so it keeps a margin: the smallest of `MARGINS` with which it never preempts on that
trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np

from octavo.memory.demand import blocks_needed
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.memory.tiers import OffloadTier
from octavo.scheduler.admission_limits import AdmissionLimits
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.step.config import SchedulerConfig
from octavo.step.step_times import StepShape
from octavo.types import Move, Request, SampledToken, StepPlan, StepResult, Transfer, TransferDone

DEMAND = 3.0  # times the pool
STEP_TOKENS = 512
MARGINS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4)  # of the pool


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step and of a transfer."""

    name: str
    step_s: float
    position_s: float  # for each position that is computed
    read_s: float  # for each position that attention reads
    load_s: float  # for a block
    store_s: float

    def of(self, plan: StepPlan) -> float:
        """Seconds that the plan takes; a plan that only moves blocks takes none."""
        if not plan.chunks:
            return 0.0
        read = sum(chunk.length * (chunk.start + chunk.stop) / 2 for chunk in plan.chunks)
        return self.step_s + self.position_s * plan.num_tokens + self.read_s * read


# Of the order of what was measured: SmolLM2-135M in 4 bits on two cores (docs/performance.md), a block of
# 360 KiB on a disk of 1 GB/s; and a model that every step reads whole, beside which positions cost little,
# with 13 MB in a block.
COMPUTE_BOUND = Costs("compute-bound", 0.006, 0.0011, 1e-7, 0.0004, 0.0004)
MEMORY_BOUND = Costs("memory-bound", 0.030, 0.00004, 1e-9, 0.013, 0.013)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a trace is served with. `num_slots` 0: there is no tier below."""

    num_blocks: int
    block_size: int
    costs: Costs
    num_slots: int = 0
    staging: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a trace. Times are virtual."""

    seconds: float  # to the last token
    tokens: int
    gap_p99_s: float  # between two tokens of an answer
    running: float  # requests at once, on average over steps
    preemptions: int
    kept: int  # of these, after which blocks were below
    recomputed: int  # positions computed a second time

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Foreseeing(AdmissionLimits):
    """Limits that know the length of every answer, and keep `margin` blocks free."""

    def __init__(self, scheduler: Scheduler, margin: int) -> None:
        super().__init__(
            scheduler.context, scheduler.live, scheduler.budget, scheduler.shares, scheduler.soft_holds
        )
        self._prefill_budget = scheduler.prefill_budget
        self._margin = margin

    def fits(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether all that run, and this one, can run to their ends."""
        if self._live.num_free_rows < 1:
            return False
        if not self._live.running:
            return True
        together = [*self._live.running, sequence]
        known = np.array([s.known for s in together])
        left = np.array([s.max_length - s.known for s in together])  # tokens to come
        prompts = np.array([s.remaining if s.remaining > 1 else 0 for s in together])
        num_prompts = int((prompts > 0).sum())
        budget = self._prefill_budget.prompt_budget(len(together) - num_prompts, num_prompts)
        last = left + (prompts > 0) * -(-int(prompts.sum()) // max(1, budget))  # steps until it ends, at most
        ends = np.unique(last)
        size = self._context.ledger.block_size
        blocks = -(-(known + np.minimum(ends[:, None], left)) // size)  # (ends, sequences)
        peak = int((blocks * (last >= ends[:, None])).sum(axis=1).max())
        return peak + self._margin <= self._context.ledger.pool.num_blocks


@dataclass(slots=True)
class _Worker:
    """Moves one block at a time, as the transfer worker does."""

    costs: Costs
    moving: deque[tuple[float, Transfer]] = field(default_factory=deque)  # when it ends
    _free_at: float = 0.0

    def begin(self, transfers: Many[Transfer], now: float) -> None:
        for transfer in transfers:
            if transfer.move is not Move.FORGET:
                self._free_at = max(now, self._free_at) + self._seconds(transfer)
                self.moving.append((self._free_at, transfer))

    def ended(self, now: float) -> list[TransferDone]:
        done = []
        while self.moving and self.moving[0][0] <= now:
            transfer = self.moving.popleft()[1]
            done.append(TransferDone(transfer.transfer_id, True, self._seconds(transfer)))
        return done

    def _seconds(self, transfer: Transfer) -> float:
        return self.costs.load_s if transfer.move is Move.LOAD else self.costs.store_s


class Oversubscription:
    """Serves one trace, given by arrival, while what live requests want is up to `DEMAND` times the pool."""

    def __init__(self, requests: Many[Request], setup: Setup, margin: int | None = None) -> None:
        self._to_come = deque(requests)
        self._setup = setup
        config = SchedulerConfig(
            max_rows=min(len(requests), STEP_TOKENS),
            step_tokens=STEP_TOKENS,
            max_waiting=len(requests),
            context_length=1 + max(len(r.prompt) + r.max_tokens for r in requests),
            staging_blocks=setup.staging,
        )
        memory = Ledger(setup.num_blocks, setup.block_size)
        tier = OffloadTier(setup.num_slots) if setup.num_slots else None
        self.scheduler = Scheduler(memory, config, lambda tenant: root_name(tenant.encode()), tier)
        self._is_foreseen = margin is not None
        if margin is not None:
            self.scheduler.admission.limits = Foreseeing(self.scheduler, margin)
        self._teach(setup.costs)
        self._worker = _Worker(setup.costs)
        self._now = 0.0
        self._last: dict[int, float] = {}  # when a request's newest token came
        self._gaps: list[float] = []
        self._running: list[int] = []
        self._tokens = 0

    def run(self) -> Served | None:
        """To the end of the last request; None if an admission that knows the lengths has to preempt."""
        scheduler = self.scheduler
        while self._to_come or scheduler.has_work:
            if scheduler.live.num_preemptions and self._is_foreseen:
                return None
            self._arrive()
            for done in self._worker.ended(self._now):
                scheduler.transfers.finish(done)
            plan = scheduler.schedule(self._now)
            if plan is None:
                assert self._worker.moving, "work is left, and nothing is planned"
                self._now = self._worker.moving[0][0]
                continue
            self._running.append(len(scheduler.live.running))
            self._worker.begin(plan.transfers, self._now)
            self._now += (seconds := self._setup.costs.of(plan))
            self._commit(plan, seconds)
        return self._served()

    def _teach(self, costs: Costs) -> None:
        """The pace of an engine that has served before: what a step costs is known from the first one on."""
        one = costs.step_s + costs.position_s
        times = self.scheduler.context.times
        times.observe(StepShape(1), one)
        times.observe(StepShape(1, prompt=100), one + 100 * costs.position_s)

    def _arrive(self) -> None:
        size, limit = self._setup.block_size, DEMAND * self._setup.num_blocks
        wanted = sum(blocks_needed(request, size) for request in self.scheduler.live.requests())
        while self._to_come and (not wanted or wanted + blocks_needed(self._to_come[0], size) <= limit):
            wanted += blocks_needed(self._to_come[0], size)
            self.scheduler.submit(self._to_come.popleft())

    def _commit(self, plan: StepPlan, seconds: float) -> None:
        token = (SampledToken(0),)
        samples = {chunk.seq_id: token for chunk in plan.chunks if chunk.num_samples}
        result = StepResult(plan.step_id, samples, seconds=seconds)
        for update in self.scheduler.commit(plan, result, self._now):
            last = self._last.get(update.request_id)
            if last is not None:
                self._gaps.append(self._now - last)
            self._last[update.request_id] = self._now
            self._tokens += len(update.tokens)

    def _served(self) -> Served:
        gaps, staging = sorted(self._gaps), self.scheduler.staging
        return Served(
            self._now,
            self._tokens,
            gaps[int(0.99 * (len(gaps) - 1))] if gaps else 0.0,
            sum(self._running) / len(self._running),
            self.scheduler.live.num_preemptions,
            staging.num_kept,
            self.scheduler.live.tokens_recomputed,
        )


def best_without_preempting(requests: Many[Request], setup: Setup) -> Served:
    """The trace under the admission that knows every length, with the smallest margin that does."""
    for margin in MARGINS:
        served = Oversubscription(requests, setup, int(margin * setup.num_blocks)).run()
        if served is not None:
            return served
    raise AssertionError("it preempts with every margin")
