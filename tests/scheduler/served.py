"""A scheduler that is served by hand: one plan, one commit at a time, checked after each."""

from __future__ import annotations

from collections.abc import Callable

from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.memory.tiers import OffloadTier
from octavo.params import NO_TIMEOUTS, SamplerParams, Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import State
from octavo.step.context import SchedulerConfig
from octavo.types import FinishReason, Request, SampledToken, StepPlan, StepResult, Update, Usage


class Served:
    """A scheduler whose every sample is token 7; prompts are lists of ids that no other prompt has, unless
    given. Steps take no time, and no prompt is held back, unless `seconds_of` says what they take."""

    def __init__(
        self,
        *,
        blocks: int = 100,
        block: int = 4,
        rows: int = 8,
        tokens: int = 16,
        pins: int = 50,
        waiting: int = 1000,
        capacity: int | None = None,
        slots: int = 0,
        host_slots: int = 0,
        staging: int = 0,
        seconds_of: Callable[[StepPlan], float] | None = None,
    ) -> None:
        config = SchedulerConfig(
            rows,
            tokens,
            max_waiting=waiting,
            context_length=100_000,
            pace=seconds_of is not None,
            pin_blocks=pins,
            staging_blocks=staging,
        )
        self.memory = Ledger(blocks, block, capacity)
        tier = OffloadTier(slots, num_host=host_slots) if slots else None
        self.scheduler = Scheduler(self.memory, config, lambda tenant: root_name(tenant.encode()), tier)
        self.updates: list[Update] = []
        self.now = 0.0
        self._next_id = 0
        self._seconds_of = seconds_of or (lambda plan: 0.0)

    def add(
        self,
        prompt: int | tuple[int, ...],
        max_tokens: int = 1,
        *,
        n: int = 1,
        tenant: str = "",
        priority: int = 0,
        timeouts: Timeouts = NO_TIMEOUTS,
        fills_pin: str = "",
        **params: object,
    ) -> int:
        self._next_id += 1
        if isinstance(prompt, int):
            prompt = tuple(range(self._next_id * 10_000, self._next_id * 10_000 + prompt))
        sampling = SamplerParams(ignore_eos=True, **params)  # type: ignore[arg-type]
        request = Request(
            self._next_id,
            prompt,
            sampling,
            max_tokens,
            seed=0,
            n=n,
            tenant=tenant,
            priority=priority,
            arrival=self.now,
            timeouts=timeouts,
            fills_pin=fills_pin,
        )
        self.scheduler.submit(request)
        return self._next_id

    @property
    def next_id(self) -> int:
        """Of the request that will be added next."""
        return self._next_id + 1

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now)
        self.scheduler.check()
        assert plan is not None
        return plan

    def plan_of_nothing(self) -> StepPlan | None:
        """A plan without chunks, or None."""
        plan = self.scheduler.schedule(self.now)
        assert plan is None or not plan.chunks
        return plan

    def commit(self, plan: StepPlan, *failing: int) -> None:
        """Commit; the sequences of the requests `failing` fail."""
        sampled = [c.seq_id for c in plan.chunks if c.num_samples] + [f.child_seq_id for f in plan.forks]
        failures = {
            s.seq_id: "poisoned" for request in failing for s in self.scheduler.live.sequences_of(request)
        }
        samples = {seq_id: (SampledToken(7),) for seq_id in sampled if seq_id not in failures}
        result = StepResult(plan.step_id, samples, {}, failures, seconds=self._seconds_of(plan))
        self.updates += self.scheduler.commit(plan, result, self.now)
        self.scheduler.check()

    def step(self) -> StepPlan:
        plan = self.plan()
        self.commit(plan)
        return plan

    def drain(self) -> None:
        """Until nobody is left."""
        while self.scheduler.has_work:
            self.step()

    def open_pin(self, name: str, num_tokens: int, tenant: str) -> int:
        """Queue the request that fills a pin of so many tokens; its id."""
        first = self.next_id * 10_000
        order = PinRequest(name, tuple(range(first, first + num_tokens)), 60.0, tenant=tenant)
        self.scheduler.client_pins.open(order, self.next_id, 0.0)
        return self.add(order.tokens, 1, tenant=tenant, fills_pin=name)

    def usage(self, request_id: int) -> Usage:
        """As its last update told."""
        return next(u.usage for u in reversed(self.updates) if u.request_id == request_id)

    def state(self, request_id: int) -> State:
        found = self.scheduler.live.sequences_of(request_id)
        return found[0].state if found else State.FINISHED

    def finished(self, request_id: int) -> dict[int, FinishReason]:
        return {u.choice: u.finish for u in self.updates if u.request_id == request_id and u.finish}
