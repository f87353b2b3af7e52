"""A replica's reports to the routers of its cluster: its identity, its blocks and its load.

    engine's thread --hand_over, after a step--> a queue for each reader --> its event loop --> router

A reader first gets a report that clears its state, then all names in parts, one after each step, as fast as
it reads; changes come in between. The engine's thread never waits: a reader that leaves more than
`UNREAD_BYTES_MAX` unread is cut off. Sent frames are not kept. No HTTP here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol

from octavo.config import StartOptions
from octavo.engine.scheduler_setup import SchedulerSetup
from octavo.memory.changes import Place
from octavo.memory.names import root_name
from octavo.memory.place_changes import ByPlace, NamesOfPlace, PlaceChanges
from octavo.routing.reports import NAMES_MAX, VERSION, Changes, Hello, encode_frame, pack_names, shared_of
from octavo.routing.slots import ReplicaStart

UNREAD_BYTES_MAX = 8 << 20  # a million names
_PART_NAMES = 1024  # about a millisecond
_AHEAD_BYTES = 1 << 18  # a reader with more unread bytes gets no further part of the names

log = logging.getLogger("octavo.replica")


def hello_of(replica: ReplicaStart, model: str, setup: SchedulerSetup, options: StartOptions) -> Hello:
    """The first report of a replica that serves the model under that name."""
    config, size = setup.config, setup.block_size
    return Hello(
        version=VERSION,
        slot=replica.slot,
        name=replica.name,
        model=model,
        fingerprint=root_name(b"replica", *setup.identity, str(size).encode()).hex(),
        root_parts=setup.identity,
        block_size=size,
        context_length=config.context_length,
        max_queue=options.max_queue,
        max_seqs=config.max_rows,
        step_tokens=config.step_tokens,
    )


class Reader(Protocol):
    """A feed's frames, for one router."""

    def read(self) -> Future[bytes | None]:
        """All frames that wait, as soon as there are any; None: it was cut off, or closed. One read at a
        time."""

    def close(self) -> None:
        """Drop all frames, and accept no more. Idempotent."""


class Feed(Protocol):
    """The reports of an engine in this process, or in another one."""

    hello: Hello

    def open(self) -> Reader:
        """A new reader; the caller closes it."""


class FeedSubscriber:
    """One router's queue of frames."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.is_closed = False  # by its router, or because it was cut off
        self._wake = wake
        self._lock = threading.Lock()
        self._frames: list[bytes] = []  # guarded by _lock
        self._num_bytes = 0  # guarded by _lock
        self._reading: Future[bytes | None] | None = None  # guarded by _lock: waits for frames
        self._rest: list[bytes] | None = None  # names that were not sent yet; None: nothing was sent

    def read(self) -> Future[bytes | None]:
        """As `Reader.read`. Any thread."""
        reading: Future[bytes | None] = Future()
        with self._lock:
            self._reading = reading
        self._answer()
        if self._rest:
            self._wake()  # for the next part
        return reading

    def close(self) -> None:
        """As `Reader.close`. Any thread."""
        with self._lock:
            self.is_closed = True
            self._frames, self._num_bytes = [], 0
        self._answer()

    def _answer(self) -> None:
        """Complete the open read, if there are frames for it."""
        with self._lock:
            reading = self._reading
            if reading is None or not (self._frames or self.is_closed):
                return
            self._reading, data = None, None if self.is_closed else b"".join(self._frames)
            self._frames, self._num_bytes = [], 0
        if reading.set_running_or_notify_cancel():
            reading.set_result(data)

    # -- the engine's thread

    def begin(self) -> None:
        """Start again: what was sent is no longer valid."""
        self._rest = None

    def put(self, data: bytes) -> None:
        """Queue a step's frames, unless the reader has not got its first part: that will include them."""
        if self._rest is not None:
            self._put(data)

    def put_part(self, places: PlaceChanges) -> None:
        """Queue the next part of the names, if any is left and the reader keeps up. O(`_PART_NAMES`), the
        first time O(names)."""
        if self._rest is None:
            self._put(encode_frame(Changes(Place.POOL, cleared=True)) + _shared_frame(places))
            self._rest = places.names()
        if not self._rest or self._num_bytes > _AHEAD_BYTES:
            return
        part = self._rest[-_PART_NAMES:]
        del self._rest[-_PART_NAMES:]
        if data := frames_of(places.where(part)):
            self._put(data)
        if self._rest:
            self._wake()  # the engine may be idle

    def _put(self, data: bytes) -> None:
        with self._lock:
            if self.is_closed:
                return
            self._frames.append(data)
            self._num_bytes += len(data)
            is_over = self._num_bytes > UNREAD_BYTES_MAX
        if is_over:
            log.warning("a router left %s bytes of the feed unread, and is cut off", f"{self._num_bytes:,}")
            self.close()
        else:
            self._answer()


class ReplicaFeed:
    """One engine's feed, for all its readers. `wake` ends an idle engine's sleep."""

    def __init__(self, hello: Hello, wake: Callable[[], None]) -> None:
        self.hello = hello
        self._wake = wake
        self._lock = threading.Lock()
        self._readers: list[FeedSubscriber] = []  # guarded by _lock; replaced, never changed
        self._places: PlaceChanges | None = None

    def open(self) -> FeedSubscriber:
        """As `Feed.open`. Any thread."""
        reader = FeedSubscriber(self._wake)
        with self._lock:
            self._readers = [*self._readers, reader]
        self._wake()
        return reader

    # -- the engine's thread

    def begin(self, places: PlaceChanges) -> None:
        """Start again with a new ledger: what was sent is no longer valid."""
        self._places = places
        for reader in self._readers:
            reader.begin()

    def hand_over(self) -> None:
        """After a step: queue the changes, and the next part of the names for readers that lack it.
        O(changes)."""
        assert self._places is not None
        changes, has_shared = self._places.take(), self._places.take_shared()
        if not self._readers:
            return
        data = frames_of(changes) + (_shared_frame(self._places) if has_shared else b"")
        for reader in self._readers:
            if data:
                reader.put(data)
            reader.put_part(self._places)
        if any(reader.is_closed for reader in self._readers):
            with self._lock:
                self._readers = [reader for reader in self._readers if not reader.is_closed]

    def close(self) -> None:
        """Close all readers: the engine has ended."""
        for reader in self._readers:
            reader.close()


def frames_of(changes: ByPlace) -> bytes:
    """The changes as encoded reports, place by place."""
    return b"".join(
        encode_frame(report) for place, names in changes.items() for report in _reports(place, names)
    )


def _shared_frame(places: PlaceChanges) -> bytes:
    return encode_frame(shared_of(places.shared))


def _reports(place: Place, names: NamesOfPlace) -> Iterator[Changes]:
    for start in range(0, max(len(names.added), len(names.removed)), NAMES_MAX):
        stop = start + NAMES_MAX
        yield Changes(place, pack_names(names.added[start:stop]), pack_names(names.removed[start:stop]))
