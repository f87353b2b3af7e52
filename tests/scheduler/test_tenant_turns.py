"""Who is next among tenants: their turns, and their shares of the queue and of the pins."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served

from octavo.errors import PinRefused, QueueFull
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.retention import client_pins
from octavo.scheduler.fair_queue import OUTPUT_COST
from octavo.scheduler.sequence import State


def fill_queue(served: Served, tenant: str) -> int:
    """How many of the tenant's requests are queued until one is refused."""
    for count in range(10_000):
        try:
            served.add(4, tenant=tenant)
        except QueueFull:
            return count
    raise AssertionError("it is never refused")


def test_a_flood_of_one_tenant_leaves_each_other_its_share_of_the_queue() -> None:
    served = Served(tokens=64, waiting=60)
    served.scheduler.tenants.set_policies([TenantPolicy(name) for name in "abc"])
    assert fill_queue(served, "a") == 30, "half of it, of which the share of a tenant is a third"
    with pytest.raises(QueueFull, match=r"^30 of your requests .* allowed then: 10, your share .*max_queue"):
        served.add(4, tenant="a")
    assert fill_queue(served, "b") == 10
    assert fill_queue(served, "c") == 10
    served.drain()
    assert fill_queue(served, "c") == 30


def test_a_tenants_own_max_queue_is_stronger_than_its_share_and_takes_none_of_others() -> None:
    served = Served(tokens=64, waiting=60)
    served.scheduler.tenants.set_policies(
        [TenantPolicy("a", max_waiting=1000), TenantPolicy("b"), TenantPolicy("c", max_waiting=4)]
    )
    assert fill_queue(served, "a") == 60, "all that may wait"
    with pytest.raises(QueueFull, match="too many requests are waiting; allowed: 60"):
        served.add(4, tenant="a")
    assert fill_queue(served, "b") == 10
    assert fill_queue(served, "c") == 4
    served.drain()


def test_without_tenants_or_with_one_the_queue_is_not_shared_out() -> None:
    served = Served(tokens=64, waiting=60)
    assert fill_queue(served, "") == 60
    served.drain()
    served.scheduler.tenants.set_policies([TenantPolicy("a"), TenantPolicy(SHARED, maximum=9)])
    assert fill_queue(served, "a") == 60
    served.drain()


def fill_pins(served: Served, tenant: str, num_tokens: int = 4) -> int:
    """How many prompts of that length the tenant pins until one is refused."""
    for count in range(2000):
        try:
            served.open_pin(f"p{served.next_id}", num_tokens, tenant)
        except PinRefused:
            return count
        served.drain()
    raise AssertionError("it is never refused")


def test_the_pins_of_one_tenant_leave_each_other_and_what_is_shared_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_pins, "PINS_MAX", 48)
    served = Served(blocks=300, tokens=64, pins=200)
    served.scheduler.tenants.set_policies([TenantPolicy(name) for name in "abc"])
    assert fill_pins(served, "a") == 24, "half of them; the share of each, and of what is shared, is 6"
    with pytest.raises(PinRefused, match=r"^tenant a has 24 pins, .* allowed then: 6, its share of 48"):
        served.open_pin("one", 4, "a")
    assert [fill_pins(served, tenant) for tenant in ("b", "c", SHARED)] == [6, 6, 6]


def test_the_memory_of_pins_of_one_tenant_leaves_each_other_its_share_where_nothing_is_guaranteed() -> None:
    served = Served(blocks=100, tokens=64, pins=48)
    served.scheduler.tenants.set_policies([TenantPolicy(name) for name in "abc"])
    assert fill_pins(served, "a", 8) == 12, "24 blocks, half of what pins may keep"
    with pytest.raises(PinRefused, match=r"tenant a keep 24; allowed then: 6, its share of 48 .*pin_memory"):
        served.open_pin("one", 4, "a")
    assert [fill_pins(served, tenant, 8) for tenant in ("b", "c", SHARED)] == [3, 3, 3]
    served.scheduler.tenants.set_policies([])
    assert fill_pins(served, "", 4) == 48 - 24 - 3 * 6


def test_without_tenants_pins_are_not_shared_out() -> None:
    served = Served(blocks=100, tokens=64, pins=48)
    assert fill_pins(served, "") == 48


def test_two_backlogged_tenants_are_served_within_the_bound() -> None:
    """Theorem 4.4 of the paper, with weights: b sends long prompts, a short ones that answer at length."""
    served = Served(blocks=24, block=16, rows=8, tokens=64)
    served.scheduler.tenants.set_policies([TenantPolicy("a", weight=1.0), TenantPolicy("b", weight=2.0)])
    for i in range(160):
        served.add(tuple(range(i * 1000, i * 1000 + 10)), 40, tenant="a")
        for j in range(2):
            served.add(tuple(range(i * 1000 + 300 * j + 100, i * 1000 + 300 * j + 180)), 4, tenant="b")
    service = served.scheduler.live.service
    bound = 2 * max(80, OUTPUT_COST * 24 * 16)
    worst = 0.0
    while all(any(s.request.tenant == t for s in served.scheduler.live.waiting) for t in "ab"):
        served.step()
        worst = max(worst, abs(service.served["a"] - service.served["b"] / 2.0))
    assert service.served["a"] + service.served["b"] > 8 * bound, "too short to show anything"
    assert worst <= bound


def test_first_come_alone_would_break_that_bound() -> None:
    served = Served(blocks=24, block=16, rows=8, tokens=64)
    for i in range(400):
        served.add(tuple(range(i * 100, i * 100 + 30)), 30, tenant="flood")
    for _ in range(20):
        served.step()
    late = served.add(tuple(range(90_000, 90_030)), 4, tenant="late")
    steps = 0
    while served.state(late) is not State.RUNNING:
        served.step()
        steps += 1
    assert steps < 60, "it waits for a row, not for 400 others"
    ahead = sum(s.request.tenant == "flood" for s in served.scheduler.live.waiting)
    assert ahead > 300


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    served = Served(blocks=24, block=16, rows=4, tokens=64)
    served.add(tuple(range(16)), 2, tenant="a")
    served.drain()
    for i in range(50):
        served.add(tuple(range(i * 100, i * 100 + 30)), 30, tenant="b")
    for _ in range(200):
        served.step()
    service = served.scheduler.live.service
    served.add(tuple(range(70_000, 70_016)), 2, tenant="a")
    assert service.of("a") >= service.of("b") - 1e-9


def test_what_the_cache_gives_does_not_count_as_service() -> None:
    served = Served(blocks=24, block=16, tokens=64)
    served.add(tuple(range(64)), 2, tenant="a")
    served.drain()
    before = served.scheduler.live.service.served["a"]
    served.add(tuple(range(64)), 2, tenant="a")
    served.drain()
    assert served.scheduler.live.service.served["a"] - before <= 16 + 2 * OUTPUT_COST


def test_the_prompt_of_a_tenant_that_was_served_less_is_computed_before_those_of_one_that_floods() -> None:
    served = Served(blocks=64, block=16, tokens=32)
    served.scheduler.tenants.set_policies([TenantPolicy("quiet", guaranteed=8), TenantPolicy("flood")])
    for i in range(6):
        served.add(tuple(range(i * 100, i * 100 + 70)), 4, tenant="flood")
    for _ in range(3):
        served.step()  # some of the flood's prompts have few positions left
    wanted = served.add(tuple(range(5000, 5060)), 4, tenant="quiet")
    served.step()  # both were served alike when it came
    served.step()
    (sequence,) = served.scheduler.live.sequences_of(wanted)
    decoding = sum(len(s.tokens) > s.num_prompt for s in served.scheduler.live.running)
    assert sequence.num_computed >= 31 - decoding, "the whole step but one position, and not a half of it"


def test_a_tenant_that_comes_alongside_prompts_that_were_admitted_gets_the_next_step() -> None:
    served = Served(blocks=400, block=16, tokens=32)
    flood = [served.add(800, tenant="flood") for _ in range(4)]
    for _ in range(3):
        served.step()
    assert served.scheduler.live.service.admitted["flood"] > 1000, "two are admitted, as a whole"
    for length in (4, 60, 4):
        late = served.add(length, tenant="late")
        steps = 0
        while served.state(late) is not State.FINISHED:
            served.step()
            steps += 1
        assert steps <= 1 + -(-length // 16), "at most one step is another's, then half of each is its own"
    assert not any(served.finished(request) for request in flood)
    served.drain()


def test_a_tenant_is_not_admitted_again_before_others_because_its_prompts_are_yet_to_be_computed() -> None:
    served = Served(block=16, rows=4, tokens=64)
    first = [served.add(4, 9, tenant="a") for _ in range(4)]
    second = [served.add(4, 9, tenant="b") for _ in range(4)]
    served.step()
    running = [request for request in first + second if served.state(request) is State.RUNNING]
    assert running == [*first[:2], *second[:2]]
    served.drain()


def test_a_prompt_that_is_cancelled_or_preempted_counts_for_what_was_computed_of_it() -> None:
    served = Served(blocks=60, block=16, tokens=32)
    service = served.scheduler.live.service
    gone = served.add(800, tenant="a")
    served.add(4, 9, tenant="b")
    for _ in range(3):
        served.step()
    assert service.turn_of("a") - service.of("a") == 800 - service.served["a"] > 600
    served.scheduler.cancel(gone)
    assert service.turn_of("a") == service.of("a") == service.served["a"] < 100
    served.drain()


def test_what_the_best_ranked_prompt_gets_alongside_the_turns_is_taken_from_the_last_of_them() -> None:
    served = Served(tokens=2)
    first, second, third = (served.add(20, tenant=tenant) for tenant in "aab")

    def step() -> set[int]:
        """The requests that had a chunk in it."""
        planned = {chunk.seq_id for chunk in served.step().chunks}
        return {s.request.request_id for s in served.scheduler.live.running if s.seq_id in planned}

    assert step() == {first, second}
    newest = served.add(20, tenant="c")
    assert step() == {first, third}, "b was served as little as c, and came before"
    assert step() == {first, newest}
    served.drain()
