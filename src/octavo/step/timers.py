"""Timers: one heap for deadlines of requests and expiries of pins and sessions. Time is an argument.

A request's deadlines count from its submission:

    queue         admitted for the first time        submission + Timeouts.queue
    first token   a token of any choice exists       submission + Timeouts.first_token
    total         every choice has ended             submission + Timeouts.total
"""

from __future__ import annotations

import enum
import heapq
import math

from octavo.params import NO_TIMEOUTS
from octavo.types import Request


class TimerKind(enum.IntEnum):
    """A kind of timer; simultaneous ones are due in this order."""

    DEADLINE = 0
    PIN = 1
    SESSION = 2


Key = tuple[int, str]


class Timers:
    """A heap of (time, kind, key). An entry with another time than the last one set is void."""

    def __init__(self) -> None:
        self.soonest = math.inf  # no timer is due earlier
        self._heap: list[tuple[float, TimerKind, Key]] = []
        self._set: dict[tuple[TimerKind, Key], float] = {}

    def set(self, due: TimerKind, key: Key, at: float) -> None:
        """Set the timer, replacing an earlier one of the same key. O(log n)."""
        self._set[due, key] = at
        self.soonest = min(self.soonest, at)
        heapq.heappush(self._heap, (at, due, key))
        if len(self._heap) > 64 + 2 * len(self._set):  # mostly void entries
            self._heap = [(at, *what) for what, at in self._set.items()]
            heapq.heapify(self._heap)

    def cancel(self, due: TimerKind, key: Key) -> None:
        """Cancel the timer, if there is one."""
        self._set.pop((due, key), None)

    def next_time(self) -> float | None:
        """The time of the earliest timer; None: there is none."""
        while self._heap and self._set.get(self._heap[0][1:]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        self.soonest = self._heap[0][0] if self._heap else math.inf
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[tuple[TimerKind, Key]]:
        """The timers due by `now`, each once: by kind, then by time."""
        found = []
        while (at := self.next_time()) is not None and at <= now:
            _, due, key = heapq.heappop(self._heap)
            del self._set[due, key]
            found.append((due, at, key))
        return [(due, key) for due, _, key in sorted(found)]


class Deadline(enum.Enum):
    """An event with a deadline; the value is the client's name for the timeout."""

    QUEUE = "queue_timeout"
    FIRST_TOKEN = "ttft_timeout"
    TOTAL = "timeout"


def set_deadlines(timers: Timers, request: Request) -> None:
    """Start the request's timers, if it has any."""
    given = request.timeouts
    for deadline, seconds in (
        (Deadline.QUEUE, given.queue),
        (Deadline.FIRST_TOKEN, given.first_token),
        (Deadline.TOTAL, given.total),
    ):
        if seconds is not None:
            key = (request.request_id, deadline.value)
            timers.set(TimerKind.DEADLINE, key, request.arrival + seconds)


def cancel_deadlines(timers: Timers, request: Request) -> None:
    """The request has ended: cancel its timers."""
    for deadline in Deadline if request.timeouts != NO_TIMEOUTS else ():
        timers.cancel(TimerKind.DEADLINE, (request.request_id, deadline.value))
