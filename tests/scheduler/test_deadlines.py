"""Whoever is out of time ends at once, with what was made and a reason; its blocks are free for the next
plan."""

from __future__ import annotations

from tests.scheduler.served import Served

from octavo.params import Timeouts
from octavo.step.events import EventKind
from octavo.step.timers import Deadline, TimerKind, Timers
from octavo.types import FinishReason, Update


def ends(updates: list[Update]) -> dict[tuple[int, int], FinishReason | None]:
    return {(update.request_id, update.choice): update.finish for update in updates}


def test_a_request_ends_when_its_time_is_over_and_its_blocks_are_free_at_once() -> None:
    served = Served()
    slow = served.add(40, 50, timeouts=Timeouts(total=10.0))
    other = served.add(8, 50)
    for _ in range(8):
        served.step()
    made = sum(len(u.tokens) for u in served.updates if u.request_id == slow)
    assert made > 0
    assert served.scheduler.expire(9.9) == []
    updates = served.scheduler.expire(10.0)
    served.scheduler.check()
    assert ends(updates) == {(slow, 0): FinishReason.TIMEOUT}
    assert updates[0].usage.num_output == made
    assert "timeout of request 1 passed after 10.00 s while it was running" in updates[0].error
    (still,) = served.scheduler.live.running
    assert still.request.request_id == other
    assert served.memory.counts().held == len(still.table or ())
    assert served.scheduler.events.counts[EventKind.TIMED_OUT] == 1


def test_a_queue_deadline_ends_only_those_that_never_ran() -> None:
    served = Served(rows=1)
    runs = served.add(4, 50, timeouts=Timeouts(queue=1.0))
    waits = served.add(4, 50, timeouts=Timeouts(queue=1.0))
    served.step()
    updates = served.scheduler.expire(5.0)
    assert ends(updates) == {(waits, 0): FinishReason.TIMEOUT}
    assert "waiting: needs 1 rows, 0 free" in updates[0].error
    assert served.state(runs).value == "running"


def test_a_preempted_request_keeps_its_place_before_the_queue_deadline() -> None:
    served = Served()
    request = served.add(4, 50, timeouts=Timeouts(queue=1.0))
    served.step()
    (sequence,) = served.scheduler.live.running
    served.scheduler.preemption.preempt(sequence, sequence)
    assert served.scheduler.expire(5.0) == []
    assert served.state(request).value == "waiting"


def test_a_first_token_deadline_ends_a_request_whose_prompt_takes_too_long() -> None:
    served = Served(tokens=4)
    long = served.add(100, 5, timeouts=Timeouts(first_token=3.0))
    served.step()
    assert ends(served.scheduler.expire(3.0)) == {(long, 0): FinishReason.TIMEOUT}
    quick = served.add(4, 50, timeouts=Timeouts(first_token=3.0))
    served.step()
    assert served.scheduler.expire(100.0) == []
    assert served.state(quick).value == "running"


def test_every_choice_of_a_request_ends() -> None:
    served = Served()
    before = served.add(4, 50, n=3, timeouts=Timeouts(total=1.0))
    assert ends(served.scheduler.expire(1.0)) == {(before, c): FinishReason.TIMEOUT for c in range(3)}
    after = served.add(4, 50, n=3, timeouts=Timeouts(total=1.0))
    served.step()
    assert ends(served.scheduler.expire(1.0)) == {(after, c): FinishReason.TIMEOUT for c in range(3)}
    assert served.memory.counts().held == 0


def test_the_next_event_is_the_soonest_deadline() -> None:
    served = Served()
    assert served.scheduler.next_event() is None
    served.add(4, 5, timeouts=Timeouts(total=9.0, first_token=4.0))
    served.add(4, 5, timeouts=Timeouts(total=6.0))
    assert served.scheduler.next_event() == 4.0


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    served = Served()
    for _ in range(1000):
        served.add(4, 1, timeouts=Timeouts(total=1000.0))
        served.step()
    assert len(served.scheduler.timers._heap) < 100
    while served.scheduler.has_work:
        served.step()
    assert served.scheduler.next_event() is None


def test_deadlines_come_soonest_first() -> None:
    served = Served()
    request = served.add(4, 5, timeouts=Timeouts(total=3.0, queue=1.0, first_token=2.0))
    timers = served.scheduler.timers
    assert timers.pop_due(0.5) == []
    assert timers.pop_due(10.0) == [
        (TimerKind.DEADLINE, (request, Deadline.QUEUE.value)),
        (TimerKind.DEADLINE, (request, Deadline.FIRST_TOKEN.value)),
        (TimerKind.DEADLINE, (request, Deadline.TOTAL.value)),
    ]
    assert timers.pop_due(10.0) == []


def test_a_timer_that_was_set_again_or_cancelled_is_due_once_or_never() -> None:
    timers = Timers()
    for at in (5.0, 9.0, 2.0, 7.0):
        timers.set(TimerKind.SESSION, (0, "a"), at)
    timers.set(TimerKind.PIN, (3, ""), 6.0)
    timers.set(TimerKind.PIN, (4, ""), 1.0)
    timers.cancel(TimerKind.PIN, (4, ""))
    assert timers.next_time() == 6.0
    assert timers.pop_due(6.9) == [(TimerKind.PIN, (3, ""))]
    timers.set(TimerKind.DEADLINE, (8, "timeout"), 7.5)
    assert timers.pop_due(8.0) == [(TimerKind.DEADLINE, (8, "timeout")), (TimerKind.SESSION, (0, "a"))]
    assert timers.next_time() is None
