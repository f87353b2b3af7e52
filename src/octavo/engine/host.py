"""The engine's host: runs the engine on a thread, accepts requests of its clients, and delivers their
updates.

    Submitter (event loops of this process) --\\
    FrontEndLink (another process)          ---+--> EngineHost --> inbox --> engine's thread
                        ^                                                             |
                        +---------------- updates, one call a step ------------------+

It enforces the bounds over all clients: the number of open requests, and each tenant's share.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from octavo.engine.answers import with_grammars
from octavo.engine.core import Engine, broken, describe
from octavo.engine.loop import EngineLoop
from octavo.engine.port import Cancel, Command, ReplyT, Submit, ViewStats, request_of
from octavo.engine.traffic import TrafficWriter, is_traffic
from octavo.errors import DeviceLost, EngineStopped, QueueFull
from octavo.inspect.stats import EngineStats
from octavo.memory.quota import share_of
from octavo.sampling.grammars import Grammars
from octavo.types import Request, Update


class Receiver(Protocol):
    """A client of a host: receives the updates of its requests. Called from any thread, mostly the engine's,
    which it must not block."""

    def deliver(self, updates: list[Update]) -> None:
        """Updates of one step, for its own requests only."""

    def end_requests(self, request_ids: Collection[int], reason: str) -> None:
        """The engine has lost these requests: no update of them will come."""

    def give_up(self, reason: str) -> None:
        """The engine has ended by itself; all requests are lost."""


class Host(Protocol):
    """A `Submitter`'s interface to an engine, in this process or another one."""

    stop_ids: frozenset[int]
    block_size: int

    @property
    def num_recoveries(self) -> int:
        """How often the engine has restarted with an empty ledger."""

    def join(self, receiver: Receiver) -> None:
        """Register a client that submits requests, and is notified when the engine gives up."""

    def clock(self) -> float:
        """The engine's time."""

    def new_id(self) -> int:
        """A new unique request id."""

    def send(self, command: Command[ReplyT]) -> Future[ReplyT]:
        """Execute it between two steps. Cancelling the future withdraws a command that was not executed."""

    def post(self, command: Command[ReplyT]) -> None:
        """As `send`, without a reply."""

    def submit(self, receiver: Receiver, command: Submit, held: object = None) -> Future[int]:
        """Queue a request, whose updates go to the receiver; `held` is kept alive until it ends. Raises
        QueueFull or EngineStopped, or the future does."""

    def withdraw(self, request_id: int) -> None:
        """Cancel a queued request whose submitter has disconnected or was refused."""

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """End a request, or one choice of it."""

    def stats(self) -> Future[EngineStats]:
        """Counters and gauges, between two steps."""

    def last_stats(self) -> Future[EngineStats]:
        """The statistics computed last, for any client: immediately."""

    def end(self) -> None:
        """Refuse new requests, and end after the current step. Idempotent."""

    def close(self) -> None:
        """As `end`, and close the engine."""


@dataclass(slots=True)
class _OpenRequest:
    """A request that the engine has not ended."""

    receiver: Receiver
    tenant: str
    num_left: int  # choices without a final update
    held: object  # its compiled grammar, kept alive for its rows
    traced: Request | None = None  # to be written to the traffic file
    num_output: int = 0  # tokens of its ended choices; counted only for the traffic file


class EngineHost:
    """The host of an engine in this process. `max_open` bounds the open requests of all clients together.
    `on_give_up` is called once, when the engine has ended by itself after repeated failures. Ended
    requests are written to `traffic`, which is closed with the host."""

    def __init__(
        self,
        engine: Engine,
        max_open: int,
        grammars: Grammars | None = None,
        on_give_up: Callable[[str], None] = lambda reason: None,
        traffic: TrafficWriter | None = None,
    ) -> None:
        self.engine = engine
        self._traffic = traffic
        self._started_at = engine.clock()  # arrivals in the traffic file are relative to it
        self._grammars = grammars
        self.stop_ids, self.block_size = engine.config.stop_ids, engine.block_size
        self._last_stats = engine.stats
        self._max_open = max_open
        self._on_give_up = on_give_up
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, _OpenRequest] = {}  # by request id; guarded by _lock
        self._receivers: list[Receiver] = []  # those that have joined; guarded by _lock
        self.last_id = 0  # the largest id of a submitted request
        self._closed: str | None = None  # why requests are refused; None: they are accepted
        self.gave_up: str | None = None  # why the engine ended by itself; None: it has not
        self._loop = EngineLoop(engine, self._deliver, self._recovered, self._give_up)
        self._loop.start()

    def join(self, receiver: Receiver) -> None:
        """Register a client that submits requests, and is notified when the engine gives up."""
        with self._lock:
            self._receivers.append(receiver)
            gave_up = self.gave_up
        if gave_up is not None:
            receiver.give_up(gave_up)

    def leave(self, receiver: Receiver) -> None:
        """The client has disconnected: cancel its requests."""
        with self._lock:
            if receiver in self._receivers:
                self._receivers.remove(receiver)
            own = [request_id for request_id, one in self._open.items() if one.receiver is receiver]
        for request_id in own:
            self.withdraw(request_id)

    @property
    def num_recoveries(self) -> int:
        """See `Engine`."""
        return self.engine.num_recoveries

    def clock(self) -> float:
        """The engine's time."""
        return self.engine.clock()

    def new_id(self) -> int:
        """The next number."""
        return next(self._ids)

    # -- commands

    def send(self, command: Command[ReplyT]) -> Future[ReplyT]:
        """Put it into the inbox."""
        return self.engine.inbox.send(command)

    def post(self, command: Command[ReplyT]) -> None:
        """Put it into the inbox. Commands are executed in order of arrival."""
        self.engine.inbox.post(command)

    def submit(self, receiver: Receiver, command: Submit, held: object = None) -> Future[int]:
        """Register the request and send the command. Raises QueueFull or EngineStopped."""
        request = command.request
        with self._lock:  # so that `_recovered` finds every request in the inbox or in the engine
            if self._closed is not None or receiver not in self._receivers:
                raise EngineStopped(self._closed or "the client has gone")
            own = (one.tenant == request.tenant for one in self._open.values())
            share = share_of(self._max_open, self.engine.num_tenants)
            if len(self._open) >= self._max_open and sum(own) >= share:
                raise QueueFull(
                    f"too many requests are waiting or running; allowed: {self._max_open:,} "
                    "(settings max_queue and max_seqs); try again shortly"
                )
            self.last_id = max(self.last_id, request.request_id)
            traced = request if self._traffic is not None and is_traffic(request) else None
            self._open[request.request_id] = _OpenRequest(receiver, request.tenant, request.n, held, traced)
            return self.engine.inbox.send(command)

    def withdraw(self, request_id: int) -> None:
        """Forget it, and cancel it after its command."""
        with self._lock:
            self._open.pop(request_id, None)
        self.post(Cancel(request_id))

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """Does nothing for a request that has ended."""
        with self._lock:
            if request_id in self._open:
                self.post(Cancel(request_id, choice))

    def stats(self) -> Future[EngineStats]:
        """Computed between two steps, with the costs of compiling."""
        reply, whole = self.send(ViewStats()), Future[EngineStats]()

        def finish(reply: Future[EngineStats]) -> None:
            if not whole.set_running_or_notify_cancel():
                return
            error = EngineStopped("the engine has stopped") if reply.cancelled() else reply.exception()
            if error is not None:
                whole.set_exception(error)
                return
            stats, grammars = reply.result(), self._grammars
            self._last_stats = stats if grammars is None else with_grammars(stats, grammars)
            whole.set_result(self._last_stats)

        reply.add_done_callback(finish)
        return whole

    def last_stats(self) -> Future[EngineStats]:
        """As of the last call of `stats`."""
        done: Future[EngineStats] = Future()
        done.set_result(self._last_stats)
        return done

    # -- the end

    def end(self) -> None:
        """Refuse new requests, and end the engine's thread after the current step. Idempotent."""
        with self._lock:
            self._closed = self._closed or "the engine has stopped"
        self._loop.end()

    def close(self) -> None:
        """As `end`, and close the executor. Requests still open end with an error."""
        self.end()
        self._loop.stop()
        self._end_all(self._closed or "")
        if self._traffic is not None:
            self._traffic.close()

    # -- the engine's thread

    def _deliver(self, updates: list[Update]) -> None:
        """Deliver the updates of a step, with one call for each receiver."""
        by_receiver: dict[int, tuple[Receiver, list[Update]]] = {}
        ended: list[_OpenRequest] = []
        with self._lock:
            for update in updates:
                one = self._open.get(update.request_id)
                if one is None:
                    continue
                by_receiver.setdefault(id(one.receiver), (one.receiver, []))[1].append(update)
                if update.finish is not None:
                    one.num_left -= 1
                    one.num_output += update.usage.num_output
                    if one.num_left == 0:
                        del self._open[update.request_id]
                        ended.append(one)
        for receiver, own in by_receiver.values():
            receiver.deliver(own)
        if self._traffic is not None:
            self._trace(self._traffic, ended)

    def _trace(self, traffic: TrafficWriter, ended: Collection[_OpenRequest]) -> None:
        """After the delivery to their clients."""
        for one in ended:
            if (request := one.traced) is not None:
                traffic.write(request, request.arrival - self._started_at, one.num_output)

    def _recovered(self, updates: list[Update], error: BaseException) -> None:
        """After a broken step: end every request that the engine had accepted.

        `updates` are the final updates of those that were still live. A request that the broken step had just
        ended, or was just accepting, is not among them, and would wait for ever. Requests still in the inbox
        will be served.
        """
        self._deliver(updates)
        with self._lock:
            requests = map(request_of, self.engine.inbox.unread())
            unread = {request.request_id for request in requests if request is not None}
            lost = {i: one for i, one in self._open.items() if i not in unread}
            for request_id in lost:
                del self._open[request_id]
        _end_each(lost, broken(error))

    def _give_up(self, error: BaseException) -> None:
        often = "" if isinstance(error, DeviceLost) else " after repeated failures"
        reason = f"the engine has stopped{often}: {describe(error)}"
        with self._lock:
            self._closed = self.gave_up = reason
            receivers = list(self._receivers)
        self._on_give_up(reason)
        for receiver in receivers:  # before a stream ends, each receiver has the reason
            receiver.give_up(reason)
        self._end_all(reason)

    def _end_all(self, reason: str) -> None:
        self.engine.inbox.close(EngineStopped(reason))
        with self._lock:
            lost, self._open = self._open, {}
        _end_each(lost, reason)


def _end_each(lost: dict[int, _OpenRequest], reason: str) -> None:
    """End the requests, with one call for each receiver."""
    by_receiver: dict[int, tuple[Receiver, list[int]]] = {}
    for request_id, one in lost.items():
        by_receiver.setdefault(id(one.receiver), (one.receiver, []))[1].append(request_id)
    for receiver, own in by_receiver.values():
        receiver.end_requests(own, reason)
