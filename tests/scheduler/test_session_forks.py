"""Forked sessions: two that hold the same blocks, and go on apart."""

from __future__ import annotations

from array import array

from tests.scheduler.chats import PROMPT, Chats
from tests.scheduler.test_session_shared import share
from tests.scheduler.test_transfers import finish, turn

from octavo.memory.quota import SHARED, TenantPolicy
from octavo.retention.session_table import Session, SessionState, StoredSession
from octavo.step.events import EventKind


def fork(chats: Chats, said: tuple[int, ...] = PROMPT, *, tenant: str = "") -> Session:
    """Of session a, in which these were the tokens when a turn had ended: session b."""
    source = chats.scheduler.session_table.find(tenant, "a")
    stored = StoredSession("b", source.tenant, array("I", said).tobytes(), 60.0, 60.0, source.num_shared)
    made = chats.scheduler.session_holds.fork(stored, source, 0.0)
    chats.scheduler.check()
    return made


def holders(chats: Chats) -> list[int]:
    """How many hold each block of session a that is in the pool."""
    pool = chats.memory.pool
    found = [pool.find(name) for name in chats.scheduler.session_table.find("", "a").names]
    return [pool.holders[block] for block in found if block is not None]


def test_a_fork_is_one_more_holder_of_the_same_blocks_and_no_block_more_is_held() -> None:
    chats = Chats(blocks=20)
    chats.whole_turn("a", PROMPT)
    assert holders(chats) == [1] * 5
    made = fork(chats)
    assert holders(chats) == [2] * 5
    assert chats.memory.counts().held == 5
    assert (chats.blocks("b").state, chats.blocks("b").held) == (SessionState.IDLE, 5)
    assert made.names == chats.scheduler.session_table.find("", "a").names


def test_of_a_session_and_its_fork_either_goes_on_and_the_other_keeps_what_it_had() -> None:
    chats = Chats(blocks=40)
    chats.whole_turn("a", PROMPT)
    fork(chats)
    chats.whole_turn("b", (*PROMPT, 7, 8), 4)
    assert chats.updates[-1].usage.num_cached == 20
    assert (chats.blocks("a").held, chats.blocks("b").held) == (5, 6)
    chats.whole_turn("a", (*PROMPT, 9, 9), 4)
    assert chats.updates[-1].usage.num_cached == 20
    assert holders(chats) == [2] * 5 + [1]
    assert chats.memory.counts().held == 7
    chats.scheduler.check()


def test_a_fork_at_an_earlier_turn_holds_the_blocks_of_that_turn_alone() -> None:
    chats = Chats(blocks=40)
    chats.whole_turn("a", PROMPT)
    chats.whole_turn("a", (*PROMPT, *range(300, 310)))
    fork(chats)
    assert (chats.blocks("a").held, chats.blocks("b").held) == (8, 5)
    assert holders(chats) == [2] * 5 + [1] * 3


def test_what_is_deleted_takes_nothing_from_its_fork() -> None:
    chats = Chats(blocks=20)
    chats.whole_turn("a", PROMPT)
    fork(chats)
    chats.scheduler.session_holds.delete("", "a")
    chats.evict_all()
    chats.scheduler.check()
    assert chats.blocks("b").held == 5
    chats.whole_turn("b", (*PROMPT, 7, 8))
    assert chats.updates[-1].usage.num_cached == 20


def test_a_fork_for_which_the_pins_budget_is_too_small_is_kept_by_best_effort_and_says_so() -> None:
    chats = Chats(blocks=20, pins=8)
    chats.whole_turn("a", PROMPT)
    fork(chats)
    assert (chats.blocks("a").held, chats.blocks("b").held) == (5, 0)
    assert "session b needs 5 blocks and 2 are missing" in chats.blocks("b").note
    assert chats.scheduler.events.counts[EventKind.SESSION_BEST_EFFORT] == 1
    chats.evict_all()
    chats.whole_turn("b", (*PROMPT, 7, 8))
    assert chats.updates[-1].usage.num_cached == 20, "while the other holds them they are found"


def test_a_fork_of_what_is_nowhere_any_more_says_so() -> None:
    chats = Chats(blocks=20)
    chats.whole_turn("a", PROMPT)
    hold = chats.scheduler.session_table.find("", "a").hold
    assert hold is not None
    chats.scheduler.warm_pins.remove(hold)
    chats.evict_all()
    fork(chats)
    assert (chats.blocks("b").num_blocks, chats.blocks("b").held) == (5, 0)
    assert "none of its blocks is cached" in chats.blocks("b").note


def test_a_fork_of_a_session_whose_blocks_are_on_their_way_down_waits_for_the_same_stores() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    assert chats.moving == []
    fork(chats)
    assert (chats.blocks("b").held, chats.blocks("b").state) == (5, SessionState.IDLE)
    chats.settle()
    assert chats.scheduler.transfers.num_stored == 5
    assert chats.scheduler.transfers.tier is not None
    assert chats.scheduler.transfers.tier.num_kept == 5
    for session in "ab":
        assert (chats.blocks(session).held, chats.blocks(session).kept) == (0, 5)
    chats.scheduler.session_holds.delete("", "a")
    chats.scheduler.check()
    assert chats.blocks("b").kept == 5


def test_a_fork_of_a_session_that_is_being_suspended_is_an_idle_one() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.session_holds.suspend("", "a")
    made = fork(chats)
    assert (chats.blocks("a").state, chats.blocks("b").state) == (SessionState.SUSPENDING, SessionState.IDLE)
    assert not made.is_promised
    chats.settle()
    assert (chats.blocks("a").state, chats.blocks("b").kept) == (SessionState.SUSPENDED, 5)
    chats.scheduler.check()


def test_a_fork_of_a_suspended_session_keeps_its_names_in_a_tier_and_a_turn_finds_them() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.session_holds.suspend("", "a")
    chats.settle()
    made = fork(chats)
    assert (chats.blocks("b").state, chats.blocks("b").held) == (SessionState.SUSPENDED, 0)
    assert (made.is_promised, made.num_suspended) == (True, 5)
    assert chats.scheduler.session_holds.slots("a") == chats.scheduler.session_holds.slots("b")
    chats.scheduler.session_holds.delete("", "a")
    chats.evict_all()
    request = chats.say("b", (*PROMPT, 7, 8))
    loads = turn(chats)
    assert len(loads) == 5
    finish(chats, loads)
    chats.step()
    assert chats.finished(request)
    assert chats.updates[-1].usage.num_cached == 20
    chats.scheduler.check()


def test_a_fork_of_a_suspended_session_keeps_what_was_not_damaged() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.session_holds.suspend("", "a")
    chats.settle()
    names = chats.scheduler.session_table.find("", "a").names
    chats.scheduler.transfers.lose(names[2:3])
    made = fork(chats)
    assert (chats.blocks("b").state, chats.blocks("b").kept) == (SessionState.SUSPENDED, 4)
    assert made.num_suspended == 5


def test_a_fork_that_its_tenant_may_not_keep_is_idle_and_says_why() -> None:
    chats = Chats(blocks=30, slots=50)
    chats.whole_turn("a", PROMPT)
    chats.scheduler.session_holds.suspend("", "a")
    chats.settle()
    chats.scheduler.tenants.set_policies([TenantPolicy("", session_maximum=4)])
    made = fork(chats)
    assert (chats.blocks("b").state, chats.blocks("b").kept) == (SessionState.IDLE, 0)
    assert chats.blocks("b").note == "a session of this tenant may keep 4 blocks, and it has 5"
    assert not made.is_promised
    assert chats.blocks("a").state is SessionState.SUSPENDED


def test_a_fork_takes_no_place_below_that_it_has_not_and_is_held_instead() -> None:
    chats = Chats(blocks=30, slots=4)  # of which three may be kept
    chats.whole_turn("a", PROMPT)
    chats.settle()
    fork(chats)
    assert (chats.blocks("a").held, chats.blocks("b").held) == (5, 5)
    assert holders(chats) == [2] * 5


def test_a_fork_holds_nothing_beyond_its_tenants_maximum() -> None:
    chats = Chats(blocks=30)
    chats.say("a", PROMPT, tenant="t")
    chats.drain()
    chats.scheduler.warm_pins.remove(chats.scheduler.session_table.find("t", "a").hold)  # type: ignore[arg-type]
    chats.scheduler.tenants.set_policies([TenantPolicy("t", maximum=12)])
    running = chats.say("c", tuple(range(900, 930)), 2, tenant="t")
    chats.step()
    fork(chats, tenant="t")
    assert chats.blocks("b").held == 0
    assert chats.blocks("b").note
    chats.drain()
    assert chats.finished(running)


def test_a_fork_of_a_session_whose_turn_runs_has_the_turns_before_it() -> None:
    chats = Chats(blocks=40)
    chats.whole_turn("a", PROMPT)
    request = chats.say("a", (*PROMPT, 7, 8), 8)
    chats.step()
    fork(chats)
    assert (chats.blocks("a").state, chats.blocks("b").state) == (SessionState.ACTIVE, SessionState.IDLE)
    assert chats.blocks("b").held == 5
    chats.whole_turn("b", (*PROMPT, 9, 9))
    chats.drain()
    assert chats.finished(request)
    assert (chats.blocks("a").held, chats.blocks("b").held) == (7, 6)


def test_a_fork_goes_on_under_the_shared_names_that_its_session_began_with() -> None:
    chats = Chats(blocks=60)
    share(chats, PROMPT[:8])
    chats.whole_turn("a", PROMPT)
    chats.scheduler.client_pins.release(SHARED, "rules")
    assert fork(chats).num_shared == 2
    assert chats.blocks("b").held == 5
    chats.whole_turn("b", (*PROMPT, 7, 8))
    assert chats.updates[-1].usage.num_cached == 20
    chats.scheduler.session_holds.delete("", "b")
    assert fork(chats, PROMPT[:6]).num_shared == 1
    assert chats.blocks("b").held == 1


def test_a_forks_time_is_its_own() -> None:
    chats = Chats(blocks=30)
    chats.whole_turn("a", PROMPT)
    source = chats.scheduler.session_table.find("", "a")
    chats.scheduler.session_holds.fork(
        StoredSession("b", source.tenant, array("I", PROMPT).tobytes(), 90.0, 90.0), source, 0.0
    )
    chats.scheduler.expire(60.0)
    chats.scheduler.check()
    assert [session.session_id for session in chats.scheduler.session_table] == ["b"]
    assert chats.blocks("b").held == 5
    chats.scheduler.expire(90.0)
    assert chats.memory.counts().held == 0
