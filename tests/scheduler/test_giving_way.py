"""What is kept of idle sessions gives way to what was asked for, and to nothing else."""

from __future__ import annotations

import pytest
from tests.scheduler.served import State
from tests.scheduler.test_session_holds import PROMPT, Chats, resume
from tests.scheduler.test_transfers import finish, turn

from octavo.errors import PinRefused, RequestTooLarge, TenantsRefused
from octavo.memory.quota import TenantPolicy
from octavo.scheduler.check import check_scheduler
from octavo.scheduler.events import EventKind
from octavo.scheduler.pinning import PinOrder
from octavo.scheduler.sessions import SessionState

OTHER = tuple(range(300, 322))


def pin(chats: Chats, name: str, tokens: tuple[int, ...], tenant: str = "") -> None:
    chats.scheduler.pinning.open(PinOrder(name, tokens, 60.0, tenant=tenant), chats.next_id, 0.0)
    chats.add(tokens, 1, fills_pin=name, tenant=tenant)
    chats.drain()


def gave_way(chats: Chats) -> int:
    return chats.scheduler.events.counts[EventKind.SESSION_GAVE_WAY]


def test_a_request_that_only_the_pool_without_sessions_has_room_for_is_served() -> None:
    chats = Chats(blocks=10, pins=6)
    chats.whole_turn("a", PROMPT)
    request = chats.add(30, 11)  # 40 positions: the whole pool
    assert chats.blocks().held == 5, "it has not been its turn yet"
    chats.drain()
    assert chats.finished(request)
    assert (chats.blocks().held, chats.blocks().state) == (0, SessionState.IDLE)
    assert "were needed for what could not run beside them" in chats.blocks().note
    texts = [event.text for event in chats.scheduler.events.recent(5)]
    assert any(text.startswith("session a let go of 5 blocks") for text in texts)
    chats.whole_turn("a", (*PROMPT, 7, 8))  # computed again
    assert chats.updates[-1].usage.num_cached == 0
    assert (chats.blocks().held, chats.blocks().note) == (6, "")


def test_what_fits_beside_idle_sessions_takes_nothing_of_them_however_much_of_it_there_is() -> None:
    chats = Chats(blocks=12, pins=6)
    chats.whole_turn("a", PROMPT)
    requests = [chats.add(12, 14) for _ in range(6)]  # 7 blocks each: they preempt each other
    chats.drain()
    assert all(chats.finished(request) for request in requests)
    assert chats.scheduler.num_preemptions > 0
    assert (chats.blocks().held, gave_way(chats)) == (5, 0)


def test_the_longest_idle_goes_first_and_no_more_than_must() -> None:
    chats = Chats(blocks=20, pins=15)
    for now, session in enumerate("abc"):
        chats.scheduler.now = float(now)
        chats.whole_turn(session, tuple(range(1000 * now + 1, 1000 * now + 23)))
        chats.scheduler.sessions.find("", session).expires += now  # this scheduler's steps are all at 0
    chats.add(30, 4)  # 9 blocks, and 5 are left
    chats.drain()
    assert [chats.blocks(session).held for session in "abc"] == [0, 5, 5]
    assert gave_way(chats) == 1


def test_whoever_is_not_the_next_to_enter_takes_nothing() -> None:
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


def test_pins_that_somebody_asked_for_stay() -> None:
    chats = Chats(blocks=12, pins=10)
    pin(chats, "rules", OTHER[:16])
    chats.whole_turn("a", PROMPT)
    with pytest.raises(RequestTooLarge, match="allowed: 8, what pins leave"):
        chats.add(30, 11)
    request = chats.add(30, 3)
    chats.drain()
    assert chats.finished(request)
    assert [p.name for p in chats.scheduler.pins.all() if p.num_held] == ["rules"]


def test_a_resumed_session_is_held_because_somebody_asked_for_it() -> None:
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
    chats = Chats(blocks=12, pins=10, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.sessions.suspend("", "a")
    assert chats.blocks().state is SessionState.SUSPENDING
    chats.add(30, 11)  # 10 blocks
    chats.moving += turn(chats)
    assert (chats.blocks().state, chats.blocks().held) == (SessionState.IDLE, 0)
    moving, chats.moving = chats.moving, []
    finish(chats, moving)
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    check_scheduler(chats.scheduler)
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
    chats.scheduler.set_tenants([TenantPolicy("t", maximum=4)])
    check_scheduler(chats.scheduler)
    assert (chats.blocks("a").held, chats.blocks("b").held) == (0, 5)
    chats.scheduler.set_tenants([TenantPolicy("t", guaranteed=18)])
    check_scheduler(chats.scheduler)
    assert chats.blocks("b").held == 0, "it would keep a tenant from what it is guaranteed"
    chats.scheduler.set_tenants([])
    pin(chats, "rules", OTHER[:16], tenant="u")
    with pytest.raises(TenantsRefused):
        chats.scheduler.set_tenants([TenantPolicy("u", maximum=3)])


def test_another_tenant_s_hold_within_its_guarantee_is_left_alone() -> None:
    chats = Chats(blocks=20, pins=18)
    chats.scheduler.set_tenants([TenantPolicy("t", guaranteed=8), TenantPolicy("u", guaranteed=6)])
    chats.say("a", PROMPT, tenant="t")
    chats.say("b", OTHER, tenant="u")
    chats.drain()
    with pytest.raises(RequestTooLarge, match="allowed: 12"):
        chats.add(45, 6, tenant="u")
    request = chats.add(42, 6, tenant="u")  # 12 blocks
    chats.drain()
    assert chats.finished(request)
    assert (chats.blocks("a").held, chats.blocks("b").held) == (5, 0)
