"""Faults on purpose: a disk that fails by a script or by a seed, in the ways of real ones.

    store -> FaultyFiles -> Files -> the disk
                  |
             plan(call, operation) -> Fault or None

Every call through `Files` has a number, from 0, in the order of the calls; every statement to a database
that was connected through it is a call too, of the operation "execute". A plan says what strikes a call. The
same plan over the same calls does the same: nothing here draws from anything but its seed, and `slow` asks
the sleeper that was given.

What a write replaces is remembered until the file is synced, so that a power cut can bring it back. SQLite's
own writes are not seen here: a test that wants an older index beside newer blocks copies one aside.
It does not know what a tier is.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from octavo.database import SqlValue
from octavo.files import Files


class Crashed(Exception):
    """The process died here. It is no OSError: who catches it and goes on is not simulating a crash."""


class FaultKind(enum.StrEnum):
    """What can go wrong, and what `Fault.at` means to it."""

    SHORT_READ = "short_read"  # only `at` bytes come, modulo how many were asked for
    SHORT_WRITE = "short_write"  # only `at` bytes go, modulo how many were given
    FLIP_READ = "flip_read"  # bit `at` of what is read is wrong, modulo its bits; the disk is right
    FLIP_WRITE = "flip_write"  # bit `at` of what is written is wrong, modulo its bits; the call succeeds
    ENOSPC = "enospc"  # no space is left
    EIO = "eio"  # the medium failed
    SLOW = "slow"  # sleep `at` milliseconds, then do it
    CRASH = "crash"  # dead before the call has any effect; every later call is Crashed as well
    TORN_WRITE = "torn_write"  # `at` bytes reach the file, modulo one more than were given; then dead
    POWER_CUT = "power_cut"  # dead, and what was not synced is lost: all, or by a coin of seed `at` if not 0


_ONLY_ON: dict[FaultKind, frozenset[str]] = {
    FaultKind.SHORT_READ: frozenset({"pread"}),
    FaultKind.FLIP_READ: frozenset({"pread"}),
    FaultKind.SHORT_WRITE: frozenset({"pwrite"}),
    FaultKind.FLIP_WRITE: frozenset({"pwrite"}),
    FaultKind.TORN_WRITE: frozenset({"pwrite"}),
    FaultKind.ENOSPC: frozenset(
        {"make_folder", "open", "pwrite", "fdatasync", "fallocate", "connect", "execute"}
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `at` says where or how much, as its kind explains."""

    kind: FaultKind
    at: int = 0

    def strikes(self, operation: str) -> bool:
        """True when this kind of fault can happen to that operation."""
        only = _ONLY_ON.get(self.kind)
        return only is None or operation in only


FaultPlan = Callable[[int, str], Fault | None]


def scripted(faults: Mapping[int, Fault]) -> FaultPlan:
    """Strike exactly these calls."""
    return lambda call, operation: faults.get(call)


def at_each(operation: str, fault: Fault, first: int = 0, last: int | None = None) -> FaultPlan:
    """Strike the calls of one operation, from its `first` to its `last`, both counted from 0."""
    met = 0

    def plan(call: int, called: str) -> Fault | None:
        nonlocal met
        if called != operation:
            return None
        met += 1
        return fault if first < met and (last is None or met <= last + 1) else None

    return plan


def seeded(seed: int, rate: float, kinds: Collection[FaultKind]) -> FaultPlan:
    """Strike each call with this probability, by one of the kinds that can strike it."""
    chance = random.Random(seed)
    ordered = sorted(kinds)

    def plan(call: int, operation: str) -> Fault | None:
        draw, at = chance.random(), chance.randrange(2**32)
        able = [fault for fault in (Fault(kind, at) for kind in ordered) if fault.strikes(operation)]
        return chance.choice(able) if able and draw < rate else None

    return plan


def never(call: int, operation: str) -> Fault | None:
    """Strike nothing: the calls are only counted."""
    return None


@dataclass(frozen=True, slots=True)
class _Unsynced:
    offset: int
    before: bytes


class FaultyFiles(Files):
    """A `Files` that passes every call on, unless its plan strikes it.

    `calls` lists the operations so far, `struck` counts what struck. `on_crash` runs once, at the moment of
    death, when the files are as a dead process leaves them: it can copy them, while this process still holds
    its locks. A dead one still closes descriptors and connections, as the kernel does.
    """

    def __init__(
        self,
        files: Files,
        plan: FaultPlan = never,
        *,
        sleep: Callable[[float], None] = lambda seconds: None,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        self.calls: list[str] = []
        self.struck: Counter[FaultKind] = Counter()
        self.is_dead = False
        self._files = files
        self._plan = plan
        self._sleep = sleep
        self._on_crash = on_crash
        self._unsynced: dict[int, list[_Unsynced]] = {}

    def meet(self, operation: str) -> Fault | None:
        """Count a call, and let what strikes it happen; what is left for the operation itself is returned."""
        if self.is_dead:
            raise Crashed(f"{operation}: the process is dead")
        call = len(self.calls)
        self.calls.append(operation)
        fault = self._plan(call, operation)
        if fault is None:
            return None
        assert fault.strikes(operation), f"{fault.kind} cannot strike {operation}"
        self.struck[fault.kind] += 1
        if fault.kind is FaultKind.SLOW:
            self._sleep(fault.at / 1000)
        elif fault.kind is FaultKind.ENOSPC:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif fault.kind is FaultKind.EIO:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        elif fault.kind is FaultKind.POWER_CUT:
            for fd in list(self._unsynced):
                self._take_back(fd, fault.at)
            self._die(operation)
        elif fault.kind is FaultKind.CRASH:
            self._die(operation)
        else:
            return fault
        return None

    def make_folder(self, path: Path) -> None:
        """As `Files` says, or a fault."""
        self.meet("make_folder")
        self._files.make_folder(path)

    def open(self, path: Path) -> int:
        """As `Files` says, or a fault."""
        self.meet("open")
        return self._files.open(path)

    def close(self, fd: int) -> None:
        """As `Files` says; the descriptor is closed whatever strikes."""
        try:
            self.meet("close")
        finally:
            self._unsynced.pop(fd, None)
            self._files.close(fd)

    def size(self, fd: int) -> int:
        """As `Files` says, or a fault."""
        self.meet("size")
        return self._files.size(fd)

    def pread(self, fd: int, into: memoryview, offset: int) -> int:
        """As `Files` says, or fewer bytes, or a wrong bit among them, or another fault."""
        fault = self.meet("pread")
        if fault is None or len(into) == 0:
            return self._files.pread(fd, into, offset)
        if fault.kind is FaultKind.SHORT_READ:
            length = fault.at % len(into)
            return self._files.pread(fd, into[:length], offset) if length else 0
        count = self._files.pread(fd, into, offset)
        if count:
            _flip(into[:count], fault.at)
        return count

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        """As `Files` says. No call: nothing depends on it."""
        self._files.read_ahead(fd, offset, length)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """As `Files` says, or fewer bytes, or a wrong bit among them, or another fault."""
        fault = self.meet("pwrite")
        if fault is None or len(data) == 0:
            return self._write(fd, data, offset)
        if fault.kind is FaultKind.SHORT_WRITE:
            length = fault.at % len(data)
            return self._write(fd, data[:length], offset) if length else 0
        if fault.kind is FaultKind.TORN_WRITE:
            self._write(fd, data[: fault.at % (len(data) + 1)], offset)
            self._die("pwrite")
        flipped = bytearray(data)
        _flip(memoryview(flipped), fault.at)
        return self._write(fd, memoryview(flipped), offset)

    def fdatasync(self, fd: int) -> None:
        """As `Files` says, or a fault: then what was not synced is lost at once, as by kernels that drop the
        pages that they could not write.
        """
        try:
            self.meet("fdatasync")
        except OSError:
            self._take_back(fd)
            raise
        self._files.fdatasync(fd)
        self._unsynced.pop(fd, None)

    def fallocate(self, fd: int, length: int) -> None:
        """As `Files` says, or a fault."""
        self.meet("fallocate")
        self._files.fallocate(fd, length)

    def truncate(self, fd: int, length: int) -> None:
        """As `Files` says, or a fault."""
        self.meet("truncate")
        self._files.truncate(fd, length)

    def remove(self, path: Path) -> None:
        """As `Files` says, or a fault."""
        self.meet("remove")
        self._files.remove(path)

    def sync_folder(self, path: Path) -> None:
        """As `Files` says, or a fault."""
        self.meet("sync_folder")
        self._files.sync_folder(path)

    def identity(self, path: Path) -> tuple[int, int] | None:
        """As `Files` says. No call: the kernel answers it from memory."""
        return self._files.identity(path)

    def connect(self, path: Path) -> sqlite3.Connection:
        """As `Files` says, or a fault; every statement to it is a call."""
        with _as_sqlite_says():
            self.meet("connect")
        return _FaultyDatabase(self._files.connect(path), self)  # type: ignore[return-value]

    def _write(self, fd: int, data: memoryview, offset: int) -> int:
        before = bytearray(len(data))
        count = self._files.pread(fd, memoryview(before), offset)
        self._unsynced.setdefault(fd, []).append(_Unsynced(offset, bytes(before[:count])))
        return self._files.pwrite(fd, data, offset)

    def _take_back(self, fd: int, seed: int = 0) -> None:
        """Undo what was not synced: all of it, or each write by a coin. The newest goes first."""
        coin = random.Random(seed)
        for write in reversed(self._unsynced.pop(fd, [])):
            if seed == 0 or coin.random() < 0.5:
                self._files.pwrite(fd, memoryview(write.before), write.offset)

    def _die(self, operation: str) -> NoReturn:
        self.is_dead = True
        self._on_crash()
        raise Crashed(f"{operation}: the process died at call {len(self.calls) - 1}")


class _FaultyDatabase:
    """A database whose statements are calls of a FaultyFiles."""

    def __init__(self, database: sqlite3.Connection, faults: FaultyFiles) -> None:
        self._database = database
        self._faults = faults

    @property
    def in_transaction(self) -> bool:
        return self._database.in_transaction

    def execute(self, sql: str, parameters: Sequence[SqlValue] = (), /) -> sqlite3.Cursor:
        with _as_sqlite_says():
            self._faults.meet("execute")
        return self._database.execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Sequence[SqlValue]], /) -> sqlite3.Cursor:
        with _as_sqlite_says():
            self._faults.meet("execute")
        return self._database.executemany(sql, rows)

    def rollback(self) -> None:
        self._database.rollback()

    def close(self) -> None:
        self._database.close()


@contextlib.contextmanager
def _as_sqlite_says() -> Iterator[None]:
    """A fault of the disk in SQLite's words."""
    try:
        yield
    except OSError as error:
        is_full = error.errno == errno.ENOSPC
        translated = sqlite3.OperationalError("database or disk is full" if is_full else "disk I/O error")
        translated.sqlite_errorcode = sqlite3.SQLITE_FULL if is_full else sqlite3.SQLITE_IOERR
        raise translated from None


def _flip(data: memoryview, bit: int) -> None:
    bit %= 8 * len(data)
    data[bit // 8] ^= 1 << bit % 8
