"""Where requests go: by what is cached, by load, by a ring that all routers share; and against every cost."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.memory.changes import Place
from octavo.routing import router as routing
from octavo.routing.reports import VERSION, Changes, Hello, Load, Shared, StepModel
from octavo.routing.router import Choice, NoReplica, RoutedPrompt, Router

MODEL = StepModel(0.001, 0.0)
IDLE = Load(0, 0, 0, (), 0, 1000, 1000, step_model=MODEL)
B = 16


def hello(slot: int, fingerprint: str = "f", **changes: int) -> Hello:
    own = Hello(VERSION, slot, f"replica-{slot}", "tiny", fingerprint, (b"m",), B, 8192, 64, 16, 512)
    return msgspec.structs.replace(own, **changes)


def router_of(count: int, load: Load = IDLE) -> Router:
    router = Router()
    for slot in range(count):
        router.on_hello(f"r{slot}", hello(slot))
        router.on_load(f"r{slot}", load, 0.0)
    return router


def hold(router: Router, replica_id: str, names: range, place: Place = Place.POOL) -> None:
    data = b"".join((name << 4).to_bytes(8, "little") for name in names)
    router.on_changes(replica_id, Changes(place, data))


def prompt_of(names: range, tenant: str = "") -> RoutedPrompt:
    return RoutedPrompt(B * len(names) + 1, {"f": names}, tenant=tenant)


def chosen(router: Router, prompt: RoutedPrompt, now: float = 0.0, *excluded: str) -> Choice:
    choice = router.choose(prompt, now, frozenset(excluded))
    assert isinstance(choice, Choice)
    return choice


def busy(seconds: float, bits: int = 10, **changes: object) -> Load:
    prefill_s = (*([0.0] * bits), seconds)
    return msgspec.structs.replace(IDLE, prefill_s=prefill_s, **changes)


def test_a_prompt_goes_where_its_blocks_are() -> None:
    router = router_of(4)
    hold(router, "r2", range(100, 110))
    choice = chosen(router, prompt_of(range(100, 112)))
    assert choice.replica_id == "r2"
    assert choice.hit_tokens == {Place.POOL: 160}
    assert choice.saved_ms == pytest.approx(160)
    assert choice.prefill_ms == pytest.approx(33)
    assert set(choice.ranked) == {"r0", "r1", "r3"}
    assert choice.reason == (
        "160 of 193 prompt tokens are cached (160 in pool; saves 160 ms); predicted wait 0 ms, prefill 33 ms"
    )


def test_a_wait_longer_than_what_is_saved_sends_it_elsewhere() -> None:
    router = router_of(2)
    hold(router, "r0", range(10))
    for wait_s, replica_id in ((0.1, "r0"), (0.3, "r1")):
        router.on_load("r0", busy(wait_s, bits=4), 0.0)
        assert chosen(router, prompt_of(range(12))).replica_id == replica_id
    assert router.counts.moved == 1


def test_longer_prompts_in_the_queue_count_as_much_as_this_one() -> None:
    router = router_of(1, busy(5.0, bits=12))
    assert chosen(router, prompt_of(range(4))).wait_ms == pytest.approx(65)
    assert chosen(router, prompt_of(range(256))).wait_ms == pytest.approx(5000)


def test_short_prompts_leave_a_replica_with_a_long_one_alone() -> None:
    router = router_of(2)
    router.on_load("r0", busy(5.0, bits=12, prompts=(*([0] * 12), 1)), 0.0)
    router.on_load("r1", busy(0.07, bits=3, prompts=(0, 0, 0, 1)), 0.0)
    choice = chosen(router, prompt_of(range(4)))
    assert (choice.replica_id, choice.delay_ms) == ("r1", 0.0)
    assert chosen(router, prompt_of(range(4)), 0.0, "r1").delay_ms == pytest.approx(65)


def test_of_replicas_that_cost_alike_one_with_the_blocks_is_taken() -> None:
    fast = msgspec.structs.replace(IDLE, step_model=StepModel(1e-6, 0.0))
    for first in range(0, 4000, 100):
        router = router_of(4, fast)
        hold(router, "r3", range(first, first + 10))
        assert chosen(router, prompt_of(range(first, first + 12))).replica_id == "r3"


def test_answers_spread_where_many_sequences_decode_though_one_has_the_blocks() -> None:
    router = router_of(2)
    hold(router, "r0", range(10))
    for decode_s, replica_id in ((0.011, "r0"), (0.014, "r1")):
        slow = msgspec.structs.replace(MODEL, decode_s=decode_s)
        router.on_load("r0", msgspec.structs.replace(IDLE, num_running=9, step_model=slow), 0.0)
        quick = msgspec.structs.replace(MODEL, decode_s=0.01)
        router.on_load("r1", msgspec.structs.replace(IDLE, step_model=quick), 0.0)
        choice = chosen(router, prompt_of(range(12)))
        assert choice.replica_id == replica_id
        assert choice.decode_ms == pytest.approx(64 * (11 if replica_id == "r0" else 10))


def test_a_burst_of_one_prefix_spreads_before_any_report() -> None:
    model = StepModel(0.0001, 0.0, decode_s=0.01, row_s=0.001)
    router = router_of(4, msgspec.structs.replace(IDLE, step_model=model))
    places = Counter[str]()
    for number in range(60):
        choice = chosen(router, RoutedPrompt(161, {"f": range(10)}), 0.0001 * number)
        router.on_sent(choice.replica_id, choice, str(number), 0.0001 * number)
        places[choice.replica_id] += 1
    assert len(places) == 4
    assert max(places.values()) < 25


def test_a_queue_shrinks_while_time_passes() -> None:
    router = router_of(1, busy(0.5, bits=3))
    assert chosen(router, prompt_of(range(4)), 0.2).wait_ms == pytest.approx(300)
    assert chosen(router, prompt_of(range(4)), 2.0).wait_ms == 0.0


def test_blocks_of_slower_places_count_less_what_loading_takes() -> None:
    router = router_of(2, msgspec.structs.replace(IDLE, step_model=StepModel(0.001, 0.0, load_s=0.004)))
    hold(router, "r0", range(10), Place.DISK)
    choice = chosen(router, prompt_of(range(12)))
    assert (choice.replica_id, choice.hit_tokens) == ("r0", {Place.DISK: 160})
    assert choice.saved_ms == pytest.approx(160 - 40)
    hold(router, "r1", range(10))
    assert chosen(router, prompt_of(range(12))).replica_id == "r1"


def test_the_last_tokens_block_is_never_counted() -> None:
    router = router_of(1)
    hold(router, "r0", range(4))
    choice = chosen(router, RoutedPrompt(64, {"f": range(4)}))
    assert choice.num_hits == 48


def test_a_chats_next_request_follows_before_its_blocks_are_reported() -> None:
    router = router_of(8)
    first = chosen(router, prompt_of(range(20)))
    router.on_sent(first.replica_id, first, "a", 0.0)
    later = chosen(router, prompt_of(range(22)), 0.05)
    assert (later.replica_id, later.num_hits) == (first.replica_id, 320)
    assert chosen(router, prompt_of(range(22)), 60.0).num_hits == 0


def test_what_was_sent_waits_until_a_load_has_it_or_its_first_token_came() -> None:
    router = router_of(1)
    choice = chosen(router, prompt_of(range(60)))
    router.on_sent("r0", choice, "a", 0.0)
    router.on_sent("r0", choice, "b", 0.0)
    other = prompt_of(range(900, 960))
    assert chosen(router, other).wait_ms == pytest.approx(2 * 961)
    router.on_load("r0", IDLE, 0.01)  # too early to have them
    assert chosen(router, other, 0.01).wait_ms == pytest.approx(2 * 961)
    router.on_first_token("a")
    assert chosen(router, other, 0.01).wait_ms == pytest.approx(961)
    router.on_load("r0", IDLE, 1.0)
    assert chosen(router, other, 1.0).wait_ms == 0.0
    assert router.states(1.0)[0].num_sent == 2
    for key in ("a", "b", "b"):
        router.on_ended(key)
    assert router.states(1.0)[0].num_sent == 0
    assert router.counts.prompt_tokens == 2 * 961


def test_a_replica_that_falls_silent_is_avoided_while_others_report() -> None:
    router = router_of(2)
    hold(router, "r0", range(10))
    assert chosen(router, prompt_of(range(10)), 2.0).replica_id == "r0"
    router.on_load("r1", IDLE, 4.0)
    assert chosen(router, prompt_of(range(10)), 4.0).replica_id == "r1"
    assert chosen(router, prompt_of(range(10)), 4.0, "r1").replica_id == "r0"
    router.on_load("r0", IDLE, 5.0)
    assert chosen(router, prompt_of(range(10)), 5.0).replica_id == "r0"


def test_where_rows_are_short_each_that_waits_costs_a_gap_between_ends() -> None:
    model = StepModel(0.001, 0.0, end_gap_s=0.5)
    load = msgspec.structs.replace(IDLE, num_running=16, num_waiting=3, step_model=model)
    assert chosen(router_of(1, load), prompt_of(range(4))).wait_ms == pytest.approx(2000)


def test_two_routers_send_a_new_prefix_to_one_place_and_spread_many() -> None:
    routers = [router_of(8), router_of(8)]
    for slot in range(8):  # they heard of the replicas at other times
        routers[1].on_load(f"r{slot}", IDLE, 0.01 * (8 - slot))
    places = Counter[str]()
    for number in range(400):
        prompt = prompt_of(range(1000 * number, 1000 * number + 12))
        one, other = (chosen(router, prompt, 1.0).replica_id for router in routers)
        assert one == other
        places[one] += 1
    assert len(places) == 8
    assert max(places.values()) < 3 * min(places.values())


def test_a_place_on_the_ring_survives_a_restart_in_its_slot() -> None:
    router = router_of(8)
    prompt = prompt_of(range(12))
    before = chosen(router, prompt).replica_id
    slot = int(before[1:])
    router.on_gone(before)
    router.on_hello("again", hello(slot))
    assert chosen(router, prompt).replica_id == "again"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"is_full": True}, NoReplica.FULL), ({"is_draining": True}, NoReplica.NONE)],
)
def test_what_takes_no_request_gets_none(changes: dict[str, bool], expected: NoReplica) -> None:
    router = router_of(2)
    hold(router, "r0", range(10))
    router.on_load("r0", msgspec.structs.replace(IDLE, **changes), 0.0)
    assert chosen(router, prompt_of(range(10))).replica_id == "r1"
    router.on_load("r1", msgspec.structs.replace(IDLE, **changes), 0.0)
    assert router.choose(prompt_of(range(10)), 0.0) is expected


def test_a_tenant_whose_queue_is_full_goes_elsewhere_alone() -> None:
    router = router_of(2)
    hold(router, "r0", range(10))
    router.on_load("r0", msgspec.structs.replace(IDLE, tenants_full=("ann",)), 0.0)
    assert chosen(router, prompt_of(range(10), "bob")).replica_id == "r0"
    assert chosen(router, prompt_of(range(10), "ann")).replica_id == "r1"


def test_without_replicas_there_is_none_and_excluded_ones_are_not_chosen() -> None:
    assert Router().choose(prompt_of(range(3)), 0.0) is NoReplica.NONE
    router = router_of(2)
    assert chosen(router, prompt_of(range(3)), 0.0, "r0").replica_id == "r1"
    assert router.choose(prompt_of(range(3)), 0.0, frozenset({"r0", "r1"})) is NoReplica.NONE
    router.on_load("r0", msgspec.structs.replace(IDLE, is_full=True), 0.0)
    assert router.choose(prompt_of(range(3)), 0.0, frozenset({"r1"})) is NoReplica.FULL
    assert (router.counts.full, router.counts.none) == (0, 0)  # who asks may look again
    router.on_refused(NoReplica.FULL)
    assert (router.counts.full, router.counts.none) == (1, 0)


def test_each_fingerprint_has_its_own_names() -> None:
    router = Router()
    router.on_hello("a", hello(0, "f"))
    router.on_hello("b", hello(1, "g", block_size=32))
    assert {of: naming.block_size for of, naming in router.fingerprints().items()} == {"f": 16, "g": 32}
    hold(router, "b", range(500, 505))
    choice = chosen(router, RoutedPrompt(193, {"f": range(12), "g": range(500, 506)}))
    assert (choice.replica_id, choice.num_hits) == ("b", 160)
    router.on_hello("c", hello(2, "g", block_size=32))
    router.on_gone("b")
    assert set(router.fingerprints()) == {"f", "g"}
    router.on_gone("c")
    assert set(router.fingerprints()) == {"f"}


def test_names_are_shared_where_any_replica_of_the_fingerprint_shares_them() -> None:
    router = router_of(2)
    router.on_hello("other", hello(2, "g"))
    for replica_id, names in (("r0", (1, 2)), ("r1", (2, 3)), ("gone", (4,))):
        router.on_shared(replica_id, Shared(b"".join((name << 4).to_bytes(8, "little") for name in names)))
    assert router.fingerprints()["f"].shared == {1, 2, 3}
    assert router.fingerprints()["g"].shared == set()
    router.on_shared("r1", Shared(b""))
    assert router.fingerprints()["f"].shared == {1, 2}
    router.on_gone("r0")
    assert router.fingerprints()["f"].shared == set()


def test_a_replica_that_begins_again_is_known_to_hold_nothing() -> None:
    router = router_of(2)
    hold(router, "r1", range(10))
    router.on_changes("r1", Changes(Place.POOL, cleared=True))
    assert chosen(router, prompt_of(range(10))).num_hits == 0
    hold(router, "r1", range(10))
    router.on_hello("r1", hello(1))
    assert chosen(router, prompt_of(range(10))).num_hits == 0
    assert router.index.num_blocks == 0


def test_reports_of_replicas_that_are_gone_change_nothing() -> None:
    router = router_of(1)
    choice = chosen(router, prompt_of(range(4)))
    router.on_sent("r0", choice, "a", 0.0)
    router.on_gone("r0")
    hold(router, "r0", range(10))
    router.on_load("r0", IDLE, 0.0)
    router.on_sent("r0", choice, "b", 0.0)
    router.on_first_token("a")
    router.on_ended("a")
    router.on_hello("other", hello(1))
    assert chosen(router, prompt_of(range(4))).num_hits == 0


def cost_ms(choice: Choice) -> float:
    return choice.wait_ms + choice.prefill_ms + choice.delay_ms + choice.decode_ms


HOLDINGS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 12), st.sampled_from(list(Place))),
    max_size=12,
)
LOADS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 12), st.booleans(), st.floats(1, 3)), min_size=6, max_size=6
)


@settings(max_examples=200, deadline=None)
@given(HOLDINGS, LOADS, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 14)), min_size=1, max_size=8))
def test_no_replica_costs_much_less_than_the_chosen_one(
    holdings: list, loads: list, requests: list[tuple[int, int]]
) -> None:
    router = router_of(6)
    for slot, chat, count, place in holdings:
        hold(router, f"r{slot}", range(100 * chat, 100 * chat + count), place)
    for slot, (seconds, bits, is_full, stretch) in enumerate(loads):
        model = StepModel(0.001, 1e-6, stretch, load_s=0.002, decode_s=stretch / 1000)
        router.on_load(f"r{slot}", busy(seconds, bits, is_full=is_full, step_model=model), 0.0)
    for number, (chat, count) in enumerate(requests):
        now, prompt = 0.01 * number, prompt_of(range(100 * chat, 100 * chat + count))
        single = [
            choice
            for slot in range(6)
            if isinstance(
                choice := router.choose(prompt, now, frozenset({f"r{i}" for i in range(6)} - {f"r{slot}"})),
                Choice,
            )
        ]
        choice = router.choose(prompt, now)
        if not single:
            assert choice is NoReplica.FULL
            continue
        assert isinstance(choice, Choice)
        least = min(map(cost_ms, single))
        margin = max(1000 * routing.MARGIN_S, routing.MARGIN * least)
        assert cost_ms(choice) <= least + margin + 1e-6
        router.on_sent(choice.replica_id, choice, str(number), now)


def test_expectations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "EXPECTED_MAX", 100)
    router = router_of(2)
    for number in range(50):
        choice = chosen(router, prompt_of(range(1000 * number, 1000 * number + 30)))
        router.on_sent(choice.replica_id, choice, str(number), 0.0)
    router._expire(0.0)
    assert len(router._expected) <= 100
    router._expire(1e9)
    assert not router._expected
    assert not router._expiry
