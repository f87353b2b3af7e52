"""What a replica of a cluster reports to routers: who it is, which blocks it has, how busy it is.

    engine's thread --hand_over, after a step--> a queue for each reader --> its event loop --> router

A reader begins with a report that clears, and gets all names in parts, one after each step, as fast as it
reads; changes come between them. The engine's thread never waits: a reader that leaves more than
`UNREAD_BYTES_MAX` unread is cut off. Nothing is kept of what was sent. It knows no HTTP.
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
from octavo.routing.reports import NAMES_MAX, VERSION, Changes, Hello, encode_frame, packed
from octavo.routing.slots import ReplicaStart

UNREAD_BYTES_MAX = 8 << 20  # a million names
_PART_NAMES = 1024  # about a millisecond
_AHEAD_BYTES = 1 << 18  # unread: no further part of all names is made

log = logging.getLogger("octavo.replica")


def hello_of(replica: ReplicaStart, model: str, setup: SchedulerSetup, options: StartOptions) -> Hello:
    """Of a replica that serves the model under that name."""
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
        """All frames that wait, as soon as there are any; None: it was cut off, or closed. One at a time."""

    def close(self) -> None:
        """Keep nothing, and take nothing more. Again does nothing."""


class Feed(Protocol):
    """What routers learn of an engine in this process, or in another one."""

    hello: Hello

    def open(self) -> Reader:
        """One more reader, until it is closed."""


class FeedReader:
    """One router's queue of frames."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.is_closed = False  # it has gone, or was cut off
        self._wake = wake
        self._lock = threading.Lock()
        self._frames: list[bytes] = []  # guarded by _lock
        self._num_bytes = 0  # guarded by _lock
        self._reading: Future[bytes | None] | None = None  # guarded by _lock: waits for frames
        self._rest: list[bytes] | None = None  # names that it was not given yet; None: it was given nothing

    def read(self) -> Future[bytes | None]:
        """As `Reader`'s. Any thread."""
        reading: Future[bytes | None] = Future()
        with self._lock:
            self._reading = reading
        self._answer()
        if self._rest:
            self._wake()  # for the next part
        return reading

    def close(self) -> None:
        """As `Reader`'s. Any thread."""
        with self._lock:
            self.is_closed = True
            self._frames, self._num_bytes = [], 0
        self._answer()

    def _answer(self) -> None:
        """Give the one that reads what waits."""
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
        """All that it was given is forgotten."""
        self._rest = None

    def put(self, data: bytes) -> None:
        """Frames of a step. One that was given nothing yet is given nothing of it."""
        if self._rest is not None:
            self._put(data)

    def put_part(self, places: PlaceChanges) -> None:
        """The next part of all names, where any is left and it has read the last ones. O(`_PART_NAMES`), the
        first time O(names)."""
        if self._rest is None:
            self._put(encode_frame(Changes(Place.POOL, cleared=True)))
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
    """Of one engine, for all its readers. `wake` ends an idle engine's sleep."""

    def __init__(self, hello: Hello, wake: Callable[[], None]) -> None:
        self.hello = hello
        self._wake = wake
        self._lock = threading.Lock()
        self._readers: list[FeedReader] = []  # guarded by _lock; replaced, never changed
        self._places: PlaceChanges | None = None

    def open(self) -> FeedReader:
        """As `Feed`'s. Any thread."""
        reader = FeedReader(self._wake)
        with self._lock:
            self._readers = [*self._readers, reader]
        self._wake()
        return reader

    # -- the engine's thread

    def begin(self, places: PlaceChanges) -> None:
        """A ledger is new: what was sent before is gone."""
        self._places = places
        for reader in self._readers:
            reader.begin()

    def hand_over(self) -> None:
        """After a step: what changed, and the next part of all for those that have not got it. O(changes)."""
        assert self._places is not None
        changes = self._places.take()
        if not self._readers:
            return
        data = frames_of(changes)
        for reader in self._readers:
            if data:
                reader.put(data)
            reader.put_part(self._places)
        if any(reader.is_closed for reader in self._readers):
            with self._lock:
                self._readers = [reader for reader in self._readers if not reader.is_closed]

    def close(self) -> None:
        """The engine has ended."""
        for reader in self._readers:
            reader.close()


def frames_of(changes: ByPlace) -> bytes:
    """As reports, place by place."""
    return b"".join(
        encode_frame(report) for place, names in changes.items() for report in _reports(place, names)
    )


def _reports(place: Place, names: NamesOfPlace) -> Iterator[Changes]:
    for start in range(0, max(len(names.added), len(names.removed)), NAMES_MAX):
        stop = start + NAMES_MAX
        yield Changes(place, packed(names.added[start:stop]), packed(names.removed[start:stop]))
