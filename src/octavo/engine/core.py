"""The step: the whole machine in one short loop. It has no thread and no event loop; time is an argument.

    commands -> schedule -> submit -> (depth 0: in turn, depth 1: one step later) -> commit -> updates

A broken invariant, or an executor that raises, fails every live request with a clear error. The ledger and
all names are dropped and the engine continues with empty ones (`recover`). It never answers from a doubtful
cache. A command that raises affects no other: the commands after it are applied to the new ledger.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from octavo.engine.inbox import Envelope, Inbox
from octavo.engine.memory_watch import MemoryWatch
from octavo.engine.port import Cancel, Command, Port, ReplyT, View, ViewStats
from octavo.engine.recording import Recorder
from octavo.errors import DeviceLost, OctavoError, RequestFailed
from octavo.executor.executor import Executor, PendingResult
from octavo.inspect.stats import EngineCounters, EngineStats
from octavo.memory.changes import ChangeRecord
from octavo.memory.place_changes import PlaceChanges
from octavo.scheduler.scheduler import Scheduler
from octavo.types import RankState, StepPlan, Update

log = logging.getLogger("octavo.engine")


class Device(Protocol):
    """The engine's interface to the computing device, besides plans: a `Runner`."""

    def warm_more(self) -> bool:
        """See `Engine.warm_more`."""

    def check(self) -> None:
        """Raises DeviceLost."""

    def ranks(self) -> tuple[RankState, ...]:
        """The devices that share the model."""


class ChangeReceiver(Protocol):
    """Receives changes of blocks. Called on the engine's thread, must not wait: a `Publisher`."""

    def begin(self, record: ChangeRecord) -> None:
        """A ledger is new; its whole state is in its record."""

    def hand_over(self, record: ChangeRecord) -> int:
        """A step has ended: take the changes of the record. Returns how many were dropped in a gap."""

    def close(self) -> None:
        """Idempotent."""


class PlaceReceiver(Protocol):
    """Receives names without tokens. Called on the engine's thread, must not wait: a `ReplicaFeed`."""

    def begin(self, places: PlaceChanges) -> None:
        """Follow a new ledger."""

    def hand_over(self) -> None:
        """Take the changes of the step that has ended."""

    def close(self) -> None:
        """Idempotent."""


class Engine:
    """Scheduler and executor, turned by `step`. `new_scheduler` makes a new ledger after a broken
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
        recorder: Recorder | None = None,
        device: Device | None = None,
        changes: ChangeReceiver | None = None,
        places: PlaceReceiver | None = None,
    ) -> None:
        assert depth in (0, 1)
        self.inbox = inbox or Inbox()
        self.executor = executor
        self.depth = depth
        self.clock = clock
        self._new_scheduler = new_scheduler
        self._reset_executor = reset_executor
        self._watch = watch
        self._recorder = recorder
        self._device = device
        self._changes = changes
        self._places = places
        self._in_flight: deque[tuple[StepPlan, PendingResult]] = deque()
        self.num_recoveries = 0
        self.restore_sessions: Callable[[], None] = lambda: None  # to a new scheduler; see `recover`
        self._stalled = False  # all remaining work waits for transfers
        self._counters = EngineCounters()
        self._begin(new_scheduler())

    def _begin(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.config, self.block_size = scheduler.config, scheduler.block_size
        policy = None if self._watch is None else self._watch.policy
        ranks = None if self._device is None else self._device.ranks
        self._port = Port(scheduler, self._counters, policy, ranks)
        if self._changes is not None and (record := self._port.changes) is not None:
            self._changes.begin(record)
        if self._places is not None:
            self._places.begin(self._port.follow_places())

    @property
    def num_tenants(self) -> int:
        """Tenants in the operator's last list. From any thread."""
        return self.scheduler.num_tenants

    def warm_more(self) -> bool:
        """Do a piece of work for later steps while idle; False: nothing is left."""
        return self._device is not None and self._device.warm_more()

    def step(self) -> list[Update]:
        """Apply the inbox's commands, plan, run, commit. Returns the clients' updates; empty without work."""
        if self._device is not None:
            self._device.check()
        updates: list[Update] = []
        envelopes = deque(self.inbox.drain())
        try:
            while envelopes:
                updates += self._open(envelopes.popleft())
        except BaseException:
            self.inbox.put_back(envelopes)  # they did not fail, and the engine continues
            raise
        started = self.clock()
        if self._recorder is not None:
            self._recorder.expire(started)
        updates += self.scheduler.expire(started)
        if self._watch is not None and started >= self._watch.due:
            self._apply(self._watch.read(started), started)
        plan = self.scheduler.schedule(started)
        planned = self.clock()
        if self._recorder is not None:
            self._recorder.schedule(plan)
        if plan is not None:
            self._in_flight.append((plan, self.executor.submit(plan)))
            self._counters.steps += 1
        self._stalled = not self._in_flight and self.scheduler.has_work
        may_go_on = self.scheduler.waits_for_transfers or self.scheduler.has_stuck
        assert not self._stalled or may_go_on, "wedged: work is left and nothing can be planned"
        if self._in_flight and (plan is None or len(self._in_flight) > self.depth):
            updates += self._commit(planned - started)
        self._port.record(updates)
        if self._changes is not None and (record := self._port.changes) is not None:
            self._counters.record_events_lost(self._changes.hand_over(record))
        if self._places is not None:
            self._places.hand_over()
        return updates

    def _commit(self, planning_seconds: float) -> list[Update]:
        """Wait for the oldest plan's result."""
        plan, future = self._in_flight.popleft()
        result = future.result()
        committing = self.clock()
        if self._recorder is not None:
            self._recorder.commit(result, committing)
        updates = self.scheduler.commit(plan, result, committing)
        if result.too_large:
            limit = self.scheduler.step_tokens
            log.warning("%s; steps compute up to %s positions from now on", result.too_large, f"{limit:,}")
        self._counters.record_step(result, planning_seconds + self.clock() - committing)
        return updates

    @property
    def stats(self) -> EngineStats:
        """Computed now; on the engine's thread only."""
        return self.apply(ViewStats())

    def seconds_to_next_event(self) -> float | None:
        """Seconds for which an idle engine may sleep; None: until a command comes."""
        times = [self.scheduler.next_event()]
        if self._watch is not None:
            times.append(self._watch.next_look(self._port.unused_until))
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

    @property
    def has_transfers(self) -> bool:
        """True while offload transfers are in flight, or would begin with the next step."""
        return self.scheduler.could_store or self.scheduler.waits_for_transfers

    @property
    def num_waiting(self) -> int:
        """Waiting sequences; on the engine's thread only."""
        return self.scheduler.num_waiting

    @property
    def request_ids(self) -> list[int]:
        """Unfinished requests; on the engine's thread only."""
        return self.scheduler.request_ids

    def recover(self, error: BaseException) -> list[Update]:
        """Fail every live request with the error, and restart with an empty ledger and no names. Sessions are
        restored in the new scheduler before any other command."""
        while self._in_flight:
            _, future = self._in_flight.popleft()
            future.exception()  # wait; the result belongs to the discarded state
        reason = broken(error)
        updates = self.scheduler.final_updates(reason, self.clock())
        old = self.scheduler
        self._reset_executor()  # first: no transfer of the old ledger may reach the new one's blocks
        self._port.retire()
        if self._recorder is not None:
            self._recorder.recover(reason)
        new = self._new_scheduler()
        new.continue_from(old)
        self._stalled = False
        self._begin(new)
        self.num_recoveries += 1  # before the store is read: later turns are not in it
        self._port.record_ends(updates)
        self.restore_sessions()
        return updates

    def before_sleep(self) -> None:
        """The engine's thread is about to wait, perhaps for long."""
        if self._recorder is not None:
            self._recorder.flush()

    def close(self) -> None:
        """Close the executor, the recording and the receivers of changes. Idempotent."""
        self.executor.close()
        if self._changes is not None:
            self._changes.close()
        if self._places is not None:
            self._places.close()
        if self._recorder is not None:
            self._recorder.close()

    def apply(self, command: Command[ReplyT]) -> ReplyT:
        """Execute a command now, on the engine's thread. Raises as the command documents."""
        return self._apply(command, self.clock())

    def _apply(self, command: Command[ReplyT], now: float) -> ReplyT:
        if self._recorder is not None and not isinstance(command, View):
            self._recorder.apply(command, now)
        try:
            reply = self._port.answer(command, now)
        except OctavoError:
            if self._recorder is not None and not isinstance(command, View):
                self._recorder.refuse()
            raise
        return cast(ReplyT, reply)

    def _open(self, envelope: Envelope[object]) -> list[Update]:
        """Execute the command and reply. Raises non-OctavoErrors, unless the command only reads."""
        command, reply = envelope.command, envelope.reply
        if reply is not None and not reply.set_running_or_notify_cancel():
            return []  # its sender has disconnected
        try:
            answer = self.apply(command)
        except OctavoError as error:
            envelope.fail(error)
            return []
        except Exception as error:
            if isinstance(command, View):
                log.exception("%s failed", type(command).__name__)
                envelope.fail(RequestFailed(f"the engine could not read its state: {describe(error)}"))
                return []
            envelope.fail(RequestFailed(broken(error)))
            raise  # a bug, perhaps in the middle of a change: the engine recovers
        if reply is not None:
            reply.set_result(answer)
        return cast("list[Update]", answer) if isinstance(command, Cancel) else []


def describe(error: BaseException) -> str:
    """The class and the text of an error."""
    return f"{type(error).__name__}: {error}"


def broken(error: BaseException) -> str:
    """The client's error text for a broken engine state: a bug, or a lost device."""
    if isinstance(error, DeviceLost):
        return f"the engine has stopped: {error}"
    return f"the engine found its own state broken and restarted: {describe(error)}"
