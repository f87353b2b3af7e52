"""What is kept of idle sessions gives way to what was asked for, and to nothing else."""

from __future__ import annotations

import pytest
from tests.scheduler.chats import PROMPT, Chats, resume
from tests.scheduler.served import State
from tests.scheduler.test_transfers import finish, turn

from octavo.errors import PinRefused, QueueFull, RequestTooLarge, TenantsRefused
from octavo.memory.quota import TenantPolicy
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Pins
from octavo.retention.session_table import SessionState
from octavo.step.events import EventKind

OTHER = tuple(range(300, 322))


def pin(chats: Chats, name: str, tokens: tuple[int, ...], tenant: str = "") -> None:
    chats.scheduler.client_pins.open(PinRequest(name, tokens, 60.0, tenant=tenant), chats.next_id, 0.0)
    chats.add(tokens, 1, fills_pin=name, tenant=tenant)
    chats.drain()


def gave_way(chats: Chats) -> int:
    return chats.scheduler.events.counts[EventKind.SESSION_RELEASED]


def test_a_request_that_only_the_pool_without_sessions_has_room_for_is_served() -> None:
    chats = Chats(blocks=10, pins=6)
    chats.whole_turn("a", PROMPT)
    request = chats.add(30, 11)  # 40 positions: the whole pool
    assert chats.blocks().held == 5, "it has not been its turn yet"
    chats.drain()
    assert chats.finished(request)
    assert (chats.blocks().held, chats.blocks().state) == (0, SessionState.IDLE)
    assert "were needed for a request or pin that did not fit" in chats.blocks().note
    texts = [event.text for event in chats.scheduler.events.recent(5)]
    assert any(text.startswith("session a released 5 blocks") for text in texts)
    chats.whole_turn("a", (*PROMPT, 7, 8))  # computed again
    assert chats.updates[-1].usage.num_cached == 0
    assert (chats.blocks().held, chats.blocks().note) == (6, "")


def test_what_fits_alongside_idle_sessions_takes_nothing_of_them_however_much_of_it_there_is() -> None:
    chats = Chats(blocks=12, pins=6)
    chats.whole_turn("a", PROMPT)
    requests = [chats.add(12, 14) for _ in range(6)]  # 7 blocks each: they preempt each other
    chats.drain()
    assert all(chats.finished(request) for request in requests)
    assert chats.scheduler.live.num_preemptions > 0
    assert (chats.blocks().held, gave_way(chats)) == (5, 0)


def test_the_longest_idle_goes_first_and_no_more_than_must() -> None:
    chats = Chats(blocks=20, pins=15)
    for now, session in enumerate("abc"):
        chats.scheduler.context.now = float(now)
        chats.whole_turn(session, tuple(range(1000 * now + 1, 1000 * now + 23)))
        chats.scheduler.session_table.find("", session).expires += now  # this scheduler's steps are all at 0
    chats.add(30, 4)  # 9 blocks, and 5 are left
    chats.drain()
    assert [chats.blocks(session).held for session in "abc"] == [0, 5, 5]
    assert gave_way(chats) == 1


def test_who_is_not_the_next_to_enter_takes_nothing() -> None:
    chats = Chats(blocks=12, pins=6, rows=2)
    chats.whole_turn("a", PROMPT)
    chats.add(4, 16)
    chats.step()
    head = chats.add(26, 2)  # 7 blocks: it waits for a block, and closes no door
    large = chats.add(30, 11)
    chats.step()
    assert (chats.state(head), chats.state(large)) == (State.WAITING, State.WAITING)
    assert chats.blocks().held == 5
    chats.drain()
    assert chats.finished(large)
    assert chats.blocks().held == 0


def test_pins_that_someone_asked_for_stay() -> None:
    chats = Chats(blocks=12, pins=10)
    pin(chats, "rules", OTHER[:16])
    chats.whole_turn("a", PROMPT)
    with pytest.raises(RequestTooLarge, match="allowed: 8, what pins leave"):
        chats.add(30, 11)
    request = chats.add(30, 3)
    chats.drain()
    assert chats.finished(request)
    assert [p.name for p in chats.scheduler.pins.all() if p.num_held] == ["rules"]


def test_a_resumed_session_is_held_because_someone_asked_for_it() -> None:
    chats = Chats(blocks=10, pins=6)
    chats.whole_turn("a", PROMPT)
    resume(chats, PROMPT[:20])
    chats.drain()
    with pytest.raises(RequestTooLarge, match="allowed: 5, what pins leave"):
        chats.add(30, 11)
    assert chats.blocks().held == 5


def test_a_new_pin_takes_the_budget_that_idle_sessions_fill() -> None:
    chats = Chats(blocks=20, pins=6)
    chats.whole_turn("a", PROMPT)
    pin(chats, "rules", OTHER[:16])
    assert (chats.scheduler.pins.num_blocks, chats.blocks().held) == (4, 0)
    with pytest.raises(PinRefused, match="3 are missing: pins keep 4 of 6"):
        pin(chats, "more", tuple(range(900, 920)))


def test_a_session_whose_blocks_are_on_their_way_down_goes_last_and_is_not_called_suspended() -> None:
    chats = Chats(blocks=16, pins=10, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.session_holds.suspend("", "a")
    assert chats.blocks().state is SessionState.SUSPENDING
    chats.add(30, 19)  # 12 blocks
    chats.moving += turn(chats)
    assert (chats.blocks().state, chats.blocks().held) == (SessionState.IDLE, 0)
    moving, chats.moving = chats.moving, []
    finish(chats, moving)
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    chats.scheduler.check()
    assert gave_way(chats) == 1


def test_a_session_s_own_blocks_go_only_when_its_turn_cannot_use_them() -> None:
    chats = Chats(blocks=10, pins=8)
    chats.whole_turn("a", PROMPT[:14])
    chats.whole_turn("b", OTHER[:18])
    longer = (*PROMPT[:14], 7, *range(900, 923))  # 38 tokens, 39 positions: the whole pool
    chats.whole_turn("a", longer)
    assert chats.updates[-1].usage.num_cached == 12
    assert (gave_way(chats), chats.blocks("b").held) == (1, 0)
    chats.whole_turn("a", (1, *longer[1:]))  # it shares nothing with what was said
    assert chats.finished(chats.next_id - 1)
    assert gave_way(chats) == 2


def test_bounds_that_idle_sessions_exceed_take_their_blocks_and_are_not_refused() -> None:
    chats = Chats(blocks=20, pins=18)
    chats.say("a", PROMPT, tenant="t")
    chats.say("b", OTHER, tenant="u")
    chats.drain()
    chats.scheduler.tenants.set_policies([TenantPolicy("t", maximum=4)])
    chats.scheduler.check()
    assert (chats.blocks("a").held, chats.blocks("b").held) == (0, 5)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", guaranteed=18)])
    chats.scheduler.check()
    assert chats.blocks("b").held == 0, "it would keep a tenant from what it is guaranteed"
    chats.scheduler.tenants.set_policies([])
    pin(chats, "rules", OTHER[:16], tenant="u")
    with pytest.raises(TenantsRefused):
        chats.scheduler.tenants.set_policies([TenantPolicy("u", maximum=3)])


def test_a_hold_beyond_a_smaller_maximum_is_charged_no_more_while_copies_of_it_are_on_their_way_down() -> (
    None
):
    chats = Chats(blocks=20, pins=18, slots=40)
    chats.say("a", PROMPT, tenant="t")
    while chats.scheduler.has_work:
        turn(chats)
    assert len(turn(chats)) == 5, "the stores have begun"
    chats.scheduler.tenants.set_policies([TenantPolicy("t", maximum=1)])
    chats.scheduler.check()
    assert (chats.memory.quotas.charged("t"), chats.memory.counts().held) == (0, 5)


def test_another_tenant_s_hold_within_its_guarantee_is_left_alone() -> None:
    chats = Chats(blocks=20, pins=18)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", guaranteed=8), TenantPolicy("u", guaranteed=6)])
    chats.say("a", PROMPT, tenant="t")
    chats.say("b", OTHER, tenant="u")
    chats.drain()
    with pytest.raises(RequestTooLarge, match="allowed: 12"):
        chats.add(45, 6, tenant="u")
    request = chats.add(42, 6, tenant="u")  # 12 blocks
    chats.drain()
    assert chats.finished(request)
    assert (chats.blocks("a").held, chats.blocks("b").held) == (5, 0)


def told(first: int) -> tuple[int, ...]:
    """A prompt of 5 blocks and two tokens."""
    return tuple(range(1000 * first, 1000 * first + 22))


def say_all(chats: Chats, tenant: str, *sessions: str) -> None:
    for session in sessions:
        chats.say(session, told(1 + ord(session[-1])), tenant=tenant)
        chats.drain()


def test_a_request_that_only_its_own_tenant_s_maximum_keeps_out_takes_nothing_of_others() -> None:
    chats = Chats(blocks=60, pins=50)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", maximum=8)])
    say_all(chats, "t", "a")
    say_all(chats, "u", "b", "c")
    request = chats.say("a", told(1), 2, tenant="t")  # 6 blocks: it shares nothing with what was said
    chats.drain()
    assert chats.finished(request)
    assert [chats.blocks(session).held for session in "abc"] == [5, 5, 5]
    assert gave_way(chats) == 1, "its own went, and those of its last turn are kept"


def test_a_request_short_of_its_maximum_and_of_the_pool_takes_of_others_only_what_the_pool_lacks() -> None:
    chats = Chats(blocks=26, pins=20)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", maximum=17)])
    say_all(chats, "t", "a")
    say_all(chats, "u", "b", "c")
    request = chats.add(60, 5, tenant="t")  # 16 blocks: 12 are left of its maximum, 11 of the pool
    chats.drain()
    assert chats.finished(request)
    assert [chats.blocks(session).held for session in "abc"] == [0, 5, 5]


def test_a_pin_takes_nothing_that_another_tenant_is_guaranteed_for_what_its_own_tenant_lacks() -> None:
    chats = Chats(blocks=100, pins=90, slots=200)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", guaranteed=8), TenantPolicy("u", guaranteed=40)])
    for tenant, session in (("t", "a"), ("u", "b"), ("u", "c")):
        chats.say(session, told(1 + ord(session)), tenant=tenant)
        while chats.scheduler.session_table.find(tenant, session).turn is not None:
            chats.moving += turn(chats)
    chats.scheduler.session_holds.suspend("t", "a")  # it goes last of its tenant's
    chats.scheduler.client_pins.open(PinRequest("rules", OTHER[:20], 60.0, tenant="t"), chats.next_id, 0.0)
    chats.add(OTHER[:20], 1, fills_pin="rules", tenant="t")
    assert [chats.blocks(session).held for session in "abc"] == [0, 5, 5]


def test_a_pin_whose_request_is_not_taken_takes_nothing() -> None:
    chats = Chats(blocks=40, pins=14)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", max_waiting=0)])
    say_all(chats, "u", "a", "b")
    with pytest.raises(QueueFull):
        pin(chats, "rules", OTHER[:20], tenant="t")
    assert (chats.blocks().held, gave_way(chats)) == (5, 0)


def test_what_gives_way_at_once_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = Chats(blocks=90, pins=80)
    say_all(chats, "", *"abcdefghijkl")
    looks = []
    look = Pins.all
    monkeypatch.setattr(Pins, "all", lambda pins: looks.append(1) or look(pins))
    request = chats.add(4 * 88, 1)
    chats.scheduler.schedule(0.0)
    assert (chats.state(request), gave_way(chats)) == (State.RUNNING, 12)
    by_a_request, looks[:] = len(looks), []
    assert by_a_request <= 3
    chats = Chats(blocks=90, pins=60)
    say_all(chats, "", *"abcdefghijkl")
    looks.clear()
    chats.scheduler.client_pins.open(PinRequest("rules", tuple(range(240)), 60.0), chats.next_id, 0.0)
    chats.add(tuple(range(240)), 1, fills_pin="rules")
    assert (gave_way(chats), len(looks) <= 3) == (12, True)


def test_a_request_that_other_bounds_keep_out_takes_nothing_however_long_it_waits() -> None:
    chats = Chats(blocks=30, pins=25, tokens=64)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", max_running=1)])
    say_all(chats, "u", "a")
    chats.add(4, 40, tenant="t")
    chats.step()
    large = chats.add(84, 20, tenant="t")  # 26 blocks
    for _ in range(10):
        chats.step()
        assert (chats.state(large), chats.blocks().held) == (State.WAITING, 5)
    chats.drain()
    assert (chats.state(large), chats.blocks().held, gave_way(chats)) == (State.FINISHED, 0, 1)


def test_a_request_without_a_row_or_without_blocks_for_its_prompt_takes_nothing() -> None:
    for rows, prompt in ((1, 8), (8, 60)):
        chats = Chats(blocks=20, pins=6, rows=rows)
        chats.whole_turn("a", PROMPT)
        first = chats.add(20, 16)
        chats.step()
        large = chats.add(prompt, 80 - prompt)  # all of the pool
        while chats.state(first) is State.RUNNING:
            chats.step()
            if chats.state(first) is State.RUNNING:
                assert (chats.state(large), chats.blocks().held) == (State.WAITING, 5)
        chats.drain()
        assert (chats.finished(large) != {}, chats.blocks().held) == (True, 0)


def test_what_a_guarantee_covers_takes_holds_only_when_it_enters() -> None:
    chats = Chats(blocks=40, pins=20)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", guaranteed=12, maximum=12, max_running=1)])
    say_all(chats, "t", "a")
    first = chats.add(4, 12, tenant="t")
    chats.step()
    second = chats.add(4, 33, tenant="t")  # 9 blocks beside 5, of which its first is covered
    while chats.state(first) is State.RUNNING:
        assert (chats.state(second), chats.blocks().held) == (State.WAITING, 5)
        chats.step()
    chats.drain()
    assert (chats.finished(second) != {}, chats.blocks().held, gave_way(chats)) == (True, 0, 1)


def test_what_enters_because_a_fetch_of_its_tenant_gave_way_is_not_alongside_holds_that_crowd_it_out() -> (
    None
):
    chats = Chats(blocks=30, pins=10, slots=60, tokens=64)
    chats.scheduler.tenants.set_policies([TenantPolicy("t", maximum=12)])
    below = tuple(range(3000, 3033))
    chats.add(below, 1, tenant="t")
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    chats.settle()
    chats.evict_all()
    chats.say("a", PROMPT[:10], tenant="t")
    while chats.scheduler.has_work:
        chats.moving += turn(chats)  # what is kept of it does not come down for now
    chats.add(60, 12, tenant="u", priority=5)
    chats.moving += turn(chats)
    waiting = chats.add(below, 2, tenant="t")
    loads = turn(chats)
    assert (len(loads), chats.blocks().held, chats.memory.quotas.charged("t")) == (8, 2, 10)
    finish(chats, loads)
    late = chats.add(34, 8, tenant="t", priority=5)  # 9 blocks and then 11, and the fetch has 8 of them
    chats.moving += turn(chats)
    assert (chats.state(late), chats.blocks().held, gave_way(chats)) == (State.RUNNING, 0, 1)
    for _ in range(60):
        chats.moving += turn(chats)
        chats.settle()
    assert chats.finished(late)
    assert chats.finished(waiting)
