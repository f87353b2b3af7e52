"""Sessions that begin with what an operator shares with all tenants: whose names, and who is charged."""

from __future__ import annotations

import pytest
from tests.scheduler.chats import PROMPT, Chats, resume
from tests.scheduler.served import State
from tests.scheduler.test_transfers import finish, turn

from octavo.errors import SessionRefused
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.retention.client_pins import PinRequest
from octavo.retention.session_table import SessionState


def share(chats: Chats, tokens: tuple[int, ...]) -> None:
    """What an operator pins for all."""
    order = PinRequest("rules", tokens, 60.0, tenant=SHARED)
    chats.scheduler.client_pins.open(order, chats.next_id, 0.0)
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
    assert chats.scheduler.session_table.find("", "a").num_shared == 2
    chats.scheduler.client_pins.release(SHARED, "rules")
    longer = (*PROMPT, 7, 8)
    chats.whole_turn("a", longer)
    assert chats.updates[-1].usage.num_cached == 20
    share(chats, PROMPT[:16])  # and more of it
    chats.whole_turn("a", (*longer, 7, 9))
    assert chats.updates[-1].usage.num_cached == 24
    assert chats.scheduler.session_table.find("", "a").num_shared == 2
    chats.whole_turn("a", (*PROMPT[:8], *range(700, 712)))  # it extends the shared names, and no more
    assert (chats.updates[-1].usage.num_cached, chats.scheduler.session_table.find("", "a").num_shared) == (
        8,
        2,
    )
    chats.whole_turn("a", (*PROMPT[:4], *range(700, 712)))  # not even these: what is pinned now counts
    assert chats.scheduler.session_table.find("", "a").num_shared == 1


def bounded_chats(maximum: int = 6) -> Chats:
    """Prefixes of 5 blocks may be shared one at a time."""
    chats = Chats(blocks=60)
    chats.scheduler.tenants.set_policies(
        [TenantPolicy(SHARED, maximum=maximum), TenantPolicy("t", maximum=20)]
    )
    return chats


def test_what_a_session_keeps_of_an_ended_shared_prefix_keeps_no_new_one_out() -> None:
    chats = bounded_chats()
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, tenant="t")
    chats.drain()
    charged = chats.memory.quotas.charged
    assert (chats.blocks().held, charged(SHARED), charged("t")) == (5, 5, 0)
    chats.scheduler.client_pins.release(SHARED, "rules")
    assert (chats.blocks().held, charged(SHARED), charged("t")) == (5, 0, 0)
    share(chats, tuple(range(700, 720)))
    assert (chats.blocks().held, charged(SHARED)) == (5, 5)
    assert chats.scheduler.pins.find(SHARED, "rules") is not None


def test_a_turn_that_runs_on_with_an_ended_shared_prefix_keeps_no_new_one_out() -> None:
    chats = bounded_chats()
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, 12, tenant="t")
    chats.step()
    chats.scheduler.client_pins.release(SHARED, "rules")
    share(chats, tuple(range(700, 720)))  # the turn ends meanwhile, and its session keeps its blocks
    assert (chats.blocks().held, chats.memory.quotas.charged(SHARED)) == (8, 5)


def test_what_a_session_computes_again_of_an_ended_shared_prefix_is_not_charged_to_what_is_shared() -> None:
    chats = bounded_chats()
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, tenant="t")
    chats.drain()
    chats.scheduler.client_pins.release(SHARED, "rules")
    chats.scheduler.warm_pins.remove(chats.scheduler.session_table.get("a").hold)
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
    chats.scheduler.client_pins.release(SHARED, "rules")
    share(chats, PROMPT[:16])
    assert (chats.updates[-1].usage.num_cached, chats.memory.quotas.charged(SHARED)) == (12, 4)
    assert chats.memory.quotas.charged("t") == 0


def test_a_session_that_loads_an_ended_shared_prefix_is_not_charged_to_what_is_shared() -> None:
    chats = Chats(blocks=60, slots=50)
    chats.scheduler.tenants.set_policies([TenantPolicy(SHARED, maximum=6), TenantPolicy("t", maximum=20)])
    share(chats, PROMPT[:20])
    chats.say("a", PROMPT, tenant="t")
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    chats.settle()
    chats.scheduler.client_pins.release(SHARED, "rules")
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


@pytest.mark.parametrize(("limit", "state"), [(1, None), (2, SessionState.SUSPENDED)])
def test_a_session_whose_shared_prefix_may_not_be_stored_is_refused_and_not_left_waiting(
    limit: int, state: SessionState | None
) -> None:
    chats = Chats(blocks=60, slots=50)
    chats.scheduler.tenants.set_policies([TenantPolicy(SHARED, disk_maximum=limit), TenantPolicy("t")])
    chats.scheduler.transfers.is_worth_it = lambda: False  # nothing goes down before somebody asks
    share(chats, PROMPT[:8])
    chats.say("a", PROMPT, tenant="t")
    while chats.scheduler.has_work:
        chats.moving += turn(chats)
    sessions, table = chats.scheduler.session_holds, chats.scheduler.session_table
    if state is None:
        with pytest.raises(SessionRefused, match=r"what is shared may not take that many .*`disk` of tenant"):
            sessions.suspend("t", "a")
        assert table.find("t", "a").state is SessionState.IDLE
        return
    sessions.suspend("t", "a")
    chats.settle()
    assert table.find("t", "a").state is state


def test_a_session_that_began_under_its_own_names_keeps_them_when_its_prefix_is_shared() -> None:
    chats = Chats(blocks=60)
    chats.whole_turn("a", PROMPT)
    share(chats, PROMPT[:8])
    chats.whole_turn("a", (*PROMPT, 7, 8))
    assert chats.updates[-1].usage.num_cached == 20
    assert chats.scheduler.session_table.find("", "a").num_shared == 0
    chats.whole_turn("b", PROMPT)
    assert chats.scheduler.session_table.find("", "b").num_shared == 2


def test_a_restored_session_finds_its_blocks_in_a_tier_although_their_shared_prefix_is_not_pinned() -> None:
    chats = Chats(blocks=60, slots=50)
    share(chats, PROMPT[:8])
    chats.whole_turn("a", PROMPT)
    chats.settle()
    num_shared = chats.scheduler.session_table.find("", "a").num_shared
    chats.scheduler.session_holds.delete("", "a")
    chats.scheduler.client_pins.release(SHARED, "rules")
    chats.settle()
    chats.restore("a", PROMPT, 5.0, num_shared=num_shared)
    chats.scheduler.check()
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
