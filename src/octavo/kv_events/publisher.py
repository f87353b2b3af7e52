"""Publishes the changes of the ledger over ZeroMQ, on a thread of its own.

    engine's thread --hand_over, after a step--> queue --> thread: stream, msgpack --> XPUB    all subscribers
                                                                                  <--> ROUTER  replay

The engine's thread appends a list to the queue and wakes the sleeping publisher; it never waits. A full queue
is dropped and counted, and a snapshot of the whole state is queued instead. A subscriber that does not read
loses messages (`HWM` of them wait for it). When a subscriber joins, a snapshot goes to all, at most once in
`JOIN_S` seconds.

Replay, as vLLM's: a DEALER sends `"" | number (8 bytes, big endian)` and gets, for each batch from that
number on, `"" | topic | number | batch`, then `"" | "" | ff*8 | ""`.

The one module that imports zmq (the extra `octavo[events]`); `publisher_config.py` opens it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import zmq

from octavo.errors import ConfigError
from octavo.kv_events.stream import Batch, Stream
from octavo.memory.changes import Change, ChangeRecord

log = logging.getLogger("octavo.kv_events")

QUEUE_MAX = 100_000  # unpublished changes
HWM = 10_000  # unread messages per subscriber
JOIN_S = 5.0
_END = b"\xff" * 8
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Work:
    """Changes of the ledger, or a snapshot."""

    changes: list[Change]
    is_whole: bool


class ChangeQueue:
    """The queue from the engine's thread to the publisher's."""

    def __init__(self, changes_max: int = QUEUE_MAX) -> None:
        self.num_lost = 0  # dropped changes
        self.num_gaps = 0  # times that changes were dropped
        self._changes_max = changes_max
        self._works: deque[_Work] = deque()  # guarded by _lock
        self._num_changes = 0  # guarded by _lock: without snapshots
        self._lock = threading.Lock()

    def put(self, record: ChangeRecord) -> bool:
        """Queue the changes since the last call; True if the queue was empty. O(1), but O(names) if the queue
        is full."""
        changes = record.take()
        if not changes:
            return False
        with self._lock:
            if self._num_changes + len(changes) <= self._changes_max:
                self._num_changes += len(changes)
                self._works.append(_Work(changes, is_whole=False))
                return len(self._works) == 1
            self.num_lost += self._num_changes + len(changes)
            self.num_gaps += 1
        return self.put_whole(record)

    def put_whole(self, record: ChangeRecord) -> bool:
        """Queue a snapshot in place of all queued changes. O(names)."""
        record.take()
        work = _Work(record.whole(), is_whole=True)
        with self._lock:
            was_empty = not self._works
            self._works.clear()
            self._works.append(work)
            self._num_changes = 0
        return was_empty

    def pop(self) -> _Work | None:
        """The oldest item; None: the queue is empty."""
        with self._lock:
            if not self._works:
                return None
            work = self._works.popleft()
            if not work.is_whole:
                self._num_changes -= len(work.changes)
            return work


class Publisher:
    """Binds at once, and runs until `close`. Raises ConfigError if it cannot bind."""

    def __init__(
        self,
        stream: Stream,
        topic: str,
        endpoint: str,
        replay_endpoint: str | None = None,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self.queue = ChangeQueue(queue_max)
        self._stream, self._topic = stream, topic.encode()
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.XPUB)
        self._events.setsockopt(zmq.XPUB_VERBOSE, 1)  # reports each subscription, also to a known topic
        self._events.setsockopt(zmq.SNDHWM, HWM)
        self._replay: zmq.Socket[bytes] | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_closing = False
        self._joined_at: float | None = None  # when a subscriber joined that still needs a snapshot
        self._snapshot_at = -JOIN_S
        self._num_gaps_logged = 0
        try:
            self.endpoint = _bind(self._events, endpoint, "kv_events")
            self.replay_endpoint = ""
            if replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.setsockopt(zmq.SNDHWM, 2 * HWM)
                self.replay_endpoint = _bind(self._replay, replay_endpoint, "kv_events_replay")
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="octavo-kv-events", daemon=True)
        self._thread.start()

    # -- the engine's thread

    def begin(self, record: ChangeRecord) -> None:
        """A ledger is new: the published state is void."""
        if self.queue.put_whole(record):
            self._notify()

    def hand_over(self, record: ChangeRecord) -> int:
        """After a step. Returns how many changes were dropped: routers receive a snapshot in their place."""
        lost_before = self.queue.num_lost
        if record.changes and self.queue.put(record):
            self._notify()
        return self.queue.num_lost - lost_before

    def close(self) -> None:
        """Publish the queued items, and end. Idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._notify()
        self._thread.join()
        self._release()

    def _notify(self) -> None:
        os.eventfd_write(self._wake, 1)

    # -- its own thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            log.exception("KV events are not published any more")

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._events, self._replay, self._wake):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._timeout_ms()))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            while (work := self.queue.pop()) is not None:
                self._publish(work)
            self._log_gaps()
            if self._events in ready:
                self._note_subscribers()
            if self._joined_at is not None and time.monotonic() >= self._snapshot_at + JOIN_S:
                self._send(self._stream.snapshot())
                self._snapshot_at, self._joined_at = time.monotonic(), None
            if self._replay is not None and self._replay in ready:
                self._answer(self._replay)
            if self._is_closing:
                return

    def _timeout_ms(self) -> int | None:
        if self._joined_at is None:
            return None
        return 1 + int(1000 * max(0.0, self._snapshot_at + JOIN_S - time.monotonic()))

    def _publish(self, work: _Work) -> None:
        stream = self._stream
        self._send(stream.begin(work.changes) if work.is_whole else stream.apply(work.changes))

    def _send(self, batches: Iterable[Batch]) -> None:
        for batch in batches:  # XPUB never waits: it drops messages of a slow subscriber
            self._events.send_multipart([self._topic, _number(batch.number), batch.payload])

    def _note_subscribers(self) -> None:
        while self._events.poll(0):
            if self._events.recv().startswith(b"\x01"):
                self._joined_at = time.monotonic()

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        frames = replay.recv_multipart()
        if len(frames) != 3 or frames[1] or len(frames[2]) != _NUMBER_BYTES:
            log.warning(
                "a replay was asked for in %d frames; allowed: an empty one, then 8 bytes", len(frames)
            )
            return
        client = frames[0]
        for batch in self._stream.since(int.from_bytes(frames[2], "big")):
            replay.send_multipart([client, b"", self._topic, _number(batch.number), batch.payload])
        replay.send_multipart([client, b"", b"", _END, b""])

    def _log_gaps(self) -> None:
        gaps = self.queue.num_gaps
        if gaps != self._num_gaps_logged:
            self._num_gaps_logged = gaps
            log.warning(
                "KV events came faster than they could be published: %s were dropped so far, and routers get "
                "a snapshot",
                f"{self.queue.num_lost:,}",
            )

    def _release(self) -> None:
        for socket in (self._events, self._replay):
            if socket is not None:
                socket.close(linger=0)
        self._context.term()
        os.close(self._wake)


def _number(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")


def _bind(socket: zmq.Socket[bytes], endpoint: str, name: str) -> str:
    """Returns the bound address, with the port chosen by the system if it was 0. Raises ConfigError."""
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    try:
        socket.bind(endpoint.replace("//localhost:", "//127.0.0.1:"))  # ZeroMQ binds to no host name
    except zmq.ZMQError as error:
        raise ConfigError(
            f"{name} is {endpoint}, which cannot be bound ({error}); allowed: an address of this machine "
            "whose port is free"
        ) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
