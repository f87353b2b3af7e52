"""The pool grows and shrinks while it serves; nobody that was let in is crowded out, nothing is lost."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served, State

from octavo.errors import ResizeRefused
from octavo.retention.client_pins import PinRequest


def test_shrinking_moves_what_is_held_and_gives_the_tail_back() -> None:
    served = Served(blocks=60, tokens=200)
    first = served.add(120, 20)  # takes the first 30 blocks
    second = served.add(40, 20)
    served.step()
    served.scheduler.cancel(first)
    served.step()
    table = list(served.scheduler.live.running[0].table.blocks)  # type: ignore[union-attr]
    assert max(table) >= 16
    assert served.scheduler.resizer.resize(16)
    served.scheduler.check()
    moved = served.scheduler.live.running[0].table.blocks  # type: ignore[union-attr]
    assert max(moved) < 16
    plan = served.plan()
    assert plan.discarded == ((16, 60),)
    assert {(c.source, c.target) for c in plan.copies} == {
        (old, new) for old, new in zip(table, moved, strict=True) if old != new
    }
    told = {(w.index, w.block) for w in plan.table_writes}
    assert {(i, b) for i, (b, old) in enumerate(zip(moved, table, strict=True)) if b != old} <= told
    served.commit(plan)
    while served.state(second) is not State.FINISHED:
        served.step()
    assert served.memory.counts().total == 16


def test_growing_gives_room_at_once_and_never_beyond_what_was_reserved() -> None:
    served = Served(blocks=10, capacity=30)
    assert served.scheduler.resizer.resize(30)
    served.scheduler.check()
    assert served.memory.counts().free == 30
    served.add(100, 5)
    with pytest.raises(ResizeRefused, match=r"31 blocks was asked for; allowed: 26 .* to 30 \(reserved"):
        served.scheduler.resizer.resize(31)


def test_the_floor_is_what_pins_hold_and_the_largest_request_needs() -> None:
    served = Served(blocks=40)
    served.scheduler.client_pins.open(PinRequest("greeting", tuple(range(20)), 60.0), served.next_id, 0.0)
    served.add(tuple(range(20)), 1, fills_pin="greeting")
    served.add(40, 5)  # 11 blocks at its longest
    assert served.scheduler.resizer.floor() == 16
    with pytest.raises(ResizeRefused, match="allowed: 16"):
        served.scheduler.resizer.resize(15)
    assert served.scheduler.resizer.resize(16)
    while served.scheduler.has_work:
        served.step()
    assert served.memory.counts().held == 5


def test_running_sequences_beyond_the_new_size_are_preempted_and_come_back() -> None:
    served = Served(blocks=60)
    requests = [served.add(40, 10) for _ in range(4)]
    for _ in range(10):
        served.step()
    assert len(served.scheduler.live.running) == 4
    assert served.scheduler.resizer.resize(20)
    served.scheduler.check()
    assert len(served.scheduler.live.running) < 4
    while served.scheduler.has_work:
        served.step()
    assert all(served.finished(request) for request in requests)


def test_cached_blocks_of_the_tail_are_evicted_and_of_the_head_kept() -> None:
    served = Served(blocks=20)
    served.add(79, 1)
    while served.scheduler.has_work:
        served.step()
    assert served.memory.counts().cached == 19
    assert served.scheduler.resizer.resize(10)
    served.scheduler.check()
    assert served.memory.counts().cached >= 9
    assert served.plan_of_nothing() is not None  # the tail goes back although nobody runs


def test_what_is_in_use_again_before_the_next_plan_is_not_given_back() -> None:
    served = Served(blocks=40)
    served.add(30, 5)
    served.step()
    assert served.scheduler.resizer.resize(12)
    assert served.scheduler.resizer.resize(30)
    assert served.plan().discarded == ((30, 40),)


def test_shrinking_and_growing_again_forgets_nothing_that_is_held() -> None:
    served = Served(blocks=40)
    request = served.add(30, 40)
    for size in (20, 35, 18, 40, 19):
        served.step()
        assert served.scheduler.resizer.resize(size)
        served.scheduler.check()
    while served.state(request) is not State.FINISHED:
        served.step()
