"""Runs a program, reads its lines with their times since the start, and samples its memory.

    start ---- line ---- line ---- line ---- end
      |  .  .  .  .  .  .  .  .  .  .  .  .  |      .: a sample of /proc/PID/status, ten a second

VmHWM is the system's own record of the most resident memory, so no peak is missed between two samples. It
counts mapped pages of files, which the system may reclaim; RssAnon does not. Linux only: elsewhere both are
0.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import peers

_LOOK_EVERY_S = 0.1
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """A printed line, and its time in seconds after the start."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a program. Memory is in bytes."""

    lines: tuple[Line, ...]
    seconds: float
    peak_bytes: int  # resident, with mapped pages of files
    peak_anonymous_bytes: int  # part of it: anonymous memory


def watched_run(command: Sequence[str | Path], label: str, timeout_s: float = 3600) -> Run | None:
    """Run a program to its end, with standard error among its lines; None, and a message, if it fails or
    does not exist."""
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        peers.say(f"{label}: left out: {error}")
        return None
    watch = _MemorySampler(process.pid)
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        lines = tuple(Line(time.monotonic() - started, text.rstrip("\n")) for text in process.stdout)
        status = process.wait()
    finally:
        timer.cancel()
        process.kill()  # no effect on a process that has ended
        watch.finish()
    if status:
        last = next((line.text for line in reversed(lines) if line.text.strip()), "it said nothing")
        peers.say(f"{label}: left out: exit status {status}: {last[:300]}")
        return None
    seconds = time.monotonic() - started
    peers.say(f"{label}: {seconds:.0f} s")
    return Run(lines, seconds, watch.peak_bytes, watch.peak_anonymous_bytes)


class _MemorySampler:
    """Samples one process's memory until `finish`."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = self.peak_anonymous_bytes = 0
        self._status = Path(f"/proc/{pid}/status")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="memory", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def _look_on(self) -> None:
        while True:
            self._look()
            if self._done.wait(_LOOK_EVERY_S):
                return

    def _look(self) -> None:
        try:
            status = self._status.read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        self.peak_bytes = max(self.peak_bytes, _kilobytes(_PEAK, status))
        self.peak_anonymous_bytes = max(self.peak_anonymous_bytes, _kilobytes(_ANONYMOUS, status))


def _kilobytes(pattern: re.Pattern[str], status: str) -> int:
    found = pattern.search(status)
    return 0 if found is None else int(found.group(1)) << 10
