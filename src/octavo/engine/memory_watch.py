"""Reads the machine's available memory: once a second, between two steps, also while the engine is idle.

It has no thread: the step calls `read` when it is due, and an idle engine sleeps at most until `next_look`.
`octavo.scheduler.pressure` decides what the pool does about a reading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from octavo.engine.port import ReadMemory
from octavo.scheduler.pressure import PressurePolicy

log = logging.getLogger("octavo.memory_watch")

LOOK_S = 1.0


class MemoryWatch:
    """Reads available memory, at most every `LOOK_S`; `policy` acts on it."""

    def __init__(self, policy: PressurePolicy, available: Callable[[], int]) -> None:
        self.policy = policy
        self._available = available
        self.due = 0.0
        self._is_blind = not policy.config.reserve_bytes

    def read(self, now: float) -> ReadMemory:
        """The command that passes a reading to the pool; the next one is due `LOOK_S` later."""
        self.due = now + LOOK_S
        return ReadMemory(self._read())

    def next_look(self, unused_until: float | None) -> float | None:
        """When `read` is due next, if unused blocks return their memory at `unused_until`; None: only after
        the next computation."""
        if not self._is_blind:
            return self.due
        return None if unused_until is None else max(unused_until, self.due)

    def _read(self) -> int | None:
        if self._is_blind:
            return None
        try:
            return self._available()
        except (OSError, ValueError) as error:
            log.warning("memory pressure is not watched any more: %s", error)
            self._is_blind = True
            return None
