"""Seconds since 1970 for data that outlives the process, unaffected by changes of the wall clock.

    now = the wall clock when this boot of the machine was first seen + the time since, by a monotonic
          clock

    NAMESPACE/clock    {"boot", "since_boot", "wall"}: the id of that boot, and both clocks then

A wall clock can be wrong for a moment: set by hand, by NTP, or by a machine that lost it. Data with a
lifetime must not expire because of that, so three rules hold at a start:

1. In the same boot time continues, or follows the wall clock if that is behind: the clock by which less has
   expired.
2. `is_sure` is true if ages are reliable: in the same boot without a moved wall clock, or in another one
   within a day. Otherwise nothing on disk is removed for its age at this start.
3. Data that seems to have expired meanwhile is kept a while longer (`ConversationStore.open`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.units import format_age

log = logging.getLogger("octavo.clock")

CLOCK_FILE = "clock"  # in the disk cache's namespace
MOVED_S = 60.0  # smaller differences are drift
AWAY_S = 86_400.0
_FILE_BYTES_MAX = 4096


def _boot_id() -> str:
    """A unique id of this boot; "": the system has none."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _since_boot() -> float:
    """Also counts sleep of the machine, if the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Sources:
    """The clocks of the machine."""

    wall: Callable[[], float] = time.time
    since_boot: Callable[[], float] = _since_boot
    boot_id: Callable[[], str] = _boot_id


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks at one moment of a boot."""

    boot: str
    since_boot: float
    wall: float


class SteadyClock:
    """Call it for the time. Any thread may call."""

    def __init__(self, seen: ClockReading | None = None, sources: Sources | None = None) -> None:
        """`seen`: the record of an earlier process, whose time continues."""
        self._sources = sources or Sources()
        boot, since_boot = self._sources.boot_id(), self._sources.since_boot()
        wall = self._sources.wall()
        is_same = seen is not None and seen.boot == boot != ""
        expected = seen.wall + since_boot - seen.since_boot if seen is not None and is_same else wall
        self._seen = ClockReading(boot, since_boot, min(wall, expected))
        self._ahead = wall - self._seen.wall  # of the wall clock, as of the last log line
        away = -1.0 if seen is None else wall - seen.wall
        self.is_sure = abs(wall - expected) < MOVED_S if is_same else 0.0 <= away < AWAY_S
        if abs(wall - expected) >= MOVED_S:
            _log_moved(wall - expected, "since a server began to use this disk cache")

    @classmethod
    def open(cls, path: Path, sources: Sources | None = None) -> SteadyClock:
        """Continue from the file, or start without one if it is missing or invalid."""
        return cls(_read(path), sources)

    def __call__(self) -> float:
        """Seconds since 1970. Logs a move of the wall clock since the last call."""
        now = self._seen.wall + self._sources.since_boot() - self._seen.since_boot
        moved = self._sources.wall() - now - self._ahead
        if abs(moved) >= MOVED_S:
            self._ahead += moved
            _log_moved(moved, "while the server ran")
        return now

    def keep(self, path: Path) -> None:
        """Write the time for the next process, by an atomic rename. A failure is logged: the next process is
        then not sure, and removes nothing."""
        written = path.with_name(f"{path.name}.new")
        try:
            written.write_text(json.dumps(asdict(self._seen)), encoding="ascii")
            os.replace(written, path)
        except OSError as error:
            log.warning("the time could not be written to %s: %s", path, error)


def _read(path: Path) -> ClockReading | None:
    try:
        with path.open("rb") as file:
            stored = json.loads(file.read(_FILE_BYTES_MAX))
        return ClockReading(str(stored["boot"]), float(stored["since_boot"]), float(stored["wall"]))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _log_moved(by_s: float, when: str) -> None:
    log.warning(
        "the wall clock was set %s by %s %s; sessions and responses expire as if it had not been",
        "ahead" if by_s > 0 else "back",
        format_age(abs(by_s)),
        when,
    )
