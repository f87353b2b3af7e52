"""When something is due: one heap for deadlines of requests and expiries of pins and sessions. It knows
neither what they are nor a clock; time is an argument."""

from __future__ import annotations

import enum
import heapq
import math


class Due(enum.IntEnum):
    """What can be due; of what is due at once, in this order."""

    DEADLINE = 0
    PIN = 1
    SESSION = 2


Key = tuple[int, str]


class Timers:
    """A heap of (time, what, whose). An entry that says another time than was set last is void."""

    def __init__(self) -> None:
        self.soonest = math.inf  # nothing is due before
        self._heap: list[tuple[float, Due, Key]] = []
        self._set: dict[tuple[Due, Key], float] = {}

    def set(self, due: Due, key: Key, at: float) -> None:
        """Let it be due then, and at no other time. O(log n)."""
        self._set[due, key] = at
        self.soonest = min(self.soonest, at)
        heapq.heappush(self._heap, (at, due, key))
        if len(self._heap) > 64 + 2 * len(self._set):  # mostly void
            self._heap = [(at, *what) for what, at in self._set.items()]
            heapq.heapify(self._heap)

    def cancel(self, due: Due, key: Key) -> None:
        """Let it never be due. There may be no such timer."""
        self._set.pop((due, key), None)

    def next_time(self) -> float | None:
        """When the soonest is due; None: never."""
        while self._heap and self._set.get(self._heap[0][1:]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        self.soonest = self._heap[0][0] if self._heap else math.inf
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[tuple[Due, Key]]:
        """What is due by `now`, each once: what in order, then the soonest in front."""
        found = []
        while (at := self.next_time()) is not None and at <= now:
            _, due, key = heapq.heappop(self._heap)
            del self._set[due, key]
            found.append((due, at, key))
        return [(due, key) for due, _, key in sorted(found)]
