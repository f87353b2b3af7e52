"""The step: the whole machine in one short loop. Knows no thread and no event loop; time is an argument.

    commands -> schedule -> submit -> (depth 0: in turn, depth 1: one step later) -> commit -> updates

A broken invariant, or an executor that raises, fails every live request with a clear error; the ledger and
all names are dropped and the engine goes on with empty ones (`recover`). It never answers from a doubtful
cache.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from octavo.engine.outputs import EngineStats
from octavo.errors import OctavoError
from octavo.executor.executor import Executor
from octavo.scheduler.scheduler import Scheduler
from octavo.types import FinishReason, Request, StepPlan, StepResult, Update, Usage


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, or one choice of it; unknown ids are ignored, because it may have just finished."""

    request_id: int
    choice: int | None = None


Command = Submit | Cancel


class Inbox:
    """Any thread appends, the engine thread drains."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = threading.Condition()
        self._woken = False

    def put(self, command: Command) -> None:
        """Append, and wake the engine if it waits."""
        with self._arrived:
            self._commands.append(command)
            self._arrived.notify()

    def wake(self) -> None:
        """End a wait without a command."""
        with self._arrived:
            self._woken = True
            self._arrived.notify()

    def drain(self) -> list[Command]:
        """All commands so far, oldest first."""
        with self._arrived:
            commands, self._commands = list(self._commands), deque()
        return commands

    def wait(self) -> None:
        """Until a command is there or `wake` was called."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._commands or self._woken)
            self._woken = False


class Engine:
    """Scheduler and executor, turned by `step`. `new_scheduler` makes the ledger afresh after a broken
    invariant."""

    def __init__(
        self,
        new_scheduler: Callable[[], Scheduler],
        executor: Executor,
        reset_executor: Callable[[], None],
        depth: int,
        clock: Callable[[], float],
    ) -> None:
        assert depth in (0, 1)
        self.inbox = Inbox()
        self.scheduler = new_scheduler()
        self.executor = executor
        self.depth = depth
        self._new_scheduler = new_scheduler
        self._reset_executor = reset_executor
        self._clock = clock
        self._in_flight: deque[tuple[StepPlan, Future[StepResult]]] = deque()
        self._counters = _Counters()
        self.stats = self._counters.snapshot(
            self.scheduler
        )  # replaced after every step, so any thread may read it

    def step(self) -> list[Update]:
        """Drain the inbox, plan, run, commit. Returns what clients must learn; empty when there is nothing to
        do."""
        updates: list[Update] = []
        for command in self.inbox.drain():
            updates += self._apply(command)
        started = self._clock()
        plan = self.scheduler.schedule()
        planned = self._clock()
        if plan is not None:
            self._in_flight.append((plan, self.executor.submit(plan)))
            self._counters.steps += 1
        assert self._in_flight or not self.scheduler.has_work, (
            "wedged: work is left and nothing can be planned"
        )
        if self._in_flight and (plan is None or len(self._in_flight) > self.depth):
            plan, future = self._in_flight.popleft()
            result = future.result()
            committing = self._clock()
            updates += self.scheduler.commit(plan, result)
            self._counters.note_step(plan, result, planned - started + self._clock() - committing)
        for update in updates:
            self._counters.note_update(update)
        self.stats = self._counters.snapshot(self.scheduler)
        return updates

    @property
    def idle(self) -> bool:
        """True when only a command can make progress."""
        return not self._in_flight and not self.scheduler.has_work

    def recover(self, error: BaseException) -> list[Update]:
        """Fail every live request with the error, and start again with an empty ledger and no names."""
        while self._in_flight:
            _, future = self._in_flight.popleft()
            future.exception()  # wait; the result is of a state that is given up
        updates = []
        reason = f"the engine found its own state broken and started afresh: {type(error).__name__}: {error}"
        for request_id in self.scheduler.live_requests():
            for sequence in self.scheduler.sequences_of(request_id):
                for choice in (sequence.choice, *range(1, 1 + sequence.forks_left)):
                    usage = sequence.usage()
                    updates.append(Update(request_id, choice, (), usage, FinishReason.ERROR, error=reason))
        old = self.scheduler
        self.scheduler = self._new_scheduler()
        self._counters.retire(old)
        self._reset_executor()
        self.stats = self._counters.snapshot(self.scheduler)
        return updates

    def _apply(self, command: Command) -> list[Update]:
        if isinstance(command, Cancel):
            return self.scheduler.cancel(command.request_id, command.choice)
        request = command.request
        try:
            self.scheduler.submit(request)
        except OctavoError as error:  # rare: the client checks before it submits
            usage = Usage(len(request.prompt), 0, 0, 0)
            choices = range(request.n)
            return [
                Update(request.request_id, c, (), usage, FinishReason.ERROR, error=str(error))
                for c in choices
            ]
        return []


@dataclass(slots=True)
class _Counters:
    """What only grows."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    finished: int = 0
    preemptions_before: int = 0
    step_seconds: float = 0.0
    schedule_seconds: float = 0.0

    def note_step(self, plan: StepPlan, result: StepResult, schedule_seconds: float) -> None:
        self.step_seconds += result.seconds + schedule_seconds
        self.schedule_seconds += schedule_seconds

    def note_update(self, update: Update) -> None:
        self.output_tokens += len(update.tokens)
        if update.finish is not None:
            self.finished += update.choice == 0
            if update.choice == 0:
                self.prompt_tokens += update.usage.num_prompt
                self.cached_tokens += update.usage.num_cached

    def retire(self, scheduler: Scheduler) -> None:
        self.preemptions_before += scheduler.num_preemptions

    def snapshot(self, scheduler: Scheduler) -> EngineStats:
        counts = scheduler.memory.counts()
        size = scheduler.memory.block_size
        waste = sum(len(s.table) * size - s.num_planned for s in scheduler.running if s.table is not None)
        return EngineStats(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            blocks_total=counts.total,
            blocks_held=counts.held,
            blocks_cached=counts.cached,
            blocks_free=counts.free,
            block_size=size,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            steps=self.steps,
            preemptions=self.preemptions_before + scheduler.num_preemptions,
            requests_finished=self.finished,
            tail_slots_wasted=waste,
            step_seconds=self.step_seconds,
            schedule_seconds=self.schedule_seconds,
        )
