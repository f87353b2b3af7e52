"""The step: the whole machine in one short loop. Knows no thread and no event loop; time is an argument.

    commands -> schedule -> submit -> (depth 0: in turn, depth 1: one step later) -> commit -> updates

A broken invariant, or an executor that raises, fails every live request with a clear error; the ledger and
all names are dropped and the engine goes on with empty ones (`recover`). It never answers from a doubtful
cache. A command that raises takes no other with it: those behind it are applied to the engine that begins
afresh.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from octavo.engine.memory_watch import MemoryWatch
from octavo.engine.outputs import EngineStats
from octavo.errors import OctavoError
from octavo.executor.executor import Executor, PendingResult
from octavo.inspect.inspector import Inspector
from octavo.memory.capacity import Capacities
from octavo.scheduler.scheduler import Scheduler
from octavo.step.events import EventKind
from octavo.types import FinishReason, Request, StepPlan, StepResult, TransferDone, Update, Usage

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request. Whether it was taken is told to `answer`, if there is one; else only a refusal, as its
    final updates."""

    request: Request
    answer: Future[None] | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, or one choice of it; unknown ids are ignored, because it may have just finished."""

    request_id: int
    choice: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Call `question(scheduler, now)` between two steps: how other threads look at the ledger, or change it.
    What it returns tells the answer, which is done when other threads can see what was changed."""

    question: Callable[[Scheduler, float], Callable[[], None]]
    fail: Callable[[OctavoError], None]  # instead, when no thread is left to answer
    request_id: int | None = None  # of the request that the question queues, if it does


Command = Submit | Cancel | Ask | TransferDone


def ask(
    inbox: Inbox,
    question: Callable[[Scheduler, float], AnswerT],
    request_id: int | None = None,
    *,
    only_reads: bool = False,
) -> Future[AnswerT]:
    """The answer to a question that is put to the scheduler on the engine's thread; an OctavoError is an
    answer too. `request_id` is that of the request which the question queues. `only_reads`: where it raises,
    nothing but the answer is lost."""
    answer: Future[AnswerT] = Future()

    def put(scheduler: Scheduler, now: float) -> Callable[[], None]:
        if not answer.set_running_or_notify_cancel():
            return lambda: None  # the caller has gone
        try:
            result = question(scheduler, now)
        except Exception as error:
            if only_reads or isinstance(error, OctavoError):
                return partial(answer.set_exception, error)
            answer.set_exception(error)
            raise  # a bug of ours, perhaps half-way through a change: the engine recovers
        return partial(answer.set_result, result)

    def fail(error: OctavoError) -> None:
        if answer.set_running_or_notify_cancel():
            answer.set_exception(error)

    inbox.put(Ask(put, fail, request_id))
    return answer


def inspector_of(scheduler: Scheduler) -> Inspector:
    """Reads the scheduler's parts; for the engine's thread."""
    return Inspector(
        scheduler.context,
        scheduler.live,
        scheduler.pins,
        scheduler.session_table,
        scheduler.warm_pins,
        scheduler.transfers,
        scheduler.idle_memory,
    )


def continue_from(scheduler: Scheduler, old: Scheduler) -> None:
    """A new ledger over the same bytes: what happened stays told, tenants keep their bounds. Pins, names and
    sessions are gone with the old one."""
    scheduler.ledger.resize(old.ledger.pool.num_blocks, ())
    scheduler.tenants.continue_from(old.tenants)
    scheduler.idle_memory.continue_from(old.idle_memory)
    scheduler.context.events = old.context.events


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

    def put_back(self, commands: Iterable[Command]) -> None:
        """These were drained and not applied: they come before all that has arrived since."""
        with self._arrived:
            self._commands = deque([*commands, *self._commands])
            self._arrived.notify()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until a command is there, `wake` was called, or the time has passed."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._commands or self._woken, timeout_s)
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
        inbox: Inbox | None = None,
        watch: MemoryWatch | None = None,
    ) -> None:
        assert depth in (0, 1)
        self.inbox = inbox or Inbox()
        self.scheduler = new_scheduler()
        self.executor = executor
        self.depth = depth
        self._new_scheduler = new_scheduler
        self._reset_executor = reset_executor
        self.clock = clock
        self._watch = watch
        self._in_flight: deque[tuple[StepPlan, PendingResult]] = deque()
        self._stalled = False  # work is left, and all of it waits for transfers
        self._counters = _Counters()
        # Replaced after every step, never changed: any thread may read them.
        self.stats: EngineStats
        self.capacities: Capacities
        self.publish()

    def step(self) -> list[Update]:
        """Drain the inbox, plan, run, commit. Returns what clients must learn; empty when there is nothing to
        do."""
        updates: list[Update] = []
        commands = deque(self.inbox.drain())
        try:
            while commands:
                updates += self._apply(commands.popleft())
        except BaseException:
            self.inbox.put_back(commands)  # they have done nothing wrong, and the engine goes on
            raise
        started = self.clock()
        updates += self.scheduler.expire(started)
        if self._watch is not None and started >= self._watch.due:
            self._watch.tick(self.scheduler, started)
        plan = self.scheduler.schedule(started)
        planned = self.clock()
        if plan is not None:
            self._in_flight.append((plan, self.executor.submit(plan)))
            self._counters.steps += 1
        self._stalled = not self._in_flight and self.scheduler.has_work
        assert not self._stalled or self.scheduler.transfers.in_flight, (
            "wedged: work is left and nothing can be planned"
        )
        if self._in_flight and (plan is None or len(self._in_flight) > self.depth):
            plan, future = self._in_flight.popleft()
            result = future.result()
            committing = self.clock()
            updates += self.scheduler.commit(plan, result, committing)
            self._counters.record_step(plan, result, planned - started + self.clock() - committing)
        for update in updates:
            self._counters.record_update(update)
        self.publish()
        return updates

    def publish(self) -> None:
        """What other threads read, as it is now: after each step, and when the scheduler was changed before
        the first one."""
        self.stats = self._counters.snapshot(self.scheduler)
        self._publish_capacities()

    def _publish_capacities(self) -> None:
        self.capacities = self.scheduler.room.capacities

    def seconds_to_next_event(self) -> float | None:
        """How long an idle engine may sleep; None: until a command comes."""
        times = [self.scheduler.next_event()]
        if self._watch is not None:
            times.append(self._watch.next_look(self.scheduler))
        at = min((time for time in times if time is not None), default=None)
        return None if at is None else max(0.0, at - self.clock())

    @property
    def idle(self) -> bool:
        """True when only a command can make progress: there is no work, or all of it waits for transfers."""
        if self._in_flight or (not self._stalled and self.scheduler.has_work):
            return False
        return not self.scheduler.could_store

    @property
    def has_work(self) -> bool:
        """True while a request is unfinished or a plan uncommitted."""
        return bool(self._in_flight) or self.scheduler.has_work

    def recover(self, error: BaseException) -> list[Update]:
        """Fail every live request with the error, and start again with an empty ledger and no names."""
        while self._in_flight:
            _, future = self._in_flight.popleft()
            future.exception()  # wait; the result is of a state that is given up
        updates = []
        reason = f"the engine found its own state broken and started afresh: {type(error).__name__}: {error}"
        for request_id in self.scheduler.live.live_requests():
            for sequence in self.scheduler.live.heads_of(request_id):
                for choice in sequence.choices_left:
                    usage = sequence.usage(self.clock())
                    updates.append(Update(request_id, choice, (), usage, FinishReason.ERROR, error=reason))
        old = self.scheduler
        self._reset_executor()  # first: no transfer of the old ledger may reach the new one's blocks
        self.scheduler = self._new_scheduler()
        continue_from(self.scheduler, old)
        self._stalled = False
        self._counters.retire(old)
        self.publish()
        return updates

    def _apply(self, command: Command) -> list[Update]:
        if isinstance(command, Ask):
            tell = command.question(self.scheduler, self.clock())
            self._publish_capacities()  # before the answer: what its reader asks next meets what was changed
            tell()
            return []
        if isinstance(command, TransferDone):
            self.scheduler.transfers.finish(command)
            return []
        if isinstance(command, Cancel):
            return self.scheduler.cancel(command.request_id, command.choice)
        request, answer = command.request, command.answer
        if answer is not None and not answer.set_running_or_notify_cancel():
            return []  # the caller has gone
        try:
            self.scheduler.submit(request)
        except OctavoError as error:  # rare: the client checks before it submits, but for a tenant's bounds
            if answer is not None:
                answer.set_exception(error)
                return []
            usage = Usage(len(request.prompt), 0, 0, 0)
            choices = range(request.n)
            return [
                Update(request.request_id, c, (), usage, FinishReason.ERROR, error=str(error))
                for c in choices
            ]
        if answer is not None:
            self._publish_capacities()
            answer.set_result(None)
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
    kept_before: int = 0
    tokens_recomputed_before: int = 0
    step_seconds: float = 0.0
    schedule_seconds: float = 0.0
    mask_seconds: float = 0.0
    forced_tokens: int = 0

    def record_step(self, plan: StepPlan, result: StepResult, schedule_seconds: float) -> None:
        self.step_seconds += result.seconds + schedule_seconds
        self.schedule_seconds += schedule_seconds + result.batch_seconds
        self.mask_seconds += result.mask_seconds
        self.forced_tokens += result.num_forced

    def record_update(self, update: Update) -> None:
        self.output_tokens += len(update.tokens)
        if update.finish is not None:
            self.finished += update.choice == 0
            if update.choice == 0:
                self.prompt_tokens += update.usage.num_prompt
                self.cached_tokens += update.usage.num_cached

    def retire(self, scheduler: Scheduler) -> None:
        self.preemptions_before += scheduler.live.num_preemptions
        self.kept_before += scheduler.staging.num_kept
        self.tokens_recomputed_before += scheduler.live.tokens_recomputed

    def snapshot(self, scheduler: Scheduler) -> EngineStats:
        counts, transfers = scheduler.ledger.counts(), scheduler.transfers
        counted, speculator = scheduler.context.events.counts, scheduler.speculator
        size, preemptions = (
            scheduler.ledger.block_size,
            self.preemptions_before + scheduler.live.num_preemptions,
        )
        kept = self.kept_before + scheduler.staging.num_kept
        waste = sum(
            len(s.table.blocks) * size - s.num_planned for s in scheduler.live.running if s.table is not None
        )
        return EngineStats(
            waiting=len(scheduler.live.waiting.line),
            running=len(scheduler.live.running),
            blocks_total=counts.total,
            blocks_held=counts.held,
            blocks_cached=counts.cached,
            blocks_free=counts.free,
            device=scheduler.config.device,
            block_size=size,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            steps=self.steps,
            preemptions=preemptions,
            preemptions_kept=kept,
            preemptions_recomputed=preemptions - kept,
            tokens_recomputed=self.tokens_recomputed_before + scheduler.live.tokens_recomputed,
            requests_finished=self.finished,
            tail_slots_wasted=waste,
            step_seconds=self.step_seconds,
            schedule_seconds=self.schedule_seconds,
            mask_seconds=self.mask_seconds,
            forced_tokens=self.forced_tokens,
            draft_tokens={} if speculator is None else dict(speculator.drafted),
            accepted_draft_tokens={} if speculator is None else dict(speculator.accepted),
            drafter_bytes=0 if speculator is None else speculator.num_bytes,
            evictions=scheduler.events.blocks[EventKind.EVICTED],
            blocks_resident=scheduler.ledger.pool.backing.count,
            blocks_wanted=scheduler.idle_memory.blocks_wanted,
            blocks_pinned=scheduler.pins.num_blocks,
            blocks_below=0 if transfers.tier is None else transfers.tier.num_stored,
            blocks_stored=transfers.num_stored,
            blocks_loaded=transfers.num_loaded,
            transfers_failed=transfers.num_failed,
            sessions=len(scheduler.session_table),
            blocks_kept_below=0 if transfers.tier is None else transfers.tier.num_kept,
            events={kind.value: counted[kind] for kind in EventKind},
        )
