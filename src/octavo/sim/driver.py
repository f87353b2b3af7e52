"""The real scheduler and ledger on a trace of lengths. The production code decides which request runs and
which block is whose; the arithmetic is the oracle's, and the clock is virtual.

    trace -> Request -> Scheduler + Memory -> StepPlan -> OracleExecutor -> commit
                              |
                            look    once a step, with its blocks reserved, before any request ends

A step computes all admitted prompts completely, as the policies of policies.py do, so that steps compare. An
answer ends at its length, which the scheduler must not know: it admits by the known tokens, and reserves a
block at a time. Prompts are random, so each request shares blocks only with itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import OracleExecutor
from octavo.sim.policies import Job, Moment, ReplayedTrace, Slots, Window, replayed
from octavo.step.context import SchedulerConfig
from octavo.types import Request

VOCAB = 32_000
WINDOW = 32  # positions that the oracle reads for a token: all are checked, and cost stays linear

Look = Callable[[Scheduler, int], None]  # the scheduler, and the number of requests yet to arrive


@dataclass(frozen=True, slots=True)
class Pool:
    """KV memory of `num_blocks` blocks, and the virtual time of a step."""

    num_blocks: int
    block_size: int
    step_s: float

    @property
    def num_slots(self) -> int:
        """Positions that it holds."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class ServedTrace:
    """The work to serve a trace to its end."""

    steps: int
    preemptions: int


def requests_of(jobs: Sequence[Job], seed: int, n: int = 1) -> list[Request]:
    """Requests of these lengths, by arrival, with random prompts and `n` choices each."""
    generator = random.Random(f"prompts {seed}")
    return [
        Request(
            request_id=request_id,
            prompt=tuple(generator.choices(range(VOCAB), k=job.prompt)),
            params=SamplerParams(ignore_eos=True),
            max_tokens=job.output,
            seed=request_id,
            n=n,
            arrival=job.arrival,
        )
        for request_id, job in enumerate(sorted(jobs, key=lambda job: job.arrival))
    ]


def replay_paged(jobs: Sequence[Job], pool: Pool, seed: int) -> ReplayedTrace:
    """Serve the trace with the steps of policies.py, from blocks: Octavo's use of the memory."""
    window: Window[Moment] = Window()

    def look(scheduler: Scheduler, to_come: int) -> None:
        moment = Moment(slots_of(scheduler), len(scheduler.live.running), len(scheduler.live.waiting))
        window.add(moment, moment.waiting, to_come)

    served = serve(requests_of(jobs, seed), pool, look)
    return replayed("Octavo", window.steps, served.steps, served.preemptions)


def slots_of(scheduler: Scheduler) -> Slots:
    """The pool's slots by kind, if no block has two holders."""
    memory, stored, coming, held = scheduler.ledger, 0, 0, 0
    for sequence in scheduler.live.running:
        assert sequence.table is not None
        reach = len(sequence.table) * memory.block_size
        stored += sequence.num_planned
        coming += min(reach, sequence.max_length - 1)
        held += reach
    assert held == memory.counts().held * memory.block_size, "a block is shared, or has no holder"
    return Slots(stored, coming - stored, held - coming, memory.num_available * memory.block_size)


def serve(requests: Sequence[Request], pool: Pool, look: Look) -> ServedTrace:
    """Serve requests, given by arrival, to their end; `look` sees every step. Raises RequestTooLarge."""
    rows = sum(request.n for request in requests)
    config = SchedulerConfig(
        max_rows=rows,
        step_tokens=pool.num_slots + rows,  # never the bound that delays a request
        max_waiting=len(requests),
        context_length=1 + max(len(request.prompt) + request.max_tokens for request in requests),
        pace=False,
    )
    memory = Ledger(pool.num_blocks, pool.block_size)
    scheduler = Scheduler(memory, config, lambda tenant: root_name(tenant.encode()))
    executor = OracleExecutor(pool.num_blocks, pool.block_size, VOCAB, window=WINDOW)
    to_come, now, steps = deque(requests), 0.0, 0
    while to_come or scheduler.has_work:
        if not scheduler.has_work:
            now = max(now, to_come[0].arrival)
        while to_come and to_come[0].arrival <= now:
            scheduler.submit(to_come.popleft())
        _step(scheduler, executor, now, lambda: look(scheduler, len(to_come)))
        steps += 1
        now += pool.step_s
    return ServedTrace(steps, scheduler.live.num_preemptions)


def _step(scheduler: Scheduler, executor: OracleExecutor, now: float, look: Callable[[], None]) -> None:
    """One step of the engine, with `look` before any request ends. The only place that calls the scheduler's
    step."""
    plan = scheduler.schedule(now)
    assert plan is not None, "work is left, and nothing is planned"
    look()
    scheduler.commit(plan, executor.run(plan), now)
