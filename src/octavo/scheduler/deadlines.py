"""The deadlines of a request, counted from its submission.

queue         admitted for the first time        submission + Timeouts.queue
first token   a token of any choice exists       submission + Timeouts.first_token
total         every choice has ended             submission + Timeouts.total
"""

from __future__ import annotations

import enum

from octavo.params import NO_TIMEOUTS
from octavo.step.timers import TimerKind, Timers
from octavo.types import Request


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
