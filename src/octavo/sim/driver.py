"""Random lives against the oracle: arrivals, forks, cancels, failures, tiny pools, priorities, tenants,
prompt logprobs, steps smaller than the number of rows, step times of all kinds, overlap depth 0, 1 and 2.

Every finished choice must equal what the oracle's model says without paging, every choice must get exactly
one final update, every prompt position is asked for its logprobs exactly once, what a failed sequence wrote
is never found again, something always advances, and every invariant must hold after every step. The seed is
the whole input.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

from octavo.errors import RequestTooLarge
from octavo.memory.memory import Memory
from octavo.memory.names import root_name
from octavo.scheduler.check import check_scheduler
from octavo.scheduler.scheduler import Scheduler, SchedulerConfig, check_fits
from octavo.sim.oracle import OracleExecutor, next_token
from octavo.types import FinishReason, Request, SamplingParams, StepPlan, StepResult, Update

VOCAB, EOS = 50, 0
TENANTS = 3


def tenant_of_seed(seed: int) -> int:
    """The simulator hides the tenant in the seed, so that the oracle can tell whose slot it reads."""
    return seed % TENANTS


@dataclass(slots=True)
class Outcome:
    """What a run did, for reports and for tests that a run was not empty."""

    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompts_scored: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    forks: int = 0
    steps: int = 0
    evictions: int = 0


@dataclass(slots=True)
class _Books:
    requests: dict[int, Request] = field(default_factory=dict)
    outputs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    finals: dict[tuple[int, int], FinishReason] = field(default_factory=dict)
    prompt_positions: dict[int, list[int]] = field(
        default_factory=dict
    )  # asked for their logprobs, by request


class Simulation:
    """One random life. `step()` until `steps` have passed, then `drain()`."""

    def __init__(self, seed: int, overlap: int) -> None:
        self.random = r = random.Random(seed)
        self.block_size = r.choice([1, 2, 4, 16])
        roomy = r.random() < 0.2  # a larger pool, and prompts of many steps
        num_blocks = r.randint(100, 300) if roomy else r.randint(8, 40)
        config = SchedulerConfig(
            max_rows=r.randint(1, 12),
            step_tokens=r.choice([r.randint(1, 4), r.randint(4, 40)]),
            max_waiting=1000,
            context_length=10_000,
            stop_ids=frozenset([EOS]),
        )
        self.memory = Memory(num_blocks, self.block_size)
        self.scheduler = Scheduler(self.memory, config, lambda tenant: root_name(tenant.encode()))
        self.executor = OracleExecutor(num_blocks, self.block_size, VOCAB, tenant_of_seed)
        self.overlap = overlap
        self.pipe: deque[tuple[StepPlan, StepResult]] = deque()
        self.books = _Books()
        self.outcome = Outcome()
        longest = 200 if roomy else 40
        self._prefixes = [[r.randrange(1, VOCAB) for _ in range(r.randint(1, longest))] for _ in range(3)]
        self._failure_rate = r.choice([0.0, 0.01])
        self._is_timed = r.random() < 0.5

    def arrive(self) -> None:
        """Submit a random request that can fit."""
        r = self.random
        prompt = r.choice(self._prefixes) + [r.randrange(1, VOCAB) for _ in range(r.randint(0, 6))]
        request_id = len(self.books.requests)
        tenant = r.randrange(TENANTS)
        request = Request(
            request_id=request_id,
            prompt=tuple(prompt),
            params=SamplingParams(
                ignore_eos=r.random() < 0.5, prompt_logprobs=0 if r.random() < 0.15 else None
            ),
            max_tokens=r.randint(1, 12),
            seed=r.randrange(1000) * TENANTS + tenant,
            n=min(r.choice([1, 1, 1, 1, 2, 3, 8]), self.scheduler.config.max_rows),
            tenant=str(tenant),
            priority=r.choice([0, 0, 0, 0, 5, r.randint(-3, 3)]),
        )
        try:
            check_fits(request, self.scheduler.config, self.memory.pool.num_blocks, self.block_size)
        except RequestTooLarge:
            return
        self.books.requests[request_id] = request
        self.scheduler.submit(request)

    def step(self) -> None:
        """One turn of the engine's loop."""
        plan = self.scheduler.schedule()
        check_scheduler(self.scheduler)
        if plan is not None:
            self.outcome.steps += 1
            self.outcome.forks += len(plan.forks)
            assert plan.num_tokens <= self.scheduler.config.step_tokens, "the step's budget was exceeded"
            self.pipe.append((plan, self._disturb(self.executor.run(plan))))
        if not self.pipe:
            assert not self.scheduler.has_work, (
                "wedged: work is left, nothing is planned, nothing is in flight"
            )
        elif plan is None or len(self.pipe) > self.overlap:
            self._commit(*self.pipe.popleft())
            check_scheduler(self.scheduler)

    def _disturb(self, result: StepResult) -> StepResult:
        """The same result with a step time, and now and then with a sequence that failed."""
        r = self.random
        failures = {seq_id: "poisoned" for seq_id in result.samples if r.random() < self._failure_rate}
        samples = {seq_id: tokens for seq_id, tokens in result.samples.items() if seq_id not in failures}
        seconds = r.choice([0.001, 0.01, 1.0]) * r.random() if self._is_timed else 0.0
        return replace(result, samples=samples, failures=failures, seconds=seconds)

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        live = [s for i in self.scheduler.live_requests() for s in self.scheduler.sequences_of(i)]
        poisoned = [name for s in live if s.seq_id in result.failures for name in s.chain.names]
        self._learn(self.scheduler.commit(plan, result))
        assert not any(name in self.memory.pool.by_name for name in poisoned), "a poisoned block can be found"

    def drain(self) -> None:
        """No more arrivals: everything must finish (liveness)."""
        for _ in range(20_000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "livelock: 20,000 steps did not finish the work"
        for request in self.books.requests.values():
            for choice in range(request.n):
                assert (request.request_id, choice) in self.books.finals, "a request was lost"
        counts = self.memory.counts()
        assert counts.held == 0, "blocks are held by nobody that lives"
        self.outcome.preemptions = self.scheduler.num_preemptions
        self.outcome.evictions = self.memory.pool.num_evictions

    def run(self, steps: int) -> Outcome:
        """A whole life of at least `steps` turns."""
        for _ in range(steps):
            if self.random.random() < 0.35 and len(self.scheduler.live_requests()) < 20:
                self.arrive()
            if self.random.random() < 0.05 and self.scheduler.live_requests():
                self._cancel(self.random.choice(self.scheduler.live_requests()))
                check_scheduler(self.scheduler)
            self.step()
        self.drain()
        return self.outcome

    def _cancel(self, request_id: int) -> None:
        """All choices of the request, or one of them."""
        choices = range(self.books.requests[request_id].n)
        choice = self.random.choice([None, *choices])
        updates = self.scheduler.cancel(request_id, choice)
        assert all(choice in (None, update.choice) for update in updates), "another choice was cancelled"
        self._learn(updates)

    def _learn(self, updates: list[Update]) -> None:
        for update in updates:
            key = (update.request_id, update.choice)
            assert key not in self.books.finals, "an update after the final one"
            request, output = self.books.requests[update.request_id], self.books.outputs.setdefault(key, [])
            for sampled in update.tokens:
                wanted = next_token([*request.prompt, *output], request.seed, update.choice, VOCAB)
                assert sampled.token == wanted, f"request {key}, output {len(output)}: wrong token"
                output.append(sampled.token)
            scored = self.books.prompt_positions.setdefault(update.request_id, [])
            scored += [int(sampled.logprob) for sampled in update.prompt_logprobs]
            assert scored == list(range(1, len(scored) + 1)), "a prompt position is scored twice or left out"
            if update.finish is not None:
                self._check_final(request, output, update)

    def _check_final(self, request: Request, output: list[int], update: Update) -> None:
        self.books.finals[update.request_id, update.choice] = finish = update.finish or FinishReason.ERROR
        if finish is FinishReason.CANCELLED:
            self.outcome.cancelled += 1
            return
        if finish is FinishReason.ERROR:
            assert update.error == "poisoned"
            self.outcome.failed += 1
            return
        self.outcome.finished += 1
        self.outcome.cached_tokens += update.usage.num_cached
        stopped = bool(output) and output[-1] == EOS and not request.params.ignore_eos
        assert stopped == (finish is FinishReason.STOP)
        assert stopped or len(output) == request.max_tokens
        assert EOS not in output[:-1] or request.params.ignore_eos, "tokens after the end"
        if update.choice == 0 and request.params.prompt_logprobs is not None:
            scored = self.books.prompt_positions[request.request_id]
            assert len(scored) == len(request.prompt) - 1, "a prompt position was never scored"
            self.outcome.prompts_scored += 1


def drive(seed: int, overlap: int, steps: int = 300) -> Outcome:
    """Run one random life and return what it did; an AssertionError names what broke."""
    return Simulation(seed, overlap).run(steps)
