"""Blocks below: whatever becomes of them, whoever waits for them is served."""

from __future__ import annotations

from array import array

from tests.scheduler.served import Served, State

from octavo.engine.port import inspector_of
from octavo.inspect.views import draw_map
from octavo.memory.holders import Holder, HolderKind
from octavo.retention.client_pins import PinRequest
from octavo.step.step_times import StepWork
from octavo.types import Move, StepPlan, Transfer, TransferDone

PROMPT = tuple(range(100, 135))  # 8 blocks of 4 that can be hits, and three tokens


def turn(served: Served) -> list[Transfer]:
    """One step, chunks or not; the transfers that began with it."""
    plan: StepPlan | None = served.scheduler.schedule(0.0)
    served.scheduler.check()
    if plan is None:
        return []
    served.commit(plan)
    return [transfer for transfer in plan.transfers if transfer.move is not Move.FORGET]


def finish(served: Served, transfers: list[Transfer], ok: bool = True, seconds: float = 0.0) -> None:
    for transfer in transfers:
        served.scheduler.transfers.finish(TransferDone(transfer.transfer_id, ok, seconds))
        served.scheduler.check()


def go_below(served: Served, *prompts: tuple[int, ...]) -> None:
    """Serve the prompts, store their blocks, and evict them."""
    for prompt in prompts:
        request = served.add(prompt, 1)
        while served.state(request) is not State.FINISHED:
            finish(served, turn(served))
    while served.scheduler.transfers.could_store:
        finish(served, turn(served))
    pool = served.memory.pool
    table = served.memory.open(Holder(HolderKind.SEQUENCE))
    served.memory.reserve(table, 0, pool.num_available * served.memory.block_size)
    served.memory.close(table)


def test_a_prefix_below_is_loaded_and_then_a_hit() -> None:
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    request = served.add(PROMPT, 2)
    loads = turn(served)
    assert [transfer.move for transfer in loads] == [Move.LOAD] * 8
    view = inspector_of(served.scheduler).request(request, 0.0)
    assert view is not None
    assert view.sequences[0].reason == "loading"
    assert draw_map(inspector_of(served.scheduler).glimpse(0.0)).states.count("t") == 8
    assert turn(served) == []  # it waits
    finish(served, loads)
    turn(served)
    assert served.updates[-1].usage.num_cached == 32


def test_failed_loads_never_keep_a_request_out_that_needs_the_whole_pool() -> None:
    for num_failed in (1, 8):
        served = Served(blocks=10, slots=50)
        go_below(served, PROMPT)
        request = served.add(PROMPT, 5)
        loads = turn(served)
        finish(served, loads[:num_failed], ok=False)
        finish(served, loads[num_failed:])
        for _ in range(20):
            finish(served, turn(served))
        assert served.finished(request), "wedged by its own fetch"


def test_fetches_of_several_requests_and_a_pin_never_wedge() -> None:
    served = Served(blocks=14, slots=50, pins=6)
    first, second = tuple(range(100, 117)), tuple(range(200, 217))  # 4 blocks below each
    go_below(served, first, second)
    requests = [served.add((*prompt, *range(900, 913)), 3) for prompt in (first, second)]
    loads = turn(served) + turn(served)
    assert len(loads) == 8
    served.scheduler.client_pins.open(PinRequest("pin", tuple(range(300, 324)), 60.0), served.next_id, 0.0)
    served.add(tuple(range(300, 324)), 1, fills_pin="pin")
    for _ in range(5):
        turn(served)
    finish(served, loads)
    for _ in range(60):
        finish(served, turn(served))
    assert all(served.finished(request) for request in requests)


def test_a_slow_spell_below_is_tried_again() -> None:
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    transfers, tier = served.scheduler.transfers, served.scheduler.transfers.tier
    assert tier is not None
    served.scheduler.context.times.observe(StepWork(prompt=100), 0.1)
    served.add(PROMPT, 1)
    finish(served, turn(served), seconds=5.0)
    while served.scheduler.has_work:
        turn(served)
    assert transfers.count_loadable(tier.names()) == 0
    served.scheduler.expire(300.0)
    assert transfers.count_loadable(tier.names()) == tier.num_stored


def test_of_a_prefix_that_was_loaded_the_tail_is_forgotten_before_the_head() -> None:
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    served.add(PROMPT, 2)
    finish(served, turn(served))
    tier = served.scheduler.transfers.tier
    assert tier is not None
    chain = served.scheduler.namer.chain("", array("I", PROMPT)).names
    assert [chain.index(name) for name in tier.names() if name in chain][-8:] == [7, 6, 5, 4, 3, 2, 1, 0]
