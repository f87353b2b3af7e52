"""Tenants over the real scheduler and ledger: quotas, guarantees, turns, shared prefixes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest
from tests.scheduler.served import Served

from octavo.engine.port import inspector_of
from octavo.errors import PinRefused, QueueFull, RequestTooLarge, TenantsRefused, UnknownTenant
from octavo.memory.quota import ONCE_SHARED, SHARED, TenantPolicy
from octavo.params import Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.scheduler.sequence import State
from octavo.scheduler.waits import WaitReason
from octavo.types import FinishReason, TransferDone


def test_no_one_holds_more_than_its_maximum() -> None:
    served = Served(blocks=40, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", maximum=6)])
    for i in range(8):
        served.add(tuple(range(i * 100, i * 100 + 40)), 20, tenant="a")
    while served.scheduler.has_work:
        served.step()
        assert served.memory.quotas.charged("a") <= 6
    assert sum(update.finish is FinishReason.LENGTH for update in served.updates) == 8


def test_a_request_beyond_its_tenants_maximum_is_refused() -> None:
    served = Served(blocks=40, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", maximum=6, request_maximum=3)])
    with pytest.raises(RequestTooLarge, match=r"allowed: 3, .* one request .*request_maximum") as refused:
        served.add(tuple(range(60)), 8, tenant="a")
    assert refused.value.code == "kv_quota_exceeded"
    assert "pool" not in str(refused.value)
    assert "kv_memory" not in str(refused.value)
    served.scheduler.tenants.set_policies([TenantPolicy("a", maximum=6)])
    with pytest.raises(RequestTooLarge, match=r"allowed: 6, .* of its tenant's maximum \(`maximum`"):
        served.add(tuple(range(100)), 8, tenant="a")
    served.add(tuple(range(60)), 8, tenant="b")


def test_no_reader_meets_a_tenant_without_its_bounds_while_they_are_set() -> None:
    quotas = Served().memory.quotas
    bounded = TenantPolicy("a", maximum=6)
    quotas.set_policies([bounded])
    met = []

    class Watched(list[TenantPolicy]):
        def __iter__(self) -> Iterator[TenantPolicy]:
            for policy in super().__iter__():
                met.append(quotas.policy("a").maximum)
                yield policy

    quotas.set_policies(Watched([bounded, TenantPolicy("b"), TenantPolicy("c")]))
    assert met
    assert set(met) == {6}


def test_running_and_waiting_count_requests() -> None:
    served = Served(rows=3)
    served.add(8, 20, n=3)
    served.add(8, 20, tenant="a")
    served.step()
    served.step()
    assert len(served.scheduler.live.running) == 3
    inspector = inspector_of(served.scheduler)
    assert (inspector.kv(0.0).running, inspector.kv(0.0).waiting) == (1, 1)
    assert (inspector.kv(0.0, "").running, inspector.kv(0.0, "a").waiting) == (1, 1)


def test_a_request_that_would_need_what_is_guaranteed_to_others_is_refused() -> None:
    served = Served(blocks=10, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=6)])
    with pytest.raises(RequestTooLarge, match="allowed: 4"):
        served.add(tuple(range(70)), 8, tenant="b")
    served.add(tuple(range(70)), 8, tenant="a")


def test_guaranteed_blocks_are_obtained_at_once_from_a_borrower() -> None:
    served = Served(blocks=16, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=6), TenantPolicy("b")])
    flood = [served.add(tuple(range(i * 100, i * 100 + 60)), 30, tenant="b") for i in range(6)]
    for _ in range(4):
        served.step()
    assert served.memory.num_available < 5, "b has borrowed what nobody wants"
    wanted = served.add(tuple(range(5000, 5070)), 10, tenant="a")
    served.step()
    assert served.state(wanted) is State.RUNNING, "a does not wait for b"
    assert any(event.kind.value == "preempted" for event in served.scheduler.events.recent(10))
    served.drain()
    assert all(served.finished(request) == {0: FinishReason.LENGTH} for request in [wanted, *flood])


def test_a_tenant_within_its_guarantee_loses_nothing_to_a_higher_priority_of_another() -> None:
    served = Served(blocks=10, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=5), TenantPolicy("b")])
    kept = served.add(tuple(range(60)), 10, tenant="a")
    served.step()
    served.add(tuple(range(1000, 1060)), 10, tenant="b", priority=9)
    served.add(tuple(range(2000, 2060)), 10, tenant="b", priority=9)
    served.drain()
    assert served.usage(kept).preemptions == 0


def test_without_guarantees_a_higher_priority_still_wins() -> None:
    served = Served(blocks=6, block=16, tokens=64)
    loser = served.add(tuple(range(60)), 10, tenant="a")
    served.step()
    served.add(tuple(range(1000, 1060)), 10, tenant="b", priority=9)
    served.drain()
    assert served.usage(loser).preemptions == 1


def test_max_running_and_max_queue_are_a_tenants_own() -> None:
    served = Served(blocks=40, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", max_running=1, max_waiting=2)])
    first = served.add(tuple(range(16)), 8, tenant="a")
    second = served.add(tuple(range(100, 116)), 8, tenant="a")
    with pytest.raises(QueueFull, match="your max_queue"):
        served.add(tuple(range(200, 216)), 8, tenant="a")
    served.add(tuple(range(300, 316)), 8, tenant="b")
    served.step()
    assert served.state(first) is State.RUNNING
    (waiting,) = served.scheduler.live.sequences_of(second)
    assert waiting.queue.wait.reason is WaitReason.TENANT_RUNNING
    assert "max_running" in waiting.queue.wait.in_words()
    served.drain()


def test_a_prefix_is_another_tenants_only_when_the_operator_shares_it() -> None:
    served = Served(blocks=40, block=16, tokens=64)
    secret = served.add(tuple(range(64)), 2, tenant="a")
    served.drain()
    other = served.add(tuple(range(64)), 2, tenant="b")
    served.drain()
    assert (served.usage(secret).num_cached, served.usage(other).num_cached) == (0, 0)
    order = PinRequest("greeting", tuple(range(1000, 1064)), 60.0, tenant=SHARED)
    served.scheduler.client_pins.open(order, served.next_id, 0.0)
    served.add(order.tokens, 1, tenant=SHARED, fills_pin="greeting")
    served.drain()
    first = served.add((*range(1000, 1064), 7, 8), 30, tenant="a")
    second = served.add((*range(1000, 1064), 7, 8), 30, tenant="b")
    served.drain()
    assert (served.usage(first).num_cached, served.usage(second).num_cached) == (64, 64)
    assert served.memory.quotas.charged(SHARED) == 4
    third = served.add((*range(1000, 1064), 7, 8, *range(30)), 1, tenant="b")
    assert served.memory.quotas.charged("b") == 0
    served.drain()
    assert served.usage(third).num_cached == 64, "what follows the shared prefix stays a tenant's own"


def test_pins_use_only_their_tenants_guarantee() -> None:
    served = Served(blocks=40, block=16, pins=20, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=4)])
    with pytest.raises(PinRefused, match="tenant b keep 0, and it is guaranteed 0"):
        served.scheduler.client_pins.open(PinRequest("p", tuple(range(32)), 60.0, tenant="b"), 99, 0.0)
    with pytest.raises(PinRefused, match=r"needs 5 blocks.*it is guaranteed 4"):
        served.scheduler.client_pins.open(PinRequest("p", tuple(range(80)), 60.0, tenant="a"), 99, 0.0)


def test_a_tenant_gets_no_number_that_others_move() -> None:
    served = Served(blocks=10, block=16, pins=20, tokens=64)
    served.add(tuple(range(100, 180)), 20, tenant="b")
    served.step()
    late = served.add(tuple(range(70)), 40, tenant="a", timeouts=Timeouts(queue=1.0))
    served.scheduler.schedule(0.5)
    (waiting,) = served.scheduler.live.sequences_of(late)
    assert waiting.queue.wait.reason is WaitReason.BLOCKS
    (final,) = served.scheduler.expire(2.0)
    assert final.error.endswith("waiting: too few blocks are unheld for it")
    assert "unheld, of which" in served.scheduler.events.recent(1)[0].text, "the operator is told all"


def test_a_refused_pin_shows_its_tenants_pins_whatever_others_have_pinned() -> None:
    told = []
    for num_others in (0, 5):
        served = Served(blocks=100, pins=60, tokens=64)
        served.open_pin("own", 8, "a")
        served.drain()
        for index in range(num_others):
            served.open_pin(f"other{index}", 16, "b")
            served.drain()
        with pytest.raises(PinRefused, match="held by pins own 2") as refusal:
            served.open_pin("large", 4 * 70, "a")
        told.append(str(refusal.value))
    assert told[0] == told[1]


def test_a_request_that_others_pins_keep_out_gets_no_number_of_theirs() -> None:
    served = Served(blocks=20, pins=10, tokens=64)
    served.open_pin("rules", 32, "b")
    served.drain()
    with pytest.raises(RequestTooLarge, match="allowed: fewer, because others have pinned some of the pool"):
        served.add(60, 1, tenant="a")
    with pytest.raises(RequestTooLarge, match="needs 21 KV blocks; allowed: 20, what pins leave of the pool"):
        served.add(84, 1, tenant="a")


def test_bounds_that_do_not_fit_are_refused_and_change_nothing() -> None:
    served = Served(blocks=10, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=4)])
    served.add(tuple(range(80)), 8, tenant="b")
    with pytest.raises(TenantsRefused, match="allowed: 10"):
        served.scheduler.tenants.set_policies(
            [TenantPolicy("a", guaranteed=6), TenantPolicy("b", guaranteed=6)]
        )
    with pytest.raises(TenantsRefused, match="was accepted"):
        served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=6), TenantPolicy("b")])
    assert served.memory.quotas.policy("a").guaranteed == 4


def test_a_smaller_maximum_takes_effect_at_once() -> None:
    served = Served(blocks=40, block=16, tokens=64)
    for i in range(4):
        served.add(tuple(range(i * 100, i * 100 + 60)), 12, tenant="a")
    for _ in range(5):
        served.step()
    assert served.memory.quotas.charged("a") > 6
    served.scheduler.tenants.set_policies([TenantPolicy("a", maximum=6)])
    assert served.memory.quotas.charged("a") <= 6
    served.drain()


def test_eviction_takes_first_from_who_has_most_cached_for_its_weight() -> None:
    served = Served(blocks=16, block=16, tokens=64)
    served.add(tuple(range(64)), 1, tenant="small")
    served.drain()
    for i in range(3):
        served.add(tuple(range(i * 1000 + 100, i * 1000 + 164)), 1, tenant="large")
        served.drain()
    before = served.memory.quotas.cached("small")
    served.add(tuple(range(9000, 9064)), 1, tenant="third")
    served.drain()
    assert served.memory.quotas.cached("small") == before, "the longest unheld are small's, and stay"
    assert served.memory.quotas.cached("large") < 12


def test_a_higher_priority_leaves_a_lender_its_guarantee() -> None:
    served = Served(blocks=20, block=16, tokens=200)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=10), TenantPolicy("b")])
    for i in range(4):
        served.add(tuple(range(i * 100, i * 100 + 40)), 8, tenant="a")
    for _ in range(3):
        served.step()
    assert served.memory.quotas.charged("a") == 12
    served.add(tuple(range(5000, 5150)), 4, tenant="b", priority=9)
    served.scheduler.schedule(0.0)
    assert served.memory.quotas.charged("a") >= 9, (
        "one of its sequences may go, which takes it below by a part"
    )


def test_what_only_a_tenants_own_bounds_lack_costs_no_one_else() -> None:
    served = Served(blocks=100, block=16, tokens=200)
    served.scheduler.tenants.set_policies([TenantPolicy("a", maximum=6), TenantPolicy("b")])
    others = [served.add(tuple(range(i * 100, i * 100 + 40)), 60, tenant="b") for i in range(3)]
    own = served.add(tuple(range(9000, 9080)), 12, tenant="a")
    for _ in range(3):
        served.step()
    first = served.add(tuple(range(7000, 7080)), 4, tenant="a", priority=5)
    served.step()
    assert served.state(first) is State.RUNNING
    assert served.state(own) is State.WAITING
    served.drain()
    assert [served.usage(other).preemptions for other in others] == [0, 0, 0]


def test_what_borrowers_fetched_and_wait_with_gives_way_to_a_guarantee() -> None:
    served = Served(blocks=30, block=16, rows=1, tokens=200, slots=100)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=12), TenantPolicy("b")])
    prompts = [tuple(range(i * 1000, i * 1000 + 160)) for i in range(3)]
    tier = served.scheduler.transfers.tier
    assert tier is not None
    for prompt in prompts:  # all of it is below, and nothing in the pool
        chain = served.scheduler.namer.chain("b", array("I", prompt))
        for name in chain.names:
            tier.begin_store(name)
            tier.end_store(name, ok=True)
    served.add(tuple(range(50_000, 50_020)), 60, tenant="b")
    served.step()
    for prompt in prompts:
        served.add(prompt, 4, tenant="b")
    for _ in range(4):
        plan = served.plan()
        for transfer in plan.transfers:
            served.scheduler.transfers.finish(TransferDone(transfer.transfer_id, ok=True, seconds=0.001))
        served.commit(plan)
    wanted = served.add(tuple(range(70_000, 70_170)), 4, tenant="a")
    for _ in range(2):
        served.step()
    assert served.state(wanted) is State.RUNNING


def test_what_the_operator_shares_needs_no_guarantee_and_leaves_others_theirs() -> None:
    served = Served(blocks=40, block=16, pins=39, tokens=256)
    served.scheduler.tenants.set_policies(
        [TenantPolicy("a", guaranteed=20), TenantPolicy(SHARED, maximum=16)]
    )
    rules = served.open_pin("rules", 10 * 16, SHARED)
    served.drain()
    assert served.finished(rules) == {0: FinishReason.LENGTH}
    assert served.memory.quotas.charged(SHARED) == 10
    with pytest.raises(PinRefused, match="more than are left to pins now; those of tenant shared keep 10"):
        served.open_pin("beyond-its-maximum", 6 * 16, SHARED)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=20), TenantPolicy(SHARED)])
    with pytest.raises(PinRefused, match="more than are left to pins now"):
        served.open_pin("beyond-the-pool", 10 * 16, SHARED)
    served.scheduler.client_pins.open(PinRequest("own", tuple(range(19 * 16)), 60.0, tenant="a"), 99, 0.0)


def test_what_is_computed_to_be_shared_is_left_room_for_although_no_one_is_charged_for_it_yet() -> None:
    served = Served(blocks=60, tokens=20, pins=40)
    served.scheduler.tenants.set_policies([TenantPolicy(SHARED, maximum=9)])
    requests = [served.open_pin("long", 22, SHARED)]
    served.step()  # five blocks of it have names, and are nobody's yet
    requests.append(served.open_pin("short", 14, SHARED))
    served.drain()
    assert [served.finished(request) for request in requests] == [{0: FinishReason.LENGTH}] * 2
    assert served.memory.quotas.charged(SHARED) == 8


def test_a_smaller_maximum_of_what_is_shared_waits_for_those_who_hold_it() -> None:
    served = Served(blocks=60, block=4, tokens=64, pins=20)
    order = PinRequest("x", tuple(range(100, 128)), 60.0, tenant=SHARED)
    served.scheduler.client_pins.open(order, served.next_id, 0.0)
    served.add(order.tokens, 1, tenant=SHARED, fills_pin="x")
    served.drain()
    reader = served.add((*order.tokens, 1, 2, 3), 30, tenant="a")
    served.step()
    served.scheduler.client_pins.release(SHARED, "x")
    served.scheduler.tenants.set_policies([TenantPolicy(SHARED, maximum=4), TenantPolicy("a")])
    assert served.memory.quotas.charged(SHARED) == 0, "it is not shared any more"
    served.drain()
    assert served.finished(reader) == {0: FinishReason.LENGTH}
    assert served.usage(reader).preemptions == 0


def test_a_tenant_that_is_gone_keeps_its_bounds_until_nothing_of_it_is_left() -> None:
    served = Served(blocks=40, block=16, tokens=64)
    bounds = TenantPolicy("a", maximum=6, guaranteed=4, weight=2.0)
    served.scheduler.tenants.set_policies([bounds, TenantPolicy("b")])
    for i in range(4):
        served.add(tuple(range(i * 100, i * 100 + 40)), 20, tenant="a")
    served.step()
    served.scheduler.tenants.set_policies([TenantPolicy("b", guaranteed=40 - 6)])
    quotas = served.memory.quotas
    assert (quotas.policy("a").maximum, quotas.policy("a").weight, quotas.policy("a").guaranteed) == (6, 2, 0)
    while served.scheduler.has_work:
        served.step()
        assert quotas.charged("a") <= 6
    assert sum(update.finish is FinishReason.LENGTH for update in served.updates) == 4
    served.scheduler.expire(1.0)
    assert quotas.policy("a") == TenantPolicy("a")


def test_a_pin_of_a_tenant_that_is_gone_keeps_its_bounds_and_one_that_comes_back_has_its_new_ones() -> None:
    served = Served(blocks=40, block=16, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", maximum=6)])
    order = PinRequest("p", tuple(range(32)), 60.0, tenant="a")
    served.scheduler.client_pins.open(order, served.next_id, 0.0)
    served.add(order.tokens, 1, tenant="a", fills_pin="p")
    served.drain()
    served.scheduler.tenants.set_policies([])
    served.scheduler.expire(1.0)
    assert served.memory.quotas.policy("a").maximum == 6
    served.scheduler.tenants.set_policies([TenantPolicy("a", maximum=9)])
    served.scheduler.expire(60.0)  # the pin's time has passed
    assert served.memory.quotas.policy("a").maximum == 9


def test_a_tenant_that_is_gone_gets_nothing_in_until_it_is_named_again() -> None:
    served = Served(blocks=40)
    bounds = TenantPolicy("a", maximum=4, max_running=1, request_maximum=4)
    served.scheduler.tenants.set_policies([bounds, TenantPolicy(SHARED, maximum=8)])
    served.add(4, 1, tenant="a")
    served.drain()
    for others in ([TenantPolicy("b")], [TenantPolicy("c")], []):
        served.scheduler.tenants.set_policies(others)
        with pytest.raises(UnknownTenant, match="a is not a tenant any more; allowed: a key of one"):
            served.add(60, 8, tenant="a")
        assert not served.scheduler.has_work
        served.scheduler.expire(1.0)
    served.add(4, 1, tenant=SHARED)
    served.add(4, 1, tenant="never named")
    served.drain()
    served.scheduler.tenants.set_policies([bounds])
    with pytest.raises(RequestTooLarge, match="allowed: 4"):
        served.add(60, 8, tenant="a")
    served.add(4, 1, tenant="a")
    served.drain()


def test_a_refused_reload_takes_no_one_off() -> None:
    served = Served(blocks=40)
    served.scheduler.tenants.set_policies([TenantPolicy("a")])
    with pytest.raises(TenantsRefused):
        served.scheduler.tenants.set_policies([TenantPolicy("b", guaranteed=41)])
    served.add(4, 1, tenant="a")
    served.drain()


def test_what_was_shared_once_keeps_no_one_from_what_it_is_guaranteed() -> None:
    served = Served(blocks=30, tokens=64, pins=28)
    for index in range(3):
        served.open_pin(f"p{index}", 28, SHARED)
    prompts = [request.prompt for request in served.scheduler.live.requests()]
    served.drain()
    others = [served.add((*prompt, 1, 2, 3, 4), 5, tenant="b") for prompt in prompts]
    served.step()
    for index in range(3):
        served.scheduler.client_pins.release(SHARED, f"p{index}")
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=18), TenantPolicy("b", guaranteed=6)])
    charged = served.memory.quotas.charged
    assert (charged("b"), charged(ONCE_SHARED)) == (3, 21), "b is charged for no more than it is guaranteed"
    wanted = served.add(60, 8, tenant="a")
    for _ in range(2):
        served.step()
    assert served.state(wanted) is State.RUNNING
    served.drain()
    assert all(served.finished(request) for request in [wanted, *others])
