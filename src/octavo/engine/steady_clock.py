"""Seconds since 1970 for what outlives the process, which no change of the wall clock moves while it runs.

    now = the wall clock when this boot of the machine was first seen + what has passed since, by a clock that
          only goes on

    NAMESPACE/clock    {"boot", "since_boot", "wall"}: which boot that was, and both clocks then

A wall clock can be wrong for a moment: set by hand, by NTP, or by a machine that lost it. What is kept for a
time must not go because of that, so three rules hold at a start:

1. In the same boot time goes on as it did, or with the wall clock where that is behind: of the two, the one
   by which less is too old.
2. `is_sure` tells whether ages can be believed: the same boot, whose wall clock was not moved, or another one
   within a day. Where they cannot, nothing on disk is removed for its age at this start.
3. What seems to have expired meanwhile is kept a while longer (`ConversationStore.open`).
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
MOVED_S = 60.0  # less is no change of the wall clock, but its drift
AWAY_S = 86_400.0
_FILE_BYTES_MAX = 4096


def _boot_id() -> str:
    """What no other boot of this machine has; "": the system does not tell."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _since_boot() -> float:
    """It goes on while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Sources:
    """The clocks of the machine."""

    wall: Callable[[], float] = time.time
    since_boot: Callable[[], float] = _since_boot
    boot_id: Callable[[], str] = _boot_id


@dataclass(frozen=True, slots=True)
class Seen:
    """Both clocks at one moment of a boot."""

    boot: str
    since_boot: float
    wall: float


class SteadyClock:
    """Call it for the time. Any thread may."""

    def __init__(self, seen: Seen | None = None, sources: Sources | None = None) -> None:
        """`seen`: what an earlier process saw, whose times this one goes on with."""
        self._sources = sources or Sources()
        boot, since_boot = self._sources.boot_id(), self._sources.since_boot()
        wall = self._sources.wall()
        is_same = seen is not None and seen.boot == boot != ""
        expected = seen.wall + since_boot - seen.since_boot if seen is not None and is_same else wall
        self._seen = Seen(boot, since_boot, min(wall, expected))
        self._ahead = wall - self._seen.wall  # the wall clock of this one, as it was told last
        away = -1.0 if seen is None else wall - seen.wall
        self.is_sure = abs(wall - expected) < MOVED_S if is_same else 0.0 <= away < AWAY_S
        if abs(wall - expected) >= MOVED_S:
            _tell_moved(wall - expected, "since a server began to use this disk cache")

    @classmethod
    def open(cls, path: Path, sources: Sources | None = None) -> SteadyClock:
        """Going on from what is in the file; from nothing where it is missing or makes no sense."""
        return cls(_read(path), sources)

    def __call__(self) -> float:
        """Seconds since 1970; a wall clock that was moved since the last call is told in the log."""
        now = self._seen.wall + self._sources.since_boot() - self._seen.since_boot
        moved = self._sources.wall() - now - self._ahead
        if abs(moved) >= MOVED_S:
            self._ahead += moved
            _tell_moved(moved, "while the server ran")
        return now

    def keep(self, path: Path) -> None:
        """For the next process, by an atomic rename. A disk that refuses is told in the log: the next process
        is not sure, and removes nothing."""
        written = path.with_name(f"{path.name}.new")
        try:
            written.write_text(json.dumps(asdict(self._seen)), encoding="ascii")
            os.replace(written, path)
        except OSError as error:
            log.warning("the time could not be written to %s: %s", path, error)


def _read(path: Path) -> Seen | None:
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(_FILE_BYTES_MAX))
        return Seen(str(told["boot"]), float(told["since_boot"]), float(told["wall"]))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _tell_moved(by_s: float, when: str) -> None:
    log.warning(
        "the wall clock was set %s by %s %s; sessions and responses expire as if it had not been",
        "ahead" if by_s > 0 else "back",
        format_age(abs(by_s)),
        when,
    )
