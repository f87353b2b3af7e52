"""Who is preempted, what it loses, and what of it is kept below."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served, State

from octavo.memory.holders import Holder, HolderKind
from octavo.retention.offload_stager import Loss
from octavo.retention.reclaim import Candidate, cheapest, choose
from octavo.scheduler.sequence import Sequence
from octavo.step.events import EventKind
from octavo.step.headroom import LEAST, MOST, Headroom
from octavo.step.step_times import StepTimes, StepWork
from octavo.types import BlockCopy, Move, StepPlan, Transfer, TransferDone


def sequence_of(served: Served, request_id: int) -> Sequence:
    return served.scheduler.live.sequences_of(request_id)[0]


def victims(served: Served, eligible: list[Sequence], needed: int) -> list[Sequence]:
    by_holder = {s.as_holder(): s for s in eligible}
    return [by_holder[h] for h in cheapest(list(by_holder), needed, served.scheduler.reclaimer._costs)]


def candidate(
    request_id: int, *, priority: int = 0, share: float = 0.0, gain: int = 10, loss: float = 10.0
) -> Candidate:
    served = Served()
    for _ in range(request_id):
        last = served.add(4, priority=priority)
    return Candidate((sequence_of(served, last).as_holder(),), priority, share, gain, loss)


def chosen(*candidates: Candidate, needed: int = 1) -> int:
    victim = choose(candidates, needed)
    assert victim is not None
    return victim.members[0].group


def test_priority_comes_before_share_and_share_before_loss() -> None:
    low, rich, cheap = (
        candidate(1, priority=-1, loss=99.0),
        candidate(2, share=0.5, loss=50.0),
        candidate(3, loss=1.0),
    )
    assert chosen(low, rich, cheap) == 1
    assert chosen(rich, cheap) == 2
    assert chosen(candidate(1, loss=9.0), cheap) == 3
    assert chosen(candidate(1), candidate(2)) == 2  # equal in all: the last in rank
    assert choose((), 1) is None


def test_who_frees_too_little_comes_after_who_frees_enough() -> None:
    small, large = candidate(2, gain=1, loss=5.0), candidate(1, gain=9, loss=90.0)
    assert chosen(small, large, needed=1) == 2
    assert chosen(small, large, needed=9) == 1
    # Nobody frees enough: the least loss for each block.
    assert chosen(small, large, needed=100) == 2
    assert chosen(candidate(2, gain=1, loss=11.0), large, needed=100) == 1
    # Whoever frees nothing is no gain, however cheap.
    assert chosen(candidate(2, gain=0, loss=0.0), large, needed=100) == 1


def run_for(served: Served, steps: int) -> list[StepPlan]:
    return [served.step() for _ in range(steps)]


def test_of_equals_the_one_that_loses_least_goes() -> None:
    served = Served(tokens=100)
    first, short, long = served.add(16, 30), served.add(7, 20), served.add(24, 20)
    run_for(served, 2)
    behind = served.scheduler.victims.behind(sequence_of(served, first))
    assert victims(served, behind, 1) == [sequence_of(served, short)]  # although `long` came last
    assert victims(served, behind, 7) == [sequence_of(served, long)]  # 7 blocks are missing: `short` has 3
    assert victims(served, [], 1) == []


def test_only_those_behind_the_winner_may_be_victims() -> None:
    served = Served(blocks=14, tokens=100)
    requests = [served.add(8, 30) for _ in range(3)]
    first = sequence_of(served, requests[0])
    while served.state(requests[0]) is not State.FINISHED:
        served.step()
        assert first.preemptions == 0
    assert served.scheduler.live.num_preemptions > 0
    while served.scheduler.has_work:
        served.step()


def test_choices_of_a_request_go_as_one() -> None:
    served = Served(tokens=100)
    first, group = served.add(16, 50), served.add(8, 20, n=3)
    run_for(served, 3)
    winner = sequence_of(served, first)
    members = victims(served, served.scheduler.victims.behind(winner), 1)
    assert [s.choice for s in members] == [2, 1, 0]  # last in rank first
    served.scheduler.preemption.preempt_all(members, winner)
    served.scheduler.check()
    assert [s.state for s in served.scheduler.live.sequences_of(group)] == [State.WAITING] * 3
    while served.scheduler.has_work:
        served.step()
    assert len(served.finished(group)) == 3


def test_a_choice_that_needs_a_block_takes_it_from_its_siblings_one_by_one() -> None:
    served = Served(tokens=100)
    group = served.add(8, 20, n=3)
    run_for(served, 3)
    behind = served.scheduler.victims.behind(sequence_of(served, group))
    assert [s.choice for s in victims(served, behind, 1)] == [2]


def test_what_others_hold_is_no_loss() -> None:
    served = Served(blocks=60, tokens=100)
    shared = tuple(range(1, 33))  # 8 blocks
    served.add(shared, 30)
    served.step()
    other = served.add((*shared, 50, 51), 30)
    run_for(served, 2)
    sequence = sequence_of(served, other)
    assert served.scheduler.staging.loss_of([sequence.as_holder()]) == Loss(sequence.num_planned - 32, 0)
    # Together they lose what they share, once.
    both = list(served.scheduler.live.running)
    loss = served.scheduler.staging.loss_of([s.as_holder() for s in both])
    assert loss.recomputed == sum(s.num_planned for s in both) - 32


# -- kept below


def crowded(staging: int = 10, slots: int = 100) -> tuple[Served, int, int]:
    """A winner that grows into the blocks of a victim with 6 full ones."""
    served = Served(blocks=20, tokens=100, slots=slots, staging=staging)
    winner, victim = served.add(40, 30), served.add(24, 20)
    return served, winner, victim


def until_preempted(served: Served) -> StepPlan:
    while True:
        plan = served.plan()
        served.commit(plan)
        if served.scheduler.live.num_preemptions:
            return plan
        finish(served, [t for t in plan.transfers if t.move is not Move.FORGET])


def told(served: Served) -> str:
    """The last event about a preemption."""
    return next(e.text for e in served.scheduler.events.recent(9) if e.kind is EventKind.PREEMPTED)


def stores(plan: StepPlan) -> list[Transfer]:
    return [t for t in plan.transfers if t.move is Move.STORE and t.block >= 20]


def finish(served: Served, transfers: list[Transfer], ok: bool = True, seconds: float = 0.0) -> None:
    for transfer in transfers:
        served.scheduler.transfers.finish(TransferDone(transfer.transfer_id, ok, seconds))
        served.scheduler.check()


def to_the_end(served: Served) -> list[Transfer]:
    """Serve to the end; transfers end one step after they began."""
    seen: list[Transfer] = []
    for _ in range(200):
        plan = served.scheduler.schedule(0.0)
        served.scheduler.check()
        if plan is not None:
            served.commit(plan)
            moved = [t for t in plan.transfers if t.move is not Move.FORGET]
            seen += moved
            finish(served, moved)
        if not served.scheduler.has_work:
            return seen
    raise AssertionError("it never ends")


def test_full_blocks_of_a_victim_are_copied_behind_the_pool_and_stored_from_there() -> None:
    served, _, victim = crowded()
    sequence = sequence_of(served, victim)
    plan = until_preempted(served)
    staged = stores(plan)
    names = sequence.chain.names
    assert len(staged) >= 6
    assert [t.name for t in staged] == names[: len(staged)]  # heads first
    copies = [copy for copy in plan.copies if copy.target >= 20]
    assert [copy.target for copy in copies] == [t.block for t in staged]
    assert served.memory.pool.find(names[0]) in (None, copies[0].source)
    assert served.scheduler.staging.num_kept == 1
    text = told(served)
    assert f"{len(staged)} blocks are kept in an offload tier" in text
    finish(served, staged)
    assert len(served.scheduler.arena.free) == 10
    moved = to_the_end(served)
    assert sum(t.move is Move.LOAD for t in moved) >= 1
    assert served.scheduler.live.tokens_recomputed < 4 * sequence.preemptions
    assert len(served.finished(victim)) == 1


def test_where_the_arena_is_full_the_rest_is_computed_again() -> None:
    served, _, victim = crowded(staging=2)
    sequence = sequence_of(served, victim)
    plan = until_preempted(served)
    assert [t.name for t in stores(plan)] == sequence.chain.names[:2]
    assert sequence.num_lost > 20
    # Nothing of it is left in the pool, and two blocks are below.
    text = told(served)
    assert "2 blocks are kept in an offload tier" in text
    assert f"{sequence.num_lost - 8} positions will be computed again" in text


@pytest.mark.parametrize("reason", ["no tier", "no arena", "slow loads", "slow stores"])
def test_what_is_cheaper_to_compute_is_computed_again(reason: str) -> None:
    served, _, victim = crowded(
        0 if reason in ("no tier", "no arena") else 10, 0 if reason == "no tier" else 99
    )
    scheduler = served.scheduler
    scheduler.context.times.observe(StepWork(prompt=100), 0.1)  # a block: 4 ms
    if reason == "slow loads":
        scheduler.transfers._load_s.add(0.005, 0.0)
    if reason == "slow stores":
        scheduler.transfers._load_s.add(0.002, 0.0)
        scheduler.arena._store_s.add(0.003, 0.0)
    plan = until_preempted(served)
    assert stores(plan) == []
    assert scheduler.staging.num_recomputed == 1
    text = told(served)
    assert "positions will be computed again" in text
    assert "kept in an offload tier" not in text
    finish(served, [t for t in plan.transfers if t.move is not Move.FORGET])
    to_the_end(served)
    assert len(served.finished(victim)) == 1
    assert scheduler.live.tokens_recomputed > 0


def test_a_store_that_fails_frees_its_place_and_nothing_is_found() -> None:
    served, _, victim = crowded()
    staged = stores(until_preempted(served))
    finish(served, staged, ok=False)
    tier = served.scheduler.transfers.tier
    assert tier is not None
    assert not any(t.name in tier for t in staged)
    assert len(served.scheduler.arena.free) == 10
    to_the_end(served)
    assert len(served.finished(victim)) == 1


def test_a_staged_block_is_not_used_again_before_its_store_has_ended() -> None:
    served, _, _ = crowded(staging=6)
    staged = stores(until_preempted(served))
    busy = {t.block for t in staged}
    assert len(busy) == 6
    for _ in range(10):
        plan = served.step()
        assert not busy & {copy.target for copy in plan.copies}
        assert not any(t.name in (served.scheduler.transfers.tier or ()) for t in staged)
    finish(served, staged)
    assert sorted(served.scheduler.arena.free) == list(range(20, 26))


def test_a_slot_is_forgotten_before_it_is_taken_for_a_kept_block() -> None:
    served, _, victim = crowded(slots=8)
    scheduler, tier = served.scheduler, served.scheduler.transfers.tier
    assert tier is not None
    run_for(served, 2)
    for name in (b"old" + bytes([i]) for i in range(8)):
        tier.begin_store(name)
        tier.end_store(name, True)
    tier.forget(b"old\x03")  # its slot is the next to be taken
    scheduler.preemption.preempt_all([sequence_of(served, victim)], None)
    plan = served.plan()
    first = plan.transfers[0]
    assert first.move is Move.FORGET
    assert [t.slot for t in plan.transfers if t.move is Move.STORE].count(first.slot) == 1


def test_who_still_owes_prompt_logprobs_keeps_nothing() -> None:
    served = Served(blocks=20, tokens=8, slots=100, staging=10)
    request = served.add(30, 4, prompt_logprobs=0)
    run_for(served, 2)
    sequence = sequence_of(served, request)
    assert served.scheduler.staging.loss_of([sequence.as_holder()]) == Loss(sequence.num_planned, 0)


def test_staged_blocks_do_not_hinder_a_resize() -> None:
    served = Served(blocks=20, tokens=100, slots=100, staging=10, capacity=30)
    served.add(40, 30)
    victim = served.add(24, 20)
    run_for(served, 3)
    served.scheduler.preemption.preempt_all([sequence_of(served, victim)], None)
    served.scheduler.check()
    assert served.scheduler.resizer.resize(18)
    served.scheduler.check()
    plan = served.plan()
    targets = {copy.target for copy in plan.copies}
    assert {t.block for t in plan.transfers if t.block >= 30} <= targets
    assert isinstance(plan.copies[0], BlockCopy)


def test_a_smaller_tier_than_the_victim_keeps_what_it_can() -> None:
    served, _, victim = crowded(slots=3)
    plan = until_preempted(served)
    assert len(stores(plan)) <= 3
    served.scheduler.check()
    finish(served, [t for t in plan.transfers if t.move is Move.STORE])
    to_the_end(served)
    assert len(served.finished(victim)) == 1


# -- headroom


def test_headroom_grows_with_what_preemptions_undo_and_shrinks_without() -> None:
    times = StepTimes()
    times.observe(StepWork(1), 1.0)
    headroom = Headroom(times)
    assert headroom.blocks(7, 1000) == 7
    headroom.record_undone(100.0)
    assert headroom.blocks(7, 1000) == 7, "it changes while a plan is made"
    headroom.observe(0.0)  # not measured
    assert headroom.blocks(7, 1000) == 7
    headroom.observe(1.0)
    assert headroom.blocks(7, 1000) > 14
    for _ in range(100):
        headroom.record_undone(100.0)
        headroom.observe(1.0)
    assert headroom.each == MOST
    assert headroom.blocks(7, 1000) == 7 * 16
    assert headroom.blocks(7, 100) == 25, "more than a quarter of the pool"
    assert headroom.blocks(7, 20) == 7
    for _ in range(10_000):
        headroom.observe(1.0)
    assert headroom.each == LEAST
    assert headroom.blocks(7, 1000) == 2


def test_what_is_forgotten_below_while_others_read_it_there_is_not_staged() -> None:
    served = Served(blocks=40, slots=50, staging=8, tokens=64)
    prompt = tuple(range(100, 135))

    def turn() -> list[Transfer]:
        plan = served.scheduler.schedule(0.0)
        served.scheduler.check()
        if plan is None:
            return []
        served.commit(plan)
        return list(plan.transfers)

    def finish(transfers: list[Transfer]) -> None:
        for transfer in transfers:
            served.scheduler.transfers.finish(TransferDone(transfer.transfer_id, ok=True))

    first = served.add(prompt, 1)
    while served.state(first) is not State.FINISHED or served.scheduler.transfers.could_store:
        finish(turn())
    table = served.memory.open(Holder(HolderKind.SEQUENCE))
    served.memory.reserve(table, 0, served.memory.num_available * served.memory.block_size)
    served.memory.close(table)  # all of it is below, and nothing in the pool
    served.add(prompt, 2)
    loads = turn()
    assert [load.move for load in loads] == [Move.LOAD] * 8
    served.scheduler.transfers.lose([load.name for load in loads])
    scored = served.add(prompt, 6, prompt_logprobs=0)  # which takes no hit, and publishes the same names
    turn()
    turn()
    served.scheduler.preemption.preempt_all([sequence_of(served, scored)], None)
    served.scheduler.check()
    finish(loads)
    served.drain()
