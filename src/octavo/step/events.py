"""Events with their reasons and numbers: a bounded ring, and a count of each kind.

Only rare events are recorded: a step that works as planned records none.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass

EVENTS_MAX = 1024


class EventKind(enum.StrEnum):
    """An event of a request, a pin, a session or the pool."""

    PREEMPTED = "preempted"  # a running sequence lost its blocks to another
    EVICTED = "evicted"  # cached blocks were taken for new ones; consecutive steps are one event
    REFUSED = "refused"  # a request or a pin was refused
    TIMED_OUT = "timed_out"  # a deadline passed
    FAILED = "failed"  # a sequence failed while it ran
    TRANSFER_FAILED = "transfer_failed"  # bytes in an offload tier could not be written, or were damaged
    RESIZED = "resized"  # the pool was made larger or smaller
    RETURNED = "returned"  # memory of idle blocks was returned to the system
    STEP_SHRUNK = "step_shrunk"  # the device had no memory for a step: later ones compute fewer positions
    MEMORY_PRESSURE = "memory_pressure"  # the machine was short of memory: the pool gave memory back
    MEMORY_PRESSURE_CLEARED = "memory_pressure_cleared"  # the shortage is over: the pool grew again
    PINNED = "pinned"  # a pin holds its blocks
    UNPINNED = "unpinned"  # a pin was deleted, or held blocks that were found poisoned
    PIN_EXPIRED = "pin_expired"  # a pin's time to live passed
    SESSION_BEST_EFFORT = "session_best_effort"  # a session's blocks are not kept between its turns
    SESSION_RELEASED = "session_released"  # its blocks were released for a request or a pin
    SESSION_FELL_BACK = "session_fell_back"  # a turn did not extend the session's tokens
    SESSION_SUSPENDED = "session_suspended"  # all its blocks are on disk
    SESSION_RESUMED = "session_resumed"  # its blocks are in the pool again
    SESSION_EXPIRED = "session_expired"  # its time to live passed


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the ring. `blocks`: how many were affected."""

    at: float  # the engine's clock, in seconds
    kind: EventKind
    text: str
    request_id: int | None = None
    tenant: str = ""
    blocks: int = 0


class EventRing:
    """The last `EVENTS_MAX` events; the counts include older ones."""

    def __init__(self) -> None:
        self._ring: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.counts: Counter[EventKind] = Counter()
        self.blocks: Counter[EventKind] = Counter()

    def record(self, event: Event) -> None:
        """Add an event."""
        self._ring.append(event)
        self.counts[event.kind] += 1
        self.blocks[event.kind] += event.blocks

    def record_evictions(self, at: float, blocks: int) -> None:
        """Cached blocks were taken. Consecutive steps are one event, or they would fill the ring."""
        self.counts[EventKind.EVICTED] += 1
        self.blocks[EventKind.EVICTED] += blocks
        if self._ring and self._ring[-1].kind is EventKind.EVICTED:
            blocks += self._ring.pop().blocks
        text = f"{blocks:,} cached blocks were taken for new ones, longest unheld first"
        self._ring.append(Event(at, EventKind.EVICTED, text, blocks=blocks))

    def recent(self, count: int) -> list[Event]:
        """The last `count`, newest first."""
        return [event for _, event in zip(range(count), reversed(self._ring), strict=False)]
