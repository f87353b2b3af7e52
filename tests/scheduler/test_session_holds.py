"""Sessions and warm pins: what is kept between turns, where it goes, and who is told why not."""

from __future__ import annotations

import pytest
from tests.scheduler.chats import PROMPT, Chats, resume
from tests.scheduler.test_transfers import finish, turn

from octavo.engine.port import inspector_of
from octavo.errors import (
    InvalidRequest,
    PinRefused,
    RequestTooLarge,
    SessionBusy,
    SessionRefused,
    UnknownSession,
)
from octavo.inspect.views import draw_map
from octavo.memory.quota import TenantPolicy
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.retention.session_table import SessionState
from octavo.step.events import EventKind
from octavo.step.step_times import StepWork
from octavo.types import Move


def test_without_a_tier_a_session_holds_its_full_blocks_in_the_pins_budget() -> None:
    chats = Chats(blocks=20, pins=8)
    chats.whole_turn("a", PROMPT, 3)  # 24 positions are computed: 6 blocks
    blocks = chats.blocks()
    assert (blocks.state, blocks.num_blocks, blocks.held, blocks.tier) == (SessionState.IDLE, 6, 6, "pool")
    assert chats.scheduler.pins.num_blocks == 6
    chats.evict_all()
    chats.whole_turn("a", (*PROMPT, 7, 7, 7, 500, 501))
    assert chats.updates[-1].usage.num_cached == 24
    assert chats.scheduler.pins.num_blocks == 6  # the first pin went when the second came


def test_the_pool_and_its_map_show_what_sessions_hold() -> None:
    chats = Chats(blocks=20)
    chats.whole_turn("a", PROMPT)
    inspector = inspector_of(chats.scheduler)
    kv, drawn = inspector.kv(0.0), draw_map(inspector.glimpse(0.0))
    assert kv.totals is not None
    assert (kv.totals.num_sessions, kv.held_by_sessions, kv.held_by_pins, kv.pins) == (1, 5, 0, ())
    assert drawn.states.count("p") == 5
    assert "session a" in drawn.owners


def test_a_session_beyond_the_budget_is_best_effort_and_says_so() -> None:
    chats = Chats(blocks=20, pins=4)
    chats.whole_turn("a", PROMPT)
    assert chats.blocks().held == 0
    assert "1 are missing: pins keep 0 of 4" in chats.blocks().note
    assert chats.scheduler.events.counts[EventKind.SESSION_BEST_EFFORT] == 1
    chats.whole_turn("a", PROMPT[:9])  # shorter: there is room for it
    assert (chats.blocks().held, chats.blocks().note) == (2, "")


def test_one_turn_at_a_time_and_no_choices_alongside_it() -> None:
    chats = Chats(blocks=30)
    chats.say("a", PROMPT, 5)
    with pytest.raises(SessionBusy, match="session a is active"):
        chats.say("a", PROMPT)
    with pytest.raises(InvalidRequest, match="n is 2; allowed with a session: 1"):
        chats.say("b", PROMPT, n=2)
    with pytest.raises(UnknownSession):
        chats.say("a", PROMPT, tenant="other")
    chats.scheduler.check()


@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_a_turn_that_ends_badly_changes_nothing(end: str) -> None:
    chats = Chats(blocks=40)
    chats.whole_turn("a", PROMPT)
    before = chats.blocks()
    request = chats.say("a", (*PROMPT, 7, *range(900, 910)), 5)
    chats.step()
    if end == "cancel":
        chats.updates += chats.scheduler.cancel(request)
    else:
        chats.commit(chats.plan(), request)
    assert chats.finished(request)
    after = chats.blocks()
    assert after.state is SessionState.IDLE
    # What failed is poisoned: its names, the session's among them, stand for nothing any more.
    assert after.held == (before.held if end == "cancel" else 0)


def test_a_turn_that_its_client_stopped_counts_as_far_as_it_was_sent() -> None:
    chats = Chats(blocks=40)
    request = chats.say("a", PROMPT, 20)
    while len(chats.scheduler.live.sequences_of(request)[0].tokens) < len(PROMPT) + 9:
        chats.step()
    chats.scheduler.session_holds.stop_turn("a", request, len(PROMPT) + 3)
    chats.scheduler.cancel(request)
    assert (chats.blocks().num_blocks, chats.blocks().held) == (6, 6)  # 25 tokens
    chats.scheduler.session_holds.stop_turn("a", request, 4)  # too late: nothing happens
    assert chats.blocks().num_blocks == 6


def test_a_warm_hold_goes_to_a_tier_lets_the_pool_go_and_is_never_dropped_there() -> None:
    chats = Chats(blocks=30, slots=12)
    chats.whole_turn("a", PROMPT)
    assert (chats.blocks().held, chats.scheduler.pins.num_blocks) == (5, 5)
    chats.settle()
    assert (chats.blocks().held, chats.blocks().kept, chats.scheduler.pins.num_blocks) == (0, 5, 0)
    for first in range(1000, 3000, 100):  # far more than the tier has room for
        chats.add(tuple(range(first, first + 22)))
        while chats.scheduler.has_work:
            chats.moving += turn(chats)
        chats.settle()
    assert chats.scheduler.transfers.tier is not None
    assert chats.scheduler.transfers.tier.num_evictions > 50
    assert chats.blocks().offloaded == 5
    chats.evict_all()
    request = chats.say("a", (*PROMPT, 7, 8))
    loads = turn(chats)
    assert [transfer.move for transfer in loads] == [Move.LOAD] * 5
    finish(chats, loads)
    chats.step()
    assert chats.finished(request)
    assert chats.updates[-1].usage.num_cached == 20


def test_stores_of_a_hold_go_first_and_also_where_loading_is_slow() -> None:
    chats = Chats(blocks=60, slots=50)
    transfers = chats.scheduler.transfers
    transfers._load_s.add(5.0, 0.0)
    chats.scheduler.context.times.observe(StepWork(prompt=100), 0.1)
    for first in (1000, 2000):
        chats.add(tuple(range(first, first + 22)))
    while chats.scheduler.has_work:
        assert turn(chats) == []
    chats.whole_turn("a", PROMPT)
    chats.moving += turn(chats)
    assert [t.name for t in chats.moving] == chats.scheduler.session_table.find("", "a").names
    chats.settle()
    assert transfers.num_stored == 5


def test_a_hold_whose_store_fails_stays_hot_until_the_disk_works_again() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.moving += turn(chats)
    stores, chats.moving = chats.moving, []
    finish(chats, stores[1:])
    finish(chats, stores[:1], ok=False)
    assert turn(chats) == []
    assert (chats.blocks().held, chats.blocks().kept, chats.blocks().stuck) == (5, 4, True)
    chats.whole_turn("b", tuple(range(500, 506)))
    chats.settle()
    assert (chats.blocks().held, chats.blocks().kept, chats.blocks().stuck) == (0, 5, False)


def test_a_hold_that_the_tier_cannot_keep_stays_hot_and_says_so() -> None:
    chats = Chats(blocks=30, slots=4)
    chats.whole_turn("a", PROMPT)
    chats.settle()
    assert chats.blocks().held == 5
    text = chats.scheduler.events.recent(1)[0].text
    assert text == "pin session:a stays hot: the offload tier keeps 0 of at most 3 blocks, and it has 5"


def test_suspending_stores_all_of_it_and_holds_nothing() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.session_holds.suspend("", "a")
    assert chats.blocks().state is SessionState.SUSPENDING
    with pytest.raises(SessionBusy, match="session a is suspending"):
        chats.say("a", PROMPT)
    chats.settle()
    assert (chats.blocks().state, chats.blocks().held, chats.blocks().kept) == (SessionState.SUSPENDED, 0, 5)
    assert len(chats.scheduler.session_holds.slots("a")) == 5
    request = chats.say("a", (*PROMPT, 7, 8))  # a turn needs no resume
    chats.step()
    assert chats.finished(request)
    assert chats.blocks().state is SessionState.IDLE


def test_suspending_needs_a_tier_room_in_it_and_room_to_hold_what_is_missing() -> None:
    chats = Chats(blocks=30)
    chats.whole_turn("a", PROMPT)
    with pytest.raises(SessionRefused, match="there is none"):
        chats.scheduler.session_holds.suspend("", "a")
    with pytest.raises(UnknownSession):
        chats.scheduler.session_holds.suspend("other", "a")
    chats = Chats(blocks=30, slots=4)
    chats.whole_turn("a", PROMPT)
    with pytest.raises(SessionRefused, match="keeps 0 of at most 3 blocks"):
        chats.scheduler.session_holds.suspend("", "a")
    chats = Chats(blocks=30, slots=50, pins=4)
    chats.whole_turn("a", PROMPT)
    with pytest.raises(PinRefused, match="session a needs 5 blocks and 1 are missing"):
        chats.scheduler.session_holds.suspend("", "a")
    chats.settle()  # write-behind has stored them meanwhile
    chats.scheduler.session_holds.suspend("", "a")
    assert chats.blocks().state is SessionState.SUSPENDED
    assert chats.blocks().kept == 5


def test_a_tenant_keeps_no_more_for_a_session_and_below_than_it_may() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.scheduler.tenants.set_policies([TenantPolicy("", session_maximum=4)])
    chats.whole_turn("a", PROMPT)
    assert chats.blocks().note == "a session of this tenant may keep 4 blocks, and it has 5"
    with pytest.raises(SessionRefused, match="may keep 4 blocks"):
        chats.scheduler.session_holds.suspend("", "a")
    chats.scheduler.tenants.set_policies([TenantPolicy("", disk_maximum=8)])
    for session, first in (("b", 300), ("c", 400)):
        chats.whole_turn(session, tuple(range(first, first + 22)))
        chats.settle()
    assert (chats.blocks("b").kept, chats.blocks("b").held) == (5, 0)
    assert (chats.blocks("c").kept, chats.blocks("c").held) == (0, 5)
    chats.scheduler.session_holds.suspend("", "b")  # else it would give way
    with pytest.raises(SessionRefused, match="keeps 5 of at most 8 blocks for this tenant"):
        chats.scheduler.session_holds.suspend("", "c")


def test_a_resumed_session_is_held_in_the_pool_until_its_next_turn_has_ended() -> None:
    chats = Chats(blocks=30, slots=50, pins=6)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.session_holds.suspend("", "a")
    chats.settle()
    chats.evict_all()
    request = resume(chats, PROMPT[:20])
    assert chats.blocks().state is SessionState.RESUMING
    with pytest.raises(SessionBusy, match="session a is resuming"):
        chats.say("a", PROMPT)
    loads = turn(chats)
    assert len(loads) == 4  # the last block holds the last token: it is computed again
    finish(chats, loads)
    chats.step()
    assert chats.finished(request)
    assert (chats.blocks().state, chats.blocks().held) == (SessionState.IDLE, 5)
    chats.evict_all()
    chats.whole_turn("a", (*PROMPT, 7, 8))
    assert chats.updates[-1].usage.num_cached == 20
    chats.settle()
    assert (chats.blocks().held, chats.blocks().kept) == (0, 6)
    with pytest.raises(PinRefused, match="needs 7 blocks and 1 are missing"):
        resume(chats, tuple(range(100, 128)))


def test_an_idle_session_lets_go_in_the_step_after_its_time() -> None:
    chats = Chats(blocks=30)
    chats.whole_turn("a", PROMPT)
    assert chats.scheduler.next_event() == 60.0
    chats.scheduler.expire(59.9)
    assert chats.blocks().held == 5
    chats.scheduler.expire(60.0)
    chats.scheduler.check()
    assert len(chats.scheduler.session_table) == 0
    assert chats.memory.counts().held == 0
    assert chats.scheduler.next_event() is None
    assert chats.scheduler.events.counts[EventKind.SESSION_EXPIRED] == 1


def test_a_turn_may_use_what_its_own_session_holds_and_a_stranger_may_not() -> None:
    chats = Chats(blocks=10, pins=6)
    chats.whole_turn("a", PROMPT)
    resume(chats, PROMPT[:20])  # 5 held, and they give way to nobody
    chats.drain()
    longer = (*PROMPT, 7, *range(900, 915))  # 38 tokens, 39 positions: the whole pool
    with pytest.raises(RequestTooLarge, match="allowed: 5, what pins leave"):
        chats.say("b", longer)
    with pytest.raises(RequestTooLarge, match="allowed: 5, what pins leave"):
        chats.say("a", (1, *longer))  # it shares nothing with what was said
    chats.whole_turn("a", longer)
    assert chats.updates[-1].usage.num_cached == 20


def test_damage_below_is_reported_and_the_rest_is_kept() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.settle()
    chats.evict_all()
    request = chats.say("a", (*PROMPT, 7, 8))
    loads = turn(chats)
    finish(chats, loads[:2])
    finish(chats, loads[2:3], ok=False)
    finish(chats, loads[3:])
    assert chats.blocks().kept == 4
    assert any("was damaged in its tier" in event.text for event in chats.scheduler.events.recent(10))
    while chats.scheduler.has_work:
        turn(chats)
    assert chats.finished(request)
    assert chats.updates[-1].usage.num_cached == 8
    chats.settle()
    assert (chats.blocks().kept, chats.blocks().held) == (6, 0)


def test_a_warm_pin_moves_below_and_gives_its_budget_back() -> None:
    chats = Chats(blocks=30, slots=50, pins=5)
    for pin in ("one", "two"):
        prompt = tuple(range(len(pin) * 1000 + ord(pin[0]), len(pin) * 1000 + ord(pin[0]) + 20))
        order = PinRequest(pin, prompt, 60.0, Strength.WARM)
        chats.scheduler.client_pins.open(order, chats.next_id, 0.0)
        chats.add(prompt, 1, fills_pin=pin)
        while chats.scheduler.has_work:
            chats.moving += turn(chats)
        chats.settle()
    assert chats.scheduler.pins.num_blocks == 0
    assert chats.scheduler.transfers.tier is not None
    assert chats.scheduler.transfers.tier.num_kept == 10
    chats.scheduler.expire(60.0)
    assert chats.scheduler.transfers.tier.num_kept == 0


def test_a_restored_session_keeps_what_is_still_below() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.settle()
    chats.scheduler.session_holds.delete("", "a")
    session = chats.restore("b", (*PROMPT, 1, 2, 3, 4), 5.0)
    chats.scheduler.check()
    assert (chats.blocks("b").num_blocks, chats.blocks("b").kept) == (6, 5)
    assert chats.blocks("b").state is SessionState.SUSPENDED
    assert session.expires == 5.0


def test_stores_that_failed_are_tried_again_in_the_order_of_their_failing() -> None:
    chats = Chats(blocks=30, slots=30)
    chats.whole_turn("a", tuple(range(100, 130)))  # 7 blocks
    stores = [transfer for transfer in turn(chats) if transfer.move is Move.STORE]
    assert len(stores) == 7
    failing = [stores[i] for i in (3, 0, 5, 1, 6, 2)]
    finish(chats, failing, ok=False)
    finish(chats, [stores[4]])
    again = [transfer.name for transfer in turn(chats) if transfer.move is Move.STORE]
    assert again == [transfer.name for transfer in failing]


def test_keeping_a_session_below_looks_at_its_own_names_alone_however_many_its_tenant_keeps() -> None:
    chats = Chats(blocks=60, slots=200)
    chats.scheduler.tenants.set_policies([TenantPolicy("", disk_maximum=100)])
    chats.whole_turn("a", PROMPT)
    chats.settle()
    looked_at = []

    class Watched(list[bytes]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            looked_at.append(self)
            return super().__iter__()

    hold = chats.scheduler.session_table.find("", "a").hold
    assert hold is not None
    hold.names = Watched(hold.names)
    assert chats.scheduler.warm_pins.keep("", [bytes(32)]) == ""
    assert looked_at == []


def test_a_session_all_of_whose_blocks_were_lost_below_can_be_deleted() -> None:
    chats = Chats(blocks=60, slots=200)
    chats.whole_turn("a", PROMPT)
    chats.settle()
    chats.scheduler.transfers.lose(list(chats.scheduler.session_table.find("", "a").names))
    chats.scheduler.check()
    chats.scheduler.session_holds.delete("", "a")
    chats.scheduler.check()


def test_a_resumed_session_is_held_no_longer_than_its_next_turn_also_where_there_is_no_room_for_more() -> (
    None
):
    chats = Chats(blocks=20, pins=7)
    chats.whole_turn("a", PROMPT)
    resume(chats, PROMPT[:20])
    chats.drain()
    said = (*PROMPT, *range(800, 820))
    chats.whole_turn("a", said)
    assert "needs 10 blocks" in chats.blocks().note
    assert chats.scheduler.session_table.find("", "a").resumed is None
    chats.add(30, 51)  # all of the pool
    chats.drain()


def test_a_restored_session_whose_last_token_filled_a_block_can_be_suspended_without_that_block() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.settle()
    chats.scheduler.session_holds.delete("", "a")
    said = (*PROMPT, 900, 901)  # six blocks' tokens; the K and V of the last one were never computed
    chats.restore("a", said)
    for _ in range(2):
        chats.scheduler.session_holds.suspend("", "a")
        chats.settle()
        assert (chats.blocks().state, chats.blocks().kept) == (SessionState.SUSPENDED, 5)
    chats.evict_all()
    chats.scheduler.transfers.lose(list(chats.scheduler.session_table.find("", "a").names[2:4]))
    with pytest.raises(SessionRefused, match="2 of the 5 blocks of session a are neither in memory nor on"):
        chats.scheduler.session_holds.suspend("", "a")
    chats.scheduler.check()


def test_a_session_that_is_being_resumed_is_busy_and_not_resumed_twice() -> None:
    chats = Chats(blocks=60, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.settle()
    chats.scheduler.session_holds.suspend("", "a")
    chats.settle()
    resume(chats, PROMPT)
    with pytest.raises(SessionBusy, match="session a is resuming"):
        resume(chats, PROMPT)
