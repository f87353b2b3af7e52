"""The client's end of the engine: requests in, streams of deltas out. Event loops on one side, the engine's
thread on the other.

    submit(...) -> inbox -> engine's thread -> one callback per step -> call_soon_threadsafe -> stream

What the model refuses (context, vocabulary, grammars) is refused here, before the inbox; what the pool, a
quota or the queue refuses, by the scheduler, whose reply the client awaits.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from asyncio import wrap_future
from concurrent.futures import Future
from dataclasses import replace

from octavo.engine.answers import with_grammars
from octavo.engine.assemble import Assembler, Vocabulary
from octavo.engine.compilers import Compilers
from octavo.engine.core import Engine, broken, describe
from octavo.engine.loop import EngineLoop
from octavo.engine.port import (
    Command,
    ReplyT,
    Submit,
    ViewStats,
    request_of,
)
from octavo.engine.requests import ModelFacts, checked
from octavo.engine.stream import DeltaStream, Follower, call_soon, end_all
from octavo.errors import DeviceLost, EngineStopped, QueueFull
from octavo.inspect.stats import EngineStats
from octavo.memory.quota import share_of
from octavo.retention.client_pins import PinOrder
from octavo.types import Request, Update

REPLY_TIMEOUT_S = 60.0  # a step takes less
STATS_TIMEOUT_S = 2.0  # who scrapes waits for no step that takes longer


class Submitter:
    """Sends commands and opens the streams of requests; `max_open` of them at once."""

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        facts: ModelFacts,
        compilers: Compilers,
        max_open: int,
    ) -> None:
        self.engine = engine
        self.compilers = compilers
        self._facts = facts
        self._vocabulary = vocabulary
        self._max_open = max_open
        self._ids, self._lock = itertools.count(1), threading.Lock()
        self._streams: dict[int, DeltaStream] = {}  # guarded by _lock: requests that the engine has not ended
        self._left: dict[int, int] = {}  # guarded by _lock: choices without a final update
        self._closed: str | None = None  # why nothing is taken any more
        self.gave_up: str | None = None  # why the engine ended by itself, after repeated failures
        self._last_stats = engine.stats
        self._stats_reply: Future[EngineStats] | None = None  # the one that is on its way, for all callers
        self._loop = EngineLoop(engine, self._deliver, self._recovered, self._give_up)
        self._loop.start()

    # -- commands

    async def send(self, command: Command[ReplyT]) -> ReplyT:
        """The engine's reply, between two steps. Raises as the command says, or EngineStopped, also when it
        drains and no request is left. Cancelling the call withdraws a command that was not carried out
        yet."""
        if self._closed is not None and not self._streams:
            raise EngineStopped(self._closed)
        return await self._reply_to(self.engine.inbox.send(command))

    def post(self, command: Command[ReplyT]) -> None:
        """Send a command, and wait for no reply. Commands are carried out in the order in which they came."""
        self.engine.inbox.post(command)

    async def stats(self) -> EngineStats:
        """Counters and gauges, computed between two steps. Those of before where the engine has stopped, or
        its step takes longer than `STATS_TIMEOUT_S`: the next caller gets what that step's end showed."""
        if self._stats_reply is None or self._stats_reply.done():
            self._stats_reply = self.engine.inbox.send(ViewStats())
            self._stats_reply.add_done_callback(self._take_stats)
        reply = wrap_future(self._stats_reply)
        reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())  # a failure was seen
        await asyncio.wait([reply], timeout=STATS_TIMEOUT_S)
        grammars = self._facts.grammars
        return self._last_stats if grammars is None else with_grammars(self._last_stats, grammars)

    def _take_stats(self, reply: Future[EngineStats]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            self._last_stats = reply.result()

    async def _reply_to(self, reply: Future[ReplyT], timeout_s: float | None = REPLY_TIMEOUT_S) -> ReplyT:
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that meets the reply.
            async with asyncio.timeout(timeout_s):
                return await wrap_future(reply)
        except TimeoutError:
            raise EngineStopped(
                f"the engine did not answer within {REPLY_TIMEOUT_S:.0f} s: it stopped, or hangs in a step"
            ) from None

    # -- requests

    async def submit(
        self,
        request: Request,
        *,
        pin: PinOrder | None = None,
        fallback: str = "",
        follower: Follower | None = None,
    ) -> DeltaStream:
        """Queue a request, and wait until the engine has taken it. Where its grammar is compiled already, it
        is in the inbox before this waits for anything.

        `cache_salt` of the request, of up to 256 characters: it shares prefix blocks with its tenant's
        requests of the same salt alone, and with nothing that is pinned. `pin`, `fallback`: as in `Submit`.
        Raises InvalidRequest, RequestTooLarge, QueueFull, SessionBusy, PinRefused or EngineStopped; then
        nothing was queued, and no pin opened.
        """
        compiled = await self.compilers.compiled(request.params, request.tenant)
        request = replace(request, request_id=next(self._ids), max_tokens=0, arrival=self.engine.clock())
        request = checked(request, self._facts, self.engine.config.stop_ids)
        assembler = Assembler(request, self._vocabulary, compiled)
        stream = DeltaStream(request.request_id, asyncio.get_running_loop(), assembler, self._cancel)
        stream.tenant, stream.follower = request.tenant, follower
        reply = self._open(stream, Submit(request, pin, fallback))
        try:
            await self._reply_to(reply, timeout_s=None)  # however long the step takes that runs
        except BaseException:
            self._forget(request.request_id)
            self._loop.cancel(request.request_id)  # should it have been queued, and we not have waited
            raise
        return stream

    def _open(self, stream: DeltaStream, command: Submit) -> Future[int]:
        """Register the stream and send the command. Raises QueueFull or EngineStopped."""
        request = command.request
        with self._lock:  # so `_recovered` finds every request in the inbox, or in the engine's hands
            if self._closed is not None:
                raise EngineStopped(self._closed)
            own = (other.tenant == request.tenant for other in self._streams.values())
            share = share_of(self._max_open, self.engine.num_tenants)
            if len(self._streams) >= self._max_open and sum(own) >= share:
                raise QueueFull(
                    f"too many requests are waiting or running; allowed: {self._max_open:,} "
                    "(settings max_queue and max_seqs); try again shortly"
                )
            self._streams[request.request_id] = stream
            self._left[request.request_id] = request.n
            stream.accepted = reply = self.engine.inbox.send(command)
        return reply

    def _forget(self, request_id: int) -> None:
        """A request that was never queued."""
        with self._lock:
            self._streams.pop(request_id, None)
            self._left.pop(request_id, None)

    def _cancel(self, request_id: int, choice: int | None) -> None:
        with self._lock:
            if request_id in self._streams:
                self._loop.cancel(request_id, choice)

    @property
    def num_open(self) -> int:
        """Requests that the engine has not ended."""
        return len(self._streams)

    # -- the end

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests; True when the running ones ended in time, else they were cancelled."""
        with self._lock:
            self._closed = self._closed or "the server is shutting down and takes no more requests"
        deadline = time.monotonic() + timeout_s
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        left = list(self._streams)
        for request_id in left:
            self._loop.cancel(request_id)
        while self._streams and time.monotonic() < deadline + 5.0:
            await asyncio.sleep(0.02)
        return not left

    def end(self) -> None:
        """Take nothing more, and end the engine's thread after the step that runs. Idempotent."""
        with self._lock:
            self._closed = self._closed or "the engine has stopped"
        self._loop.end()

    def close(self) -> None:
        """The same, and let go of what the executor has. Streams still open end with an error."""
        self.end()
        self._loop.stop()
        self.compilers.close()
        self._end_all(self._closed or "")

    # -- the engine's thread

    def _deliver(self, updates: list[Update]) -> None:
        """Once per step: group by event loop, one call into each."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[DeltaStream, list[Update]]]] = {}
        by_stream: dict[int, list[Update]] = {}
        for update in updates:
            by_stream.setdefault(update.request_id, []).append(update)
        with self._lock:
            for request_id, own in by_stream.items():
                stream = self._streams.get(request_id)
                if stream is None:
                    continue
                by_loop.setdefault(stream.loop, []).append((stream, own))
                self._left[request_id] -= sum(update.finish is not None for update in own)
                if self._left[request_id] == 0:
                    del self._streams[request_id], self._left[request_id]
        for loop, work in by_loop.items():
            if not call_soon(loop, work):
                for stream, _ in work:
                    stream.cancel()  # its event loop was closed: it has no reader
                    stream.abandon()

    def _recovered(self, updates: list[Update], error: BaseException) -> None:
        """After a broken step: end every stream that the engine had taken.

        `updates` are the finals of those that were still live. A request that the broken step had just ended,
        or was just taking, is not among them, and would wait for ever. What is still in the inbox will be
        served.
        """
        self._deliver(updates)
        with self._lock:
            requests = map(request_of, self.engine.inbox.unread())
            unread = {request.request_id for request in requests if request is not None}
            lost = {i: stream for i, stream in self._streams.items() if i not in unread}
            for request_id in lost:
                del self._streams[request_id], self._left[request_id]
        end_all(lost, broken(error))

    def _give_up(self, error: BaseException) -> None:
        often = "" if isinstance(error, DeviceLost) else " after repeated failures"
        reason = f"the engine has stopped{often}: {describe(error)}"
        with self._lock:
            self._closed = self.gave_up = reason
        self._end_all(reason)

    def _end_all(self, reason: str) -> None:
        self.engine.inbox.close(EngineStopped(reason))
        with self._lock:
            streams, self._streams = self._streams, {}
            self._left.clear()
        end_all(streams, reason)
