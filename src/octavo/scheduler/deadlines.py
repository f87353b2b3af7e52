"""Who must be done by when: the deadlines of live requests, soonest first. Time is an argument.

queue         admitted for the first time        submission + Timeouts.queue
first token   a token of any choice exists       submission + Timeouts.first_token
total         every choice has ended             submission + Timeouts.total
"""

from __future__ import annotations

import enum
import heapq

from octavo.types import Request


class Deadline(enum.Enum):
    """What had to have happened; the value is the client's name for its timeout."""

    QUEUE = "queue_timeout"
    FIRST_TOKEN = "ttft_timeout"
    TOTAL = "timeout"


class Deadlines:
    """A heap of (time, request, what). What has become void is dropped when its time comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Note the request's deadlines, if it has any. O(log n)."""
        timeouts = request.timeouts
        for deadline, seconds in (
            (Deadline.QUEUE, timeouts.queue),
            (Deadline.FIRST_TOKEN, timeouts.first_token),
            (Deadline.TOTAL, timeouts.total),
        ):
            if seconds is not None:
                entry = (request.arrival + seconds, request.request_id, deadline.value)
                heapq.heappush(self._heap, entry)

    def pop_due(self, now: float) -> tuple[int, Deadline] | None:
        """The soonest that has passed, as (request id, deadline), or None."""
        if not self._heap or self._heap[0][0] > now:
            return None
        _, request_id, value = heapq.heappop(self._heap)
        return request_id, Deadline(value)

    def next_time(self) -> float | None:
        """When the soonest passes."""
        return self._heap[0][0] if self._heap else None

    def keep(self, live: set[int]) -> None:
        """Drop the deadlines of requests that are not in `live`. O(n): for when most of them are void."""
        self._heap = [entry for entry in self._heap if entry[1] in live]
        heapq.heapify(self._heap)
