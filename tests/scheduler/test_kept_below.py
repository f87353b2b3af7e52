"""Who has the part of the tier below that may be kept: what somebody asked for, then what nobody did."""

from __future__ import annotations

from array import array

import pytest
from tests.scheduler.chats import Chats
from tests.scheduler.test_transfers import turn

from octavo.errors import SessionRefused
from octavo.memory.quota import TenantPolicy
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.retention.session_table import SessionState
from octavo.step.events import EventKind


def prompt_of(session: str) -> tuple[int, ...]:
    """5 blocks of 4, and two tokens; each session's own."""
    return tuple(range(1000 * ord(session), 1000 * ord(session) + 22))


def chat(chats: Chats, *sessions: str, tenant: str = "") -> None:
    """A turn of each; who comes later was used later."""
    for session in sessions:
        chats.say(session, prompt_of(session), tenant=tenant)
        while chats.scheduler.has_work:
            chats.moving += turn(chats)
        chats.settle()
        found = chats.scheduler.session_table.find(tenant, session)
        found.expires = found.ttl_s + chats.next_id  # steps of these tests take no time


def kept(chats: Chats, *sessions: str) -> list[int]:
    chats.scheduler.check()
    return [chats.blocks(session).kept for session in sessions]


def pin(chats: Chats, name: str, prompt: tuple[int, ...]) -> None:
    chats.scheduler.client_pins.open(PinRequest(name, prompt, 60.0, Strength.WARM), chats.next_id, 0.0)
    chats.add(prompt, 1, fills_pin=name)
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    chats.settle()


def suspend(chats: Chats, session: str, tenant: str = "") -> None:
    chats.scheduler.session_holds.suspend(tenant, session)
    chats.settle()


@pytest.fixture
def chats() -> Chats:
    """The tier keeps 12 blocks: two sessions, and no third."""
    return Chats(blocks=60, pins=50, slots=16)


def test_idle_sessions_give_way_below_to_one_that_is_suspended_the_longest_idle_first(chats: Chats) -> None:
    chat(chats, "a", "b", "a", "c")
    assert kept(chats, "a", "b", "c") == [5, 5, 0], "nobody asked for c either"
    suspend(chats, "c")
    assert kept(chats, "a", "b", "c") == [5, 0, 5]
    assert chats.blocks("c").state is SessionState.SUSPENDED
    assert chats.blocks("b").state is SessionState.IDLE
    assert (
        chats.blocks("b").note
        == "its place in the offload tier was needed for what a client asked to keep there"
    )
    assert chats.scheduler.events.counts[EventKind.SESSION_RELEASED] == 1


def test_what_was_suspended_gives_way_to_no_one_and_no_one_gives_way_in_vain(chats: Chats) -> None:
    chat(chats, "a", "b", "c")
    suspend(chats, "a")
    suspend(chats, "c")
    chat(chats, "d")
    with pytest.raises(SessionRefused, match=r"keeps 10 of at most 12 blocks .* delete other suspended"):
        suspend(chats, "d")
    chats.scheduler.session_holds.delete("", "c")
    chat(chats, "e")
    longer = (*prompt_of("f"), *range(20))  # 10 blocks: more than there would be without e
    chats.whole_turn("f", longer)
    chats.settle()
    with pytest.raises(SessionRefused):
        suspend(chats, "f")
    assert kept(chats, "a", "e", "f") == [5, 5, 0]


def test_a_session_is_promised_nothing_below_once_a_turn_has_ended_well(chats: Chats) -> None:
    chat(chats, "a")
    suspend(chats, "a")
    chat(chats, "a", "b", "c")
    suspend(chats, "c")
    assert kept(chats, "a", "b", "c") == [0, 5, 5]


def test_a_session_that_is_suspended_twice_needs_no_place_but_its_own(chats: Chats) -> None:
    chat(chats, "a", "b")
    for _ in range(2):
        suspend(chats, "b")
        assert kept(chats, "a", "b") == [5, 5]


def test_idle_sessions_give_way_below_to_a_warm_pin(chats: Chats) -> None:
    chat(chats, "a", "b")
    pin(chats, "rules", prompt_of("r"))
    assert kept(chats, "a", "b") == [0, 5]
    assert chats.scheduler.transfers.tier is not None
    assert chats.scheduler.transfers.tier.num_kept == 10
    suspend(chats, "b")
    pin(chats, "more", prompt_of("s"))
    assert kept(chats, "b") == [5]
    assert any("pin more stays hot" in event.text for event in chats.scheduler.events.recent(9))


def test_a_tenants_own_sessions_give_way_below_before_those_of_others(chats: Chats) -> None:
    chat(chats, "a", tenant="t")
    chat(chats, "b", "c", tenant="u")
    suspend(chats, "c", "u")
    assert kept(chats, "a", "b", "c") == [5, 0, 5]
    chats.scheduler.tenants.set_policies([TenantPolicy("t"), TenantPolicy("u", disk_maximum=8)])
    chat(chats, "d", tenant="u")
    with pytest.raises(SessionRefused, match="keeps 5 of at most 8 blocks for this tenant"):
        suspend(chats, "d", "u")
    assert kept(chats, "a", "c", "d") == [5, 5, 0], "what t has would not help"


def test_of_restored_sessions_those_that_were_suspended_stay_in_a_tier(chats: Chats) -> None:
    chat(chats, "a", "b")
    for session, num_suspended in (("a", 5), ("b", 0)):
        chats.scheduler.session_holds.delete("", session)
        chats.restore(session, prompt_of(session), 5.0, num_suspended=num_suspended)
    assert kept(chats, "a", "b") == [5, 5]
    chat(chats, "c")
    suspend(chats, "c")
    assert kept(chats, "a", "b", "c") == [5, 0, 5]
    assert chats.blocks("b").state is SessionState.IDLE


def test_what_a_warm_pin_lets_go_is_evicted_tail_first() -> None:
    chats = Chats(blocks=60, slots=50)
    prompt = tuple(range(100, 120))
    pin(chats, "rules", prompt)
    chain = chats.scheduler.namer.chain("", array("I", prompt)).names
    line = [chats.memory.pool.name_of[block] for block in chats.memory.pool.eviction_order()]
    assert [chain.index(name) for name in line if name is not None] == [4, 3, 2, 1, 0]
