"""The client's side of the engine: requests in, streams of deltas out, on event loops of this process.

    submit(...) -> host -> inbox -> engine's thread -> one callback per step -> call_soon_threadsafe -> stream

Refusals by the model (context, vocabulary, grammars) happen here, before the host. Refusals by the pool, a
quota or the queue come from the host and the scheduler, whose reply the client awaits. The host may be in
another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from asyncio import wrap_future
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import replace

from octavo.engine.assemble import Assembler, Vocabulary
from octavo.engine.compilers import Compilers
from octavo.engine.host import Host
from octavo.engine.port import Command, ReplyT, Submit
from octavo.engine.requests import ModelFacts, checked
from octavo.engine.stream import DeltaStream, Follower, call_soon, end_all
from octavo.errors import EngineStopped
from octavo.inspect.stats import EngineStats
from octavo.retention.client_pins import PinRequest
from octavo.types import Request, Update

REPLY_TIMEOUT_S = 60.0  # a step takes less
STATS_TIMEOUT_S = 2.0  # a scrape does not wait for a longer step


class Submitter:
    """Sends commands and opens the streams of requests."""

    def __init__(self, host: Host, vocabulary: Vocabulary, facts: ModelFacts, compilers: Compilers) -> None:
        self.host = host
        self.compilers = compilers
        self._facts = facts
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._streams: dict[int, DeltaStream] = {}  # guarded by _lock: requests that the engine has not ended
        self._closed: str | None = None  # why requests are refused
        self.gave_up: str | None = None  # why the engine ended by itself, after repeated failures
        self._last_stats = EngineStats()  # for when the engine has stopped
        self._stats_reply: Future[EngineStats] | None = None  # the pending one, shared by all callers
        host.join(self)

    # -- commands

    async def send(self, command: Command[ReplyT]) -> ReplyT:
        """The engine's reply, between two steps. Raises as the command documents, or EngineStopped, also when
        it drains and no request is left. Cancelling the call withdraws a command that was not executed
        yet."""
        if self._closed is not None and not self._streams:
            raise EngineStopped(self._closed)
        return await self._reply_to(self.host.send(command))

    def post(self, command: Command[ReplyT]) -> None:
        """Send a command without a reply. Commands are executed in order of arrival."""
        self.host.post(command)

    async def stats(self, timeout_s: float = STATS_TIMEOUT_S) -> EngineStats:
        """Counters and gauges, computed between two steps. Returns the last ones if the engine has stopped,
        or its step takes longer than `timeout_s`: the next caller gets those of that step's end."""
        if self._stats_reply is None or self._stats_reply.done():
            self._stats_reply = self.host.stats()
            self._stats_reply.add_done_callback(self._take_stats)
        reply = wrap_future(self._stats_reply)
        reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())  # failure retrieved
        await asyncio.wait([reply], timeout=timeout_s)
        if not reply.done():
            with contextlib.suppress(EngineStopped):
                self._last_stats = await wrap_future(self.host.last_stats())
        return self._last_stats

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
        pin: PinRequest | None = None,
        fallback: str = "",
        follower: Follower | None = None,
    ) -> DeltaStream:
        """Queue a request, and wait until the engine has accepted it. If its grammar is compiled already, it
        is in the inbox before the first wait.

        `cache_salt` of the request, of up to 256 characters: it shares prefix blocks only with its tenant's
        requests of the same salt, and with no pin. `pin`, `fallback`: as in `Submit`. Raises InvalidRequest,
        RequestTooLarge, QueueFull, SessionBusy, PinRefused or EngineStopped; then nothing was queued, and no
        pin opened.
        """
        compiled = await self.compilers.compiled(request.params, request.tenant)
        request = replace(request, request_id=self.host.new_id(), max_tokens=0, arrival=self.host.clock())
        request = self.checked(request)
        assembler = Assembler(request, self._vocabulary, compiled)
        stream = DeltaStream(request.request_id, asyncio.get_running_loop(), assembler, self._cancel)
        stream.follower = follower
        try:
            stream.accepted = self._open(stream, Submit(request, pin, fallback))
            await self._reply_to(stream.accepted, timeout_s=None)  # as long as the current step takes
        except BaseException:
            with self._lock:
                self._streams.pop(request.request_id, None)
            if stream.accepted is not None:
                self.host.withdraw(request.request_id)  # it may be queued
            raise
        return stream

    def checked(self, request: Request) -> Request:
        """The request as the engine receives it. Raises InvalidRequest or RequestTooLarge for refusals by the
        model; only `submit` detects those by pool, quotas and queue."""
        return checked(request, self._facts, self.host.stop_ids)

    def _open(self, stream: DeltaStream, command: Submit) -> Future[int]:
        """Register the stream and send the command. Raises QueueFull or EngineStopped."""
        with self._lock:
            if self._closed is not None:
                raise EngineStopped(self._closed)
            self._streams[command.request.request_id] = stream
        return self.host.submit(self, command)

    def _cancel(self, request_id: int, choice: int | None) -> None:
        with self._lock:
            is_open = request_id in self._streams
        if is_open:
            self.host.cancel(request_id, choice)

    @property
    def num_open(self) -> int:
        """Requests that the engine has not ended."""
        return len(self._streams)

    # -- the end

    @property
    def is_closed(self) -> bool:
        """Whether requests are refused."""
        return self._closed is not None

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests; True when the running ones ended in time, else they were cancelled."""
        with self._lock:
            self._closed = self._closed or "the server is shutting down and takes no more requests"
        deadline = time.monotonic() + timeout_s
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        left = list(self._streams)
        for request_id in left:
            self.host.cancel(request_id)
        while self._streams and time.monotonic() < deadline + 5.0:
            await asyncio.sleep(0.02)
        return not left

    def end(self) -> None:
        """Refuse new requests, and end the engine after the current step. Idempotent."""
        with self._lock:
            self._closed = self._closed or "the engine has stopped"
        self.host.end()

    def close(self) -> None:
        """As `end`, and close the engine. Streams still open end with an error."""
        self.end()
        self.host.close()
        self.compilers.close()
        with self._lock:
            streams, self._streams = self._streams, {}
        end_all(streams, self._closed or "")

    # -- the engine's thread, or the one that reads from its process

    def deliver(self, updates: list[Update]) -> None:
        """Deliver the updates of a step, with one call into each event loop."""
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
                stream.num_left -= sum(update.finish is not None for update in own)
                if stream.num_left == 0:
                    del self._streams[request_id]
        for loop, work in by_loop.items():
            if not call_soon(loop, work):
                for stream, _ in work:
                    stream.cancel()  # its event loop was closed: it has no reader
                    stream.abandon()

    def end_requests(self, request_ids: Collection[int], reason: str) -> None:
        """The engine has lost these requests: no update of them will come."""
        with self._lock:
            lost = {i: self._streams.pop(i) for i in request_ids if i in self._streams}
        end_all(lost, reason)

    def give_up(self, reason: str) -> None:
        """The engine, or its process, has ended by itself."""
        with self._lock:
            self._closed = self.gave_up = reason
            streams, self._streams = self._streams, {}
        end_all(streams, reason)
