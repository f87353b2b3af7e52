"""Names that are in no tier any more: which are remembered, why they are gone, and how old they were."""

from __future__ import annotations

from octavo.memory.changes import Place
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.name_history import AGES_S, Cause, Departure, NameHistory
from octavo.memory.tiers import OffloadTier

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def test_the_table_is_bounded_and_drops_the_name_that_left_first() -> None:
    history = NameHistory(gone_max=2)
    for name in (A, B, A, C):
        history.leave(name, Cause.EVICTED)
    assert list(history.names()) == [A, C]
    assert history.find(B) is None


def test_a_name_that_comes_back_is_not_gone() -> None:
    history = NameHistory()
    history.leave(A, Cause.EVICTED, 7)
    assert history.find(A) == Departure(0.0, Cause.EVICTED, 7)
    history.arrive(A, Place.POOL)
    assert (history.find(A), len(history)) == (None, 0)


def test_a_name_is_gone_when_it_has_left_the_last_tier_that_had_it() -> None:
    pool, tier = {A: 1}, {A: 2}
    history = NameHistory()
    history.places = [pool, tier]
    del pool[A]
    history.leave(A, Cause.EVICTED, 7)
    assert history.find(A) is None
    del tier[A]
    history.leave(A, Cause.UNREADABLE)
    assert history.find(A) == Departure(0.0, Cause.UNREADABLE)


def test_an_age_is_counted_up_to_the_bound_that_it_does_not_exceed() -> None:
    history = NameHistory()
    for now, since in ((1.0, 0.0), (61.0, 0.0), (10.0, None), (200_000.0, 0.0)):
        history.clock = lambda now=now: now  # type: ignore[misc]
        history.note_hits(Place.DISK, [since])
    ages = history.ages_at_hit[Place.DISK]
    assert {bound: n for bound, n in zip((*AGES_S, None), ages.counts, strict=True) if n} == {
        1.0: 1,
        300.0: 1,
        None: 1,
    }
    assert ages.seconds == 200_062.0


def filled(num_blocks: int, *names: bytes) -> Ledger:
    """A pool whose first blocks are cached under these names, since second 1, 2 and so on."""
    memory = Ledger(num_blocks, 1)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    for count in range(1, len(names) + 1):
        memory.history.clock = lambda count=count: float(count)  # type: ignore[misc]
        memory.reserve(table, count - 1, count)
        memory.publish(table, names[:count], count)
    memory.close(table)
    memory.history.clock = lambda: 10.0
    return memory


def test_an_evicted_name_is_gone_for_the_request_that_took_its_block() -> None:
    memory = filled(2, A, B)
    table = memory.open(Holder(HolderKind.SEQUENCE, request_id=17))
    memory.reserve(table, 0, 1)
    assert memory.history.find(B) == Departure(10.0, Cause.EVICTED, 17)
    assert memory.history.find(A) is None
    assert memory.history.ages_at_eviction[Place.POOL].seconds == 8.0
    memory.publish(table, [B], 1)
    assert memory.history.find(B) is None


def test_a_smaller_pool_and_a_poisoned_request_lose_names() -> None:
    memory = filled(3, A, B, C)
    memory.resize(2, ())
    [lost] = memory.history.names()
    assert memory.history.find(lost) == Departure(10.0, Cause.RESIZED)
    rest = {A, B, C} - {lost}
    memory.forget([*rest, b"never named" * 3])
    assert {memory.history.find(name) for name in rest} == {Departure(10.0, Cause.POISONED)}
    assert len(memory.history) == 3


def test_a_block_that_moves_keeps_its_age() -> None:
    memory = filled(3, A, B, C)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    memory.adopt(table, [C])
    assert memory.resize(2, ()) is not None
    assert memory.pool.named_at[memory.pool.by_name[C]] == 3.0


def with_tier(memory: Ledger, num_slots: int, num_host: int = 0) -> OffloadTier:
    tier = OffloadTier(num_slots, num_host=num_host)
    memory.attach(tier)
    return tier


def test_what_the_tier_has_is_not_gone_until_the_tier_evicts_it() -> None:
    memory = filled(3, A)
    tier = with_tier(memory, 1)
    tier.begin_store(A)
    tier.end_store(A, True)
    memory.pool.drop_cached(1)
    assert memory.history.find(A) is None
    memory.history.clock = lambda: 30.0
    tier.begin_store(B)
    assert memory.history.find(A) == Departure(30.0, Cause.EVICTED)
    assert memory.history.ages_at_eviction[Place.DISK].seconds == 20.0


def test_what_moves_from_host_memory_to_disk_is_not_gone() -> None:
    memory = Ledger(1, 1)
    tier = with_tier(memory, 2, num_host=1)
    for name in (A, B):
        tier.begin_store(name)
        tier.end_store(name, True)
    [moved] = tier.moved
    assert (moved.name, tier.place_of(A), tier.place_of(B)) == (A, Place.DISK, Place.HOST)
    assert memory.history.find(A) is None
    assert sum(memory.history.ages_at_eviction[Place.HOST].counts) == 1
    tier.end_move(moved, False)
    assert memory.history.find(A) == Departure(0.0, Cause.UNREADABLE)


def test_why_a_tier_has_a_name_no_more_is_remembered() -> None:
    memory = Ledger(1, 1)
    tier = with_tier(memory, 4)
    for name in (A, B, C):
        tier.begin_store(name)
        tier.end_store(name, name != C)
    tier.begin_load(A)
    tier.end_load(A, False)
    tier.forget(B, Cause.BOUNDED)
    causes = [departure.cause for name in (A, B, C) if (departure := memory.history.find(name)) is not None]
    assert causes == [Cause.UNREADABLE, Cause.BOUNDED, Cause.UNREADABLE]
    assert [cause.is_loss for cause in causes] == [True, False, True]


def test_a_new_ledger_goes_on_from_an_earlier_one_whose_pool_is_lost() -> None:
    old = filled(3, A, B)
    old.history.leave(C, Cause.EVICTED, 5)
    new = Ledger(3, 1)
    tier = OffloadTier(1, [(A, 0)])
    new.attach(tier)
    new.history.continue_from(old.history, old.pool.by_name)
    assert new.history.find(A) is None
    assert new.history.find(B) == Departure(0.0, Cause.RESTARTED)
    assert new.history.find(C) == Departure(10.0, Cause.EVICTED, 5)
