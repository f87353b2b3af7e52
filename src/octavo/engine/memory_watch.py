"""When the engine looks at the machine's memory: once a second, between two steps, also while it is idle.

It has no thread: the step calls `tick`, and an idle engine sleeps until `next_look` at most. What is done
about a reading is `octavo.scheduler.pressure`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from octavo.scheduler.pressure import PressurePolicy
from octavo.scheduler.scheduler import Scheduler

log = logging.getLogger("octavo.memory_watch")

LOOK_S = 1.0


class MemoryWatch:
    """Reads what is available, not more often than every `LOOK_S`, and lets the policy act."""

    def __init__(self, policy: PressurePolicy, available: Callable[[], int]) -> None:
        self.policy = policy
        self._available = available
        self.due = 0.0
        self._is_blind = not policy.config.reserve_bytes

    def tick(self, scheduler: Scheduler, now: float) -> None:
        """Look, if it is time; what goes back is in the next plan."""
        if now < self.due:
            return
        self.due = now + LOOK_S
        self.policy.act(scheduler.resizing, now, self._read(), scheduler.has_work)

    def next_look(self, scheduler: Scheduler) -> float | None:
        """When `tick` next has something to do; None: only after something has been computed."""
        if not self._is_blind:
            return self.due
        at = self.policy.idle_at(scheduler.resizing)
        return None if at is None else max(at, self.due)

    def _read(self) -> int | None:
        if self._is_blind:
            return None
        try:
            return self._available()
        except (OSError, ValueError) as error:
            log.warning("memory pressure is not watched any more: %s", error)
            self._is_blind = True
            return None
