"""The pool gives memory back when nobody needs it or when the machine is short of it, never what is in use,
and never below its floor."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served

from octavo.errors import ResizeRefused
from octavo.scheduler.pressure import CALM_S, PressureConfig, PressurePolicy
from octavo.step.events import EventKind

BLOCK = 1000  # bytes
RESERVE = 20 * BLOCK
PLENTY = 10**9


def policy(idle_return_s: float = 0.0, reserve: int = RESERVE) -> PressurePolicy:
    return PressurePolicy(PressureConfig(BLOCK, idle_return_s, reserve))


def serve_one(served: Served, prompt: int, max_tokens: int = 1) -> None:
    served.add(prompt, max_tokens)
    while served.scheduler.has_work:
        served.step()


def given_back(served: Served) -> set[int]:
    plan = served.plan_of_nothing()
    if plan is None:
        return set()
    served.commit(plan)
    return {block for first, last in plan.discarded for block in range(first, last)}


def last_event(served: Served) -> str:
    return served.scheduler.events.recent(1)[0].text


def test_idle_blocks_give_their_memory_back_once_and_cached_ones_keep_it() -> None:
    served, elasticity = Served(blocks=40), policy(idle_return_s=60.0, reserve=0)
    serve_one(served, 30)  # 7 full blocks, which stay cached, and one that is free afterwards
    pool = served.memory.pool
    assert (pool.backing.count, served.memory.counts().cached) == (8, 7)
    elasticity.act(served.scheduler.resizer, 59.0, None, served.scheduler.has_work)
    assert given_back(served) == set()
    elasticity.act(served.scheduler.resizer, 60.0, None, served.scheduler.has_work)
    assert given_back(served).isdisjoint(pool.by_name.values())
    assert (pool.backing.count, served.memory.counts().cached) == (7, 7)
    assert last_event(served) == (
        "1 unused blocks gave their 1000 B back to the system: nothing has been computed for 60 s"
    )
    elasticity.act(served.scheduler.resizer, 600.0, None, served.scheduler.has_work)
    assert given_back(served) == set()
    assert served.scheduler.events.counts[EventKind.RETURNED] == 1
    assert elasticity.idle_at(served.scheduler.resizer) is None


def test_a_pool_that_works_is_not_idle() -> None:
    served, elasticity = Served(blocks=40), policy(idle_return_s=60.0, reserve=0)
    serve_one(served, 30)
    served.add(30, 20)
    served.step()
    elasticity.act(served.scheduler.resizer, 1e6, None, served.scheduler.has_work)
    assert served.plan().discarded == ()


def test_what_a_plan_takes_is_not_given_back_by_it() -> None:
    served = Served(blocks=40)
    serve_one(served, 79)
    served.memory.pool.drop_cached(100)
    unused = set(served.memory.pool.eviction_order())
    served.scheduler.idle_memory.give_back()
    served.add(40, 5, n=2)
    plan = served.plan()
    back = {block for first, last in plan.discarded for block in range(first, last)}
    taken = {write.block for write in plan.table_writes} | {copy.target for copy in plan.copies}
    assert taken <= unused
    assert back == unused - taken


def test_under_pressure_unused_memory_goes_first_then_the_longest_cached() -> None:
    served, elasticity = Served(blocks=60), policy()
    serve_one(served, 39)  # 9 cached
    serve_one(served, 39)
    first = list(served.memory.pool.by_name.values())[:9]
    elasticity.act(served.scheduler.resizer, 0.0, RESERVE, served.scheduler.has_work)
    assert given_back(served) == set()  # exactly enough
    elasticity.act(served.scheduler.resizer, 1.0, RESERVE - 5 * BLOCK, served.scheduler.has_work)
    back, counts = given_back(served), served.memory.counts()
    assert served.memory.pool.backing.count == counts.cached == 14
    assert len(back.intersection(first)) == 4
    assert counts.total == 60
    assert served.scheduler.idle_memory.why_smaller == ""
    assert last_event(served) == (
        "14.6 KiB of memory were available, and 19.5 KiB are to stay so (setting memory_reserve): 5 blocks "
        "gave 4.9 KiB back"
    )


def test_pressure_that_comes_again_soon_makes_the_pool_smaller() -> None:
    served, elasticity = Served(blocks=60), policy()
    serve_one(served, 79)
    for now in (1.0, 2.0):
        elasticity.act(served.scheduler.resizer, now, RESERVE - 5 * BLOCK, served.scheduler.has_work)
        given_back(served)
        served.scheduler.check()
    assert served.memory.counts().total == 10
    assert served.scheduler.idle_memory.blocks_wanted == 60
    assert "from 60 to 10 blocks" in served.scheduler.idle_memory.why_smaller
    for now in range(3, 20):  # an eighth stays open, at no cost
        elasticity.act(served.scheduler.resizer, float(now), 0, served.scheduler.has_work)
        given_back(served)
    assert served.memory.counts().total == 7
    assert served.memory.pool.backing.count == 0


def test_held_blocks_are_given_up_down_to_the_largest_request_and_no_further() -> None:
    served, elasticity = Served(blocks=60, tokens=100), policy()
    requests = [served.add(40, 9) for _ in range(4)]  # 12 blocks each at their longest
    for _ in range(4):
        served.step()
    assert len(served.scheduler.live.running) == 4
    elasticity.act(served.scheduler.resizer, 0.0, 0, served.scheduler.has_work)
    served.scheduler.check()
    assert "20 blocks gave" in last_event(served)
    served.step()
    elasticity.act(served.scheduler.resizer, 1.0, 0, served.scheduler.has_work)
    served.step()
    assert served.memory.pool.backing.count <= 12
    assert served.memory.counts().total == served.scheduler.resizer.floor() == 12
    with pytest.raises(ResizeRefused, match="allowed: 12"):
        served.scheduler.resizer.resize(11)
    while served.scheduler.has_work:
        served.step()
    assert all(served.finished(request) for request in requests)


def test_the_pool_grows_again_by_half_of_what_is_spare_when_it_has_been_calm() -> None:
    served, elasticity = Served(blocks=60), policy()
    serve_one(served, 79)
    for now in range(9):
        elasticity.act(served.scheduler.resizer, float(now), 0, served.scheduler.has_work)
        given_back(served)
    assert served.memory.counts().total == 7
    elasticity.act(served.scheduler.resizer, 8.0 + CALM_S - 1.0, PLENTY, served.scheduler.has_work)
    assert served.memory.counts().total == 7  # not calm for long enough
    elasticity.act(
        served.scheduler.resizer, 8.0 + CALM_S, RESERVE + (7 + 20) * BLOCK, served.scheduler.has_work
    )
    assert served.memory.counts().total == 7 + 10
    assert served.scheduler.idle_memory.why_smaller != ""
    elasticity.act(served.scheduler.resizer, 9.0 + CALM_S, PLENTY, served.scheduler.has_work)
    assert served.memory.counts().total == 17  # once in CALM_S
    elasticity.act(
        served.scheduler.resizer, 8.0 + 2 * CALM_S, RESERVE + 18 * BLOCK, served.scheduler.has_work
    )
    assert served.memory.counts().total == 17  # what is spare is promised already
    elasticity.act(served.scheduler.resizer, 8.0 + 3 * CALM_S, PLENTY, served.scheduler.has_work)
    assert served.memory.counts().total == 60
    assert served.scheduler.idle_memory.why_smaller == ""
    assert served.scheduler.events.counts[EventKind.MEMORY_PRESSURE_CLEARED] == 2
    elasticity.act(served.scheduler.resizer, 8.0 + 9 * CALM_S, PLENTY, served.scheduler.has_work)
    assert served.memory.counts().total == 60


def test_growth_does_not_bring_the_pressure_back() -> None:
    """Whatever is free, a pool that fills at once after growing leaves the reserve alone."""
    for free in range(0, 120, 7):
        served, elasticity = Served(blocks=60), policy()
        served.scheduler.resizer.resize(5, for_now=True)
        available = RESERVE + free * BLOCK
        elasticity.act(served.scheduler.resizer, 0.0, available, served.scheduler.has_work)
        could_take = served.memory.counts().total - 5
        assert available - could_take * BLOCK >= RESERVE
        assert could_take * 2 <= max(0, free - 5)


def test_a_size_that_someone_sets_is_the_one_that_is_wanted() -> None:
    served, elasticity = Served(blocks=60, capacity=80), policy()
    assert served.scheduler.resizer.resize(30)
    elasticity.act(served.scheduler.resizer, 1e6, PLENTY, served.scheduler.has_work)
    assert served.memory.counts().total == 30
    assert served.scheduler.resizer.resize(70)
    assert served.scheduler.idle_memory.blocks_wanted == 70


def test_a_block_on_its_way_below_keeps_its_memory() -> None:
    served, elasticity = Served(blocks=20, slots=20), policy()
    served.add(39, 1)
    while not (plan := served.plan()).transfers:
        served.commit(plan)
    moving = {transfer.block for transfer in plan.transfers}
    assert moving
    for now in (1.0, 2.0, 3.0):
        elasticity.act(served.scheduler.resizer, now, 0, served.scheduler.has_work)
        served.scheduler.check()
        back = served.plan_of_nothing()
        for first, last in back.discarded if back is not None else ():
            assert moving.isdisjoint(range(first, last))
