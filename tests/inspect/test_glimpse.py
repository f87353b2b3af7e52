"""A glimpse is what the ledger and the scheduler have, a tenant's is its own, and to take one changes
nothing."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct
from tests.engine.drafting import EagerSpeculator, Oracle
from tests.scheduler.chats import Chats
from tests.scheduler.served import Served, State
from tests.scheduler.test_pins import PROMPT as PINNED
from tests.scheduler.test_pins import pinned
from tests.scheduler.test_preemption import run_for
from tests.scheduler.test_transfers import PROMPT, finish, go_below, turn
from tests.tiny import request, tiny_engine

from octavo.engine.port import inspector_of
from octavo.inspect import inspector as module
from octavo.inspect.views import Glimpse, Totals, draw_map
from octavo.kernels.native_ops import NativeOps
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.quota import TenantPolicy
from octavo.params import Timeouts
from octavo.retention.client_pins import PinRequest


def look(served: Served, tenant: str | None = None, offloaded_from: int = 0) -> Glimpse:
    return inspector_of(served.scheduler).glimpse(0.0, offloaded_from, tenant)


def totals_of(glimpse: Glimpse) -> Totals:
    assert glimpse.pool.totals is not None
    return glimpse.pool.totals


def state_of(served: Served) -> object:
    """All that a glimpse could have spoiled, copied."""
    pool, live = served.memory.pool, served.scheduler.live
    return copy.deepcopy(
        (
            list(pool.holders),
            pool.name_of,
            pool.by_name,
            pool._next,
            [table.blocks for table in served.memory.holders],
            [sequence.seq_id for sequence in live.running],
            [sequence.seq_id for sequence in live.waiting],
            served.scheduler.context.events.recent(1000),
        )
    )


def crowded() -> Served:
    """Runs, waits, shares a prefix, is pinned and was evicted."""
    served = Served(blocks=24, rows=4, slots=50)
    pinned(served)
    for length in (8, 22, 9, 12, 30, 7):
        served.add(tuple(range(100, 100 + length)), 6, n=2 if length == 9 else 1)
    run_for(served, 3)
    return served


def test_tables_and_names_are_the_ledgers() -> None:
    served = crowded()
    for _ in range(12):
        glimpse = look(served)
        assert [(g.number, g.kind, g.tenant, g.label, g.blocks) for g in glimpse.tables] == [
            (table.number, holder.kind, holder.tenant, holder.label, table.blocks)
            for table, holder in served.memory.holders.items()
        ]
        assert glimpse.names == served.memory.pool.name_of
        assert (glimpse.pool.num_blocks, glimpse.pool.capacity, glimpse.pool.block_size) == (24, 24, 4)
        running = {s.table.number: (s.request.request_id, s.choice) for s in served.scheduler.live.running}
        told = {g.number: (g.request_id, g.choice) for g in glimpse.tables if g.kind is HolderKind.SEQUENCE}
        assert told == running
        if served.scheduler.has_work:
            served.step()


def test_what_a_glimpse_holds_does_not_change_with_the_pool() -> None:
    served = crowded()
    glimpse = look(served)
    before = copy.deepcopy((glimpse.names, [table.blocks for table in glimpse.tables], glimpse.requests))
    served.drain()
    assert (glimpse.names, [table.blocks for table in glimpse.tables], glimpse.requests) == before


def test_a_glimpse_changes_nothing() -> None:
    served = crowded()
    before = state_of(served)
    for tenant in (None, "", "a"):
        look(served, tenant)
        served.scheduler.check()
        assert state_of(served) == before


# -- requests ------------------------------------------------------------------------------------------------
def test_a_waiting_request_shows_why_and_its_place_and_a_running_one_neither() -> None:
    served = Served(rows=1)
    first, second, third = (
        served.add(8, 4),
        served.add(8, 4),
        served.add(8, 4, timeouts=Timeouts(total=9.0)),
    )
    run_for(served, 2)
    rows = {row.request_id: row for row in look(served).requests}
    assert [rows[i].place for i in (first, second, third)] == [None, 0, 1]
    [running], [waiting] = rows[first].sequences, rows[second].sequences
    assert (running.is_running, running.why, running.num_blocks) == (True, "", 3)
    assert (running.num_prompt, running.num_output, running.num_computed) == (8, 2, 9)
    assert (waiting.is_running, waiting.num_blocks) == (False, 0)
    assert waiting.why == "needs 1 rows, 0 free (setting max_seqs)"
    assert (rows[first].deadline, rows[third].deadline) == (None, 9.0)


def test_a_tenants_waiting_request_shows_words_without_others_numbers_and_no_place() -> None:
    served = Served(rows=1)
    served.add(8, 4, tenant="b")
    served.add(8, 4, tenant="a")
    run_for(served, 2)
    [row] = look(served, "a").requests
    assert row.place is None
    assert row.sequences[0].why == "as many sequences run as may (setting max_seqs)"


def test_a_preempted_request_counts_it_and_waits() -> None:
    served = Served(blocks=6, rows=4)
    late = served.add(8, 12, priority=-1)
    run_for(served, 2)
    served.add(12, 8)
    while served.state(late) is State.RUNNING:
        served.step()
    [row] = [row for row in look(served).requests if row.request_id == late]
    assert row.priority == -1
    assert (row.sequences[0].preemptions, row.sequences[0].is_running) == (1, False)


def test_drafts_are_counted_for_each_choice() -> None:
    garbage = EagerSpeculator(Oracle(), "garbage", 0, all_of_them=True)
    engine = tiny_engine(NativeOps(), speculator=garbage)
    engine.scheduler.submit(request(1, [5, 6, 7, 8], 40))
    drafted = 0
    while engine.has_work:
        engine.step()
        told = inspector_of(engine.scheduler).glimpse(0.0).requests
        for sequence in told[0].sequences if told else ():
            assert sequence.num_drafted >= drafted
            drafted = sequence.num_drafted
            assert sequence.num_accepted <= drafted
    assert drafted > 0


def test_choices_of_a_request_are_its_rows() -> None:
    served = Served()
    request_id = served.add(9, 6, n=3)
    run_for(served, 3)
    [row] = look(served).requests
    assert [s.choice for s in row.sequences] == [0, 1, 2]
    assert {(g.request_id, g.choice) for g in look(served).tables} == {(request_id, i) for i in range(3)}


# -- below, pins, sessions, tenants --------------------------------------------------------------------------
def test_the_window_of_below_goes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFLOADED_WINDOW", 7)
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    served.add(PROMPT, 2)
    while served.scheduler.has_work:
        finish(served, turn(served))
    tier = served.scheduler.transfers.tier
    assert tier is not None
    wanted = [name is not None and name in tier for name in served.memory.pool.name_of]
    assert 0 < sum(wanted) < 20
    seen, offloaded_from = dict[int, bool](), 0
    for first in (0, 7, 14):
        glimpse = look(served, offloaded_from=offloaded_from)
        assert glimpse.offloaded_from == first
        seen |= {first + i: bool(bit) for i, bit in enumerate(glimpse.offloaded)}
        offloaded_from += len(glimpse.offloaded)
    assert list(seen.values()) == wanted
    assert look(served, offloaded_from=offloaded_from).offloaded_from == 0, (
        "after the last block comes the first"
    )


def test_without_a_tier_nothing_is_offloaded() -> None:
    glimpse = look(crowded_without_tier())
    assert (set(glimpse.offloaded), len(glimpse.offloaded), totals_of(glimpse).tier) == ({0}, 24, None)


def crowded_without_tier() -> Served:
    served = Served(blocks=24)
    served.add(22, 4)
    run_for(served, 2)
    return served


def test_pins_and_sessions_show_what_is_held() -> None:
    chats = Chats(blocks=40)
    pinned(chats)
    chats.whole_turn("s", tuple(range(500, 522)))
    glimpse = look(chats)
    [pin], [session] = glimpse.pool.pins, glimpse.sessions
    assert (pin.name, pin.num_blocks, pin.num_held, pin.filling) == ("greeting", 5, 5, False)
    wanted = chats.blocks("s")
    assert (session.session_id, session.held, session.kept) == ("s", wanted.held, wanted.kept)
    assert session.held == session.num_blocks == 5
    assert {g.kind: len(g.blocks) for g in glimpse.tables} == {HolderKind.PIN: 5, HolderKind.SESSION: 5}


def test_a_session_whose_blocks_are_in_a_tier_shows_them_as_kept() -> None:
    chats = Chats(blocks=40, slots=50)
    chats.whole_turn("s", tuple(range(500, 522)))
    chats.settle()
    [session] = look(chats).sessions
    wanted = chats.blocks("s")
    assert (session.held, session.kept) == (wanted.held, wanted.kept) == (0, 5)


def test_a_pin_is_reported_while_it_fills() -> None:
    served = Served()
    served.scheduler.client_pins.open(PinRequest("greeting", PINNED, 60.0), served.next_id, 0.0)
    filler = served.add(PINNED, 1, fills_pin="greeting")
    served.step()
    glimpse = look(served)
    assert [(pin.name, pin.filling, pin.num_held) for pin in glimpse.pool.pins] == [("greeting", True, 0)]
    assert [(row.request_id, row.fills_pin) for row in glimpse.requests] == [(filler, "greeting")]


def test_the_operator_sees_each_tenants_share() -> None:
    served = Served(rows=1)
    served.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=5, maximum=20), TenantPolicy("b")])
    served.add(8, 4, tenant="a")
    served.add(8, 4, tenant="b")
    run_for(served, 2)
    told = {row.name: row for row in totals_of(look(served)).tenants}
    assert (told["a"].charged, told["a"].running, told["a"].waiting) == (3, 1, 0)
    assert (told["a"].guaranteed, told["a"].maximum) == (5, 20)
    assert (told["b"].charged, told["b"].running, told["b"].waiting) == (0, 0, 1)


# -- a tenant's ----------------------------------------------------------------------------------------------
def test_a_tenants_glimpse_is_its_own_part_of_the_whole() -> None:
    served = Served(blocks=60, rows=4)
    for i in range(6):
        served.add(9 + i, 8, tenant="ab"[i % 2])
    run_for(served, 3)
    whole, own = look(served), look(served, "a")
    assert {g.tenant for g in own.tables} == {"a"}
    ours = [g for g in whole.tables if g.tenant == "a"]
    places = list(dict.fromkeys(block for g in ours for block in g.blocks))
    assert [replace_struct(g, blocks=[places[number] for number in g.blocks]) for g in own.tables] == ours
    assert own.names == [whole.names[block] for block in places] + [None] * (60 - len(places))
    assert any(own.names)
    assert {row.request_id for row in own.requests} == {
        row.request_id for row in whole.requests if row.tenant == "a"
    }
    assert own.pool.totals is None
    assert totals_of(whole).tenants


def between(served: Served, num_blocks: int) -> None:
    """So many blocks become another tenant's."""
    if num_blocks:
        holder = Holder(HolderKind.STORE, "b", "b's", is_fixed=True)
        served.memory.reserve(served.memory.open(holder), 0, num_blocks * 4)


def lives_of(*taken: int) -> list[object]:
    """All that tenant a sees of its life beside one who takes so many blocks in between."""
    served, seen = Served(blocks=90, rows=8, slots=50, pins=30), list[object]()
    inspector = inspector_of(served.scheduler)
    for place, num_blocks in enumerate(taken):
        between(served, num_blocks)
        number = served.add(tuple(range(100 * place, 100 * place + 9)), 12, tenant="a", n=1 + place % 2)
        run_for(served, 2)
        own = look(served, "a")
        seen += [own.names, own.requests, own.pool, [(g.label, g.blocks) for g in own.tables]]
        seen += [draw_map(own), inspector.kv(0.0, "a")]
        seen.append(inspector.request(number, 0.0, "a"))
    return seen


def test_places_of_a_tenants_blocks_do_not_show_how_many_another_takes() -> None:
    alone = lives_of(0, 0, 0, 0, 0)
    assert alone == lives_of(3, 7, 0, 12, 1)
    assert alone == lives_of(0, 1, 9, 0, 2)


def test_a_tenants_blocks_have_one_number_in_every_view_and_its_pins_the_first() -> None:
    served = Chats(blocks=60)
    served.say("a", PROMPT, tenant="t")
    run_for(served, 3)
    between(served, 5)
    first = served.add(13, 8, tenant="t", n=2)
    run_for(served, 3)
    inspector = inspector_of(served.scheduler)
    own = look(served, "t")
    drawn = draw_map(own)
    assert [g.kind for g in own.tables] == [HolderKind.SESSION, HolderKind.SEQUENCE, HolderKind.SEQUENCE]
    told = inspector.request(first, 0.0, "t")
    assert told is not None
    tables = [[entry.block for entry in sequence.table] for sequence in told.sequences]
    assert tables == [g.blocks for g in own.tables[1:]]
    numbers = {block for g in own.tables for block in g.blocks}
    assert numbers == set(range(len(numbers)))
    assert {number for number, state in enumerate(drawn.states) if state != "."} == numbers
    shared = set(tables[0]) & set(tables[1])
    assert {number for number, state in enumerate(drawn.states) if state == "S"} == shared != set()
    assert {entry.holders for sequence in told.sequences for entry in sequence.table} == {1, 2}


def test_how_many_others_hold_a_block_is_not_reported() -> None:
    served = Served(blocks=60, rows=4)
    number = served.add(13, 8, tenant="a")
    run_for(served, 2)
    inspector = inspector_of(served.scheduler)
    before = inspector.request(number, 0.0, "a")
    table = served.memory.open(Holder(HolderKind.SEQUENCE, "b", "b's"))
    for block in served.scheduler.live.running[0].holder.blocks[:2]:
        served.memory.pool.retain(block)
        table.blocks.append(block)
    assert inspector.request(number, 0.0, "a") == before


def test_nothing_that_another_tenant_does_moves_a_number_of_a_tenants_glimpse() -> None:
    served = Served(blocks=60, rows=4, slots=50, pins=30)
    served.scheduler.tenants.set_policies([TenantPolicy("a"), TenantPolicy("b", maximum=30)])
    served.add(9, 8, tenant="a")
    run_for(served, 2)
    held = served.scheduler.live.running[0]
    before = look(served, "a")
    for i in range(5):  # waiting, of which nothing is computed yet
        served.add(9 + i, 4, tenant="b")
    assert look(served, "a") == before
    other = served.memory.open(replace(held.holder, tenant="b", label="b's", table=None))
    served.memory.reserve(other, 0, 40)
    assert look(served, "a") == before
    served.memory.close(other)
    assert look(served, "a") == before


def test_copies_on_their_way_are_no_tenants_own() -> None:
    served, kinds = Served(blocks=20, slots=50), set[HolderKind]()

    def seen() -> None:
        mine = [g for g in look(served).tables if g.tenant == "a"]
        kinds.update(g.kind for g in mine)
        assert look(served, "a").tables == tuple(g for g in mine if g.kind is HolderKind.SEQUENCE)

    served.add(PROMPT, 1, tenant="a")
    while served.scheduler.has_work or served.scheduler.transfers.could_store:
        transfers = turn(served)
        seen()
        finish(served, transfers)
    other = served.memory.open(Holder(HolderKind.SEQUENCE))
    served.memory.reserve(other, 0, 80)
    served.memory.close(other)
    served.add(PROMPT, 2, tenant="a")
    turn(served)
    seen()
    assert kinds >= {HolderKind.SEQUENCE, HolderKind.FETCH}


def test_others_many_requests_hide_none_of_a_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_GLIMPSED", 2)
    served = Served()
    for tenant in ("b", "b", "b", "a", "a", "a"):
        served.add(8, 4, tenant=tenant)
    assert [row.request_id for row in look(served, "a").requests] == [4, 5]
    assert [row.request_id for row in look(served).requests] == [1, 2]
