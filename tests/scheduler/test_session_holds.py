"""Sessions and warm pins: what is kept between turns, where it goes, and who is told why not."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served, State
from tests.scheduler.test_transfers import finish, turn

from octavo.errors import (
    InvalidRequest,
    PinRefused,
    RequestTooLarge,
    SessionBusy,
    SessionRefused,
    UnknownSession,
)
from octavo.memory.pins import Strength
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.scheduler.check import check_scheduler
from octavo.scheduler.events import EventKind
from octavo.scheduler.pinning import PinOrder
from octavo.scheduler.session_views import view_session
from octavo.scheduler.sessions import SessionState
from octavo.scheduler.views import view_kv, view_map
from octavo.types import Move, Request, SamplingParams

PROMPT = tuple(range(100, 122))  # 5 blocks of 4, and two tokens


class Chats(Served):
    """A served scheduler whose requests may be turns."""

    def say(
        self, session: str, prompt: tuple[int, ...], max_tokens: int = 1, *, tenant: str = "", n: int = 1
    ) -> int:
        self._next_id += 1
        sampling = SamplingParams(ignore_eos=True)
        request = Request(
            self._next_id, prompt, sampling, max_tokens, 0, n, tenant, session=session, session_ttl=60.0
        )
        self.scheduler.submit(request)
        return self._next_id

    def whole_turn(self, session: str, prompt: tuple[int, ...], max_tokens: int = 1) -> None:
        """Serve it, and let no transfer end."""
        request = self.say(session, prompt, max_tokens)
        while self.state(request) is not State.FINISHED:
            self.moving += turn(self)

    def settle(self) -> None:
        """All transfers end well."""
        while self.moving or self.scheduler.transfers.could_store:
            moving, self.moving = self.moving, []
            finish(self, moving)
            self.moving += turn(self)

    moving: list  # type: ignore[type-arg]

    def __init__(self, **options: int) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.moving = []

    def blocks(self, session: str = "a"):  # type: ignore[no-untyped-def]
        return view_session(self.scheduler, session)

    def evict_all(self) -> None:
        table = self.memory.open()
        self.memory.reserve(table, 0, self.memory.pool.num_unheld * self.memory.block_size)
        self.memory.close(table)


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


def test_the_pool_and_its_map_tell_what_sessions_hold() -> None:
    chats = Chats(blocks=20)
    chats.whole_turn("a", PROMPT)
    kv, drawn = view_kv(chats.scheduler, 0.0), view_map(chats.scheduler, 0.0)
    assert (kv.sessions, kv.held_by_sessions, kv.held_by_pins, kv.pins) == (1, 5, 0, ())
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


def test_one_turn_at_a_time_and_no_choices_beside_it() -> None:
    chats = Chats(blocks=30)
    chats.say("a", PROMPT, 5)
    with pytest.raises(SessionBusy, match="session a is active"):
        chats.say("a", PROMPT)
    with pytest.raises(InvalidRequest, match="n is 2; allowed with a session: 1"):
        chats.say("b", PROMPT, n=2)
    with pytest.raises(UnknownSession):
        chats.say("a", PROMPT, tenant="other")
    check_scheduler(chats.scheduler)


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


def test_a_turn_that_its_client_stopped_counts_as_far_as_it_was_told() -> None:
    chats = Chats(blocks=40)
    request = chats.say("a", PROMPT, 20)
    while len(chats.scheduler.sequences_of(request)[0].tokens) < len(PROMPT) + 9:
        chats.step()
    chats.scheduler.sessions.stop_turn("a", request, len(PROMPT) + 3)
    chats.scheduler.cancel(request)
    assert (chats.blocks().num_blocks, chats.blocks().held) == (6, 6)  # 25 tokens
    chats.scheduler.sessions.stop_turn("a", request, 4)  # too late: nothing happens
    assert chats.blocks().num_blocks == 6


def test_a_warm_hold_goes_below_lets_the_pool_go_and_is_never_dropped_there() -> None:
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
    assert chats.blocks().below == 5
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
    transfers._load_s, chats.scheduler.costs.token_s = 5.0, 0.001
    for first in (1000, 2000):
        chats.add(tuple(range(first, first + 22)))
    while chats.scheduler.has_work:
        assert turn(chats) == []
    chats.whole_turn("a", PROMPT)
    chats.moving += turn(chats)
    assert [t.name for t in chats.moving] == chats.scheduler.sessions.find("", "a").names
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
    assert text == "pin session:a stays hot: the tier below keeps 0 blocks of 3 that it may, and it has 5"


def test_suspending_stores_all_of_it_and_holds_nothing() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.sessions.suspend("", "a")
    assert chats.blocks().state is SessionState.SUSPENDING
    with pytest.raises(SessionBusy, match="session a is suspending"):
        chats.say("a", PROMPT)
    chats.settle()
    assert (chats.blocks().state, chats.blocks().held, chats.blocks().kept) == (SessionState.SUSPENDED, 0, 5)
    assert len(chats.scheduler.sessions.slots("a")) == 5
    request = chats.say("a", (*PROMPT, 7, 8))  # a turn needs no resume
    chats.step()
    assert chats.finished(request)
    assert chats.blocks().state is SessionState.IDLE


def test_suspending_needs_a_tier_room_in_it_and_room_to_hold_what_is_missing() -> None:
    chats = Chats(blocks=30)
    chats.whole_turn("a", PROMPT)
    with pytest.raises(SessionRefused, match="there is none"):
        chats.scheduler.sessions.suspend("", "a")
    with pytest.raises(UnknownSession):
        chats.scheduler.sessions.suspend("other", "a")
    chats = Chats(blocks=30, slots=4)
    chats.whole_turn("a", PROMPT)
    with pytest.raises(SessionRefused, match="keeps 0 blocks of 3 that it may"):
        chats.scheduler.sessions.suspend("", "a")
    chats = Chats(blocks=30, slots=50, pins=4)
    chats.whole_turn("a", PROMPT)
    with pytest.raises(PinRefused, match="session a needs 5 blocks and 1 are missing"):
        chats.scheduler.sessions.suspend("", "a")
    chats.settle()  # write-behind has stored them meanwhile
    chats.scheduler.sessions.suspend("", "a")
    assert chats.blocks().state is SessionState.SUSPENDED
    assert chats.blocks().kept == 5


def test_a_tenant_keeps_no_more_for_a_session_and_below_than_it_may() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.scheduler.set_tenants([TenantPolicy("", session_maximum=4)])
    chats.whole_turn("a", PROMPT)
    assert chats.blocks().note == "a session of this tenant may keep 4 blocks, and it has 5"
    with pytest.raises(SessionRefused, match="may keep 4 blocks"):
        chats.scheduler.sessions.suspend("", "a")
    chats.scheduler.set_tenants([TenantPolicy("", disk_maximum=8)])
    for session, first in (("b", 300), ("c", 400)):
        chats.whole_turn(session, tuple(range(first, first + 22)))
        chats.settle()
    assert (chats.blocks("b").kept, chats.blocks("b").held) == (5, 0)
    assert (chats.blocks("c").kept, chats.blocks("c").held) == (0, 5)
    chats.scheduler.sessions.suspend("", "b")  # else it would give way
    with pytest.raises(SessionRefused, match="keeps 5 blocks of 8 that it may for this tenant"):
        chats.scheduler.sessions.suspend("", "c")


def resume(chats: Chats, tokens: tuple[int, ...]) -> int:
    order = PinOrder("a", tokens, 60.0, Strength.HOT, "", is_resumed_session=True)
    chats.scheduler.pinning.open(order, chats.next_id, 0.0)
    return chats.add(tokens, 1, fills_pin=order.pin_name)


def test_a_resumed_session_is_held_in_the_pool_until_its_next_turn_has_ended() -> None:
    chats = Chats(blocks=30, slots=50, pins=6)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.sessions.suspend("", "a")
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
    check_scheduler(chats.scheduler)
    assert len(chats.scheduler.sessions) == 0
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


def test_damage_below_is_told_and_the_rest_is_kept() -> None:
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
    assert any("was damaged below" in event.text for event in chats.scheduler.events.recent(10))
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
        order = PinOrder(pin, prompt, 60.0, Strength.WARM)
        chats.scheduler.pinning.open(order, chats.next_id, 0.0)
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
    chats.scheduler.sessions.delete("", "a")
    session = chats.scheduler.sessions.restore("b", "", (*PROMPT, 1, 2, 3, 4), 60.0, 0.0, 5.0)
    check_scheduler(chats.scheduler)
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


def share(chats: Chats, tokens: tuple[int, ...]) -> None:
    """What an operator pins for all."""
    order = PinOrder("rules", tokens, 60.0, tenant=SHARED)
    chats.scheduler.pinning.open(order, chats.next_id, 0.0)
    chats.add(tokens, 1, tenant=SHARED, fills_pin="rules")
    for _ in range(40):
        if chats.scheduler.has_work:
            chats.moving += turn(chats)
    assert not chats.scheduler.has_work, "it waits for what never comes"


def test_a_session_keeps_the_shared_names_that_it_began_with_when_they_are_unpinned_and_pinned_again() -> (
    None
):
    chats = Chats(blocks=60)
    share(chats, PROMPT[:8])
    chats.whole_turn("a", PROMPT)
    assert chats.scheduler.sessions.find("", "a").num_shared == 2
    chats.scheduler.pinning.release(SHARED, "rules")
    longer = (*PROMPT, 7, 8)
    chats.whole_turn("a", longer)
    assert chats.updates[-1].usage.num_cached == 20
    share(chats, PROMPT[:16])  # and more of it
    chats.whole_turn("a", (*longer, 7, 9))
    assert chats.updates[-1].usage.num_cached == 24
    assert chats.scheduler.sessions.find("", "a").num_shared == 2
    chats.whole_turn("a", (*PROMPT[:8], *range(700, 712)))  # it extends the shared names, and no more
    assert (chats.updates[-1].usage.num_cached, chats.scheduler.sessions.find("", "a").num_shared) == (8, 2)
    chats.whole_turn("a", (*PROMPT[:4], *range(700, 712)))  # not even these: what is pinned now counts
    assert chats.scheduler.sessions.find("", "a").num_shared == 1


def bounded_chats(maximum: int = 6) -> Chats:
    """Prefixes of 5 blocks may be shared one at a time."""
    chats = Chats(blocks=60)
    chats.scheduler.set_tenants([TenantPolicy(SHARED, maximum=maximum), TenantPolicy("t", maximum=20)])
    return chats


def test_what_a_session_keeps_of_an_ended_shared_prefix_keeps_no_new_one_out() -> None:
    chats = bounded_chats()
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, tenant="t")
    chats.drain()
    charged = chats.memory.quotas.charged
    assert (chats.blocks().held, charged(SHARED), charged("t")) == (5, 5, 0)
    chats.scheduler.pinning.release(SHARED, "rules")
    assert (chats.blocks().held, charged(SHARED), charged("t")) == (5, 0, 0)
    share(chats, tuple(range(700, 720)))
    assert (chats.blocks().held, charged(SHARED)) == (5, 5)
    assert chats.scheduler.pins.find(SHARED, "rules") is not None


def test_a_turn_that_runs_on_with_an_ended_shared_prefix_keeps_no_new_one_out() -> None:
    chats = bounded_chats()
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, 12, tenant="t")
    chats.step()
    chats.scheduler.pinning.release(SHARED, "rules")
    share(chats, tuple(range(700, 720)))  # the turn ends meanwhile, and its session keeps its blocks
    assert (chats.blocks().held, chats.memory.quotas.charged(SHARED)) == (8, 5)


def test_what_a_session_computes_again_of_an_ended_shared_prefix_is_not_charged_to_what_is_shared() -> None:
    chats = bounded_chats()
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, tenant="t")
    chats.drain()
    chats.scheduler.pinning.release(SHARED, "rules")
    chats.scheduler.pinning.remove(chats.scheduler.sessions.pins_of(chats.scheduler.sessions.get("a"))[1])
    chats.evict_all()
    share(chats, tuple(range(700, 720)))
    chats.say("a", (*PROMPT, 7), tenant="t")
    chats.plan()
    charged = chats.memory.quotas.charged
    assert (charged(SHARED), charged("t")) == (5, 4), "while nobody else can find them they are its tenant's"


def test_a_shared_prefix_that_is_pinned_again_is_charged_to_what_is_shared_again() -> None:
    chats = bounded_chats()
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, tenant="t")
    chats.drain()
    chats.scheduler.pinning.release(SHARED, "rules")
    share(chats, PROMPT[:16])
    assert (chats.updates[-1].usage.num_cached, chats.memory.quotas.charged(SHARED)) == (12, 4)
    assert chats.memory.quotas.charged("t") == 0


def test_a_session_that_loads_an_ended_shared_prefix_is_not_charged_to_what_is_shared() -> None:
    chats = Chats(blocks=60, slots=50)
    chats.scheduler.set_tenants([TenantPolicy(SHARED, maximum=6), TenantPolicy("t", maximum=20)])
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, tenant="t")
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    chats.settle()
    chats.scheduler.pinning.release(SHARED, "rules")
    chats.settle()
    chats.evict_all()
    share(chats, tuple(range(700, 720)))
    charged = chats.memory.quotas.charged
    request = chats.say("a", (*PROMPT, 7), tenant="t")
    chats.moving += turn(chats)  # the loads begin
    assert (charged(SHARED), charged("t")) == (5, 5)
    moving, chats.moving = chats.moving, []
    finish(chats, moving)
    assert (charged(SHARED), charged("t")) == (5, 0)
    while chats.state(request) is not State.FINISHED:
        chats.moving += turn(chats)
    assert chats.usage(request).num_cached == 20


def test_a_session_that_began_under_its_own_names_keeps_them_when_its_prefix_is_shared() -> None:
    chats = Chats(blocks=60)
    chats.whole_turn("a", PROMPT)
    share(chats, PROMPT[:8])
    chats.whole_turn("a", (*PROMPT, 7, 8))
    assert chats.updates[-1].usage.num_cached == 20
    assert chats.scheduler.sessions.find("", "a").num_shared == 0
    chats.whole_turn("b", PROMPT)
    assert chats.scheduler.sessions.find("", "b").num_shared == 2


def test_a_restored_session_finds_its_blocks_below_although_their_shared_prefix_is_not_pinned() -> None:
    chats = Chats(blocks=60, slots=50)
    share(chats, PROMPT[:8])
    chats.whole_turn("a", PROMPT)
    chats.settle()
    num_shared = chats.scheduler.sessions.find("", "a").num_shared
    chats.scheduler.sessions.delete("", "a")
    chats.scheduler.pinning.release(SHARED, "rules")
    chats.settle()
    chats.scheduler.sessions.restore("a", "", PROMPT, 60.0, 0.0, 5.0, num_shared)
    check_scheduler(chats.scheduler)
    assert (chats.blocks().num_blocks, chats.blocks().kept) == (5, 5)
    chats.evict_all()
    request = resume(chats, PROMPT[:20])
    finish(chats, turn(chats))
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    assert chats.finished(request)
    assert chats.blocks().held == 5
    chats.whole_turn("a", (*PROMPT, 7, 8))
    assert chats.updates[-1].usage.num_cached == 20


def test_keeping_a_session_below_looks_at_its_own_names_alone_however_many_its_tenant_keeps() -> None:
    chats = Chats(blocks=60, slots=200)
    chats.scheduler.set_tenants([TenantPolicy("", disk_maximum=100)])
    chats.whole_turn("a", PROMPT)
    chats.settle()
    looked_at = []

    class Watched(list[bytes]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            looked_at.append(self)
            return super().__iter__()

    _, hold = chats.scheduler.sessions.pins_of(chats.scheduler.sessions.find("", "a"))
    assert hold is not None
    hold.names = Watched(hold.names)
    assert chats.scheduler.holding.keep("", [bytes(32)]) == ""
    assert looked_at == []


def test_a_session_all_of_whose_blocks_were_lost_below_can_be_deleted() -> None:
    chats = Chats(blocks=60, slots=200)
    chats.whole_turn("a", PROMPT)
    chats.settle()
    chats.scheduler.transfers.lose(list(chats.scheduler.sessions.find("", "a").names))
    check_scheduler(chats.scheduler)
    chats.scheduler.sessions.delete("", "a")
    check_scheduler(chats.scheduler)
