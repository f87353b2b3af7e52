"""Names that are kept below: nothing takes their slots, and others always find room."""

from __future__ import annotations

import pytest

from octavo.memory.tiers import OffloadTier


def name(i: int) -> bytes:
    return i.to_bytes(32, "little")


def filled(num_slots: int) -> OffloadTier:
    """Names 0, 1, ... in slots 0, 1, ..., the longest unused first."""
    return OffloadTier(num_slots, [(name(i), i) for i in range(num_slots)])


def store(tier: OffloadTier, i: int) -> int | None:
    slot = tier.begin_store(name(i))
    if slot is not None:
        tier.end_store(name(i), ok=True)
    return slot


def test_slots_of_kept_names_are_not_taken_and_the_longest_unused_other_one_is() -> None:
    tier = filled(8)
    assert tier.keep([name(0), name(1), name(3)])
    assert [store(tier, 100 + i) for i in range(3)] == [2, 4, 5]
    assert all(name(i) in tier for i in (0, 1, 3))
    assert (tier.num_stored, tier.num_kept) == (8, 3)


def test_a_name_is_kept_until_its_last_keeper_is_gone_and_is_then_taken_last() -> None:
    tier = filled(4)
    assert tier.keep([name(0)])
    assert tier.keep([name(0)])
    tier.unkeep([name(0)])
    assert [store(tier, 100 + i) for i in range(3)] == [1, 2, 3]
    tier.unkeep([name(0)])
    assert tier.num_kept == 0
    assert store(tier, 200) == 1  # name 100 is older than 0 is now
    assert name(0) in tier


def test_no_more_than_three_quarters_are_kept_and_a_refusal_changes_nothing() -> None:
    tier = filled(8)
    assert tier.kept_max == 6
    assert not tier.keep([name(i) for i in range(7)])
    assert tier.num_kept == 0
    assert tier.keep([name(i) for i in range(6)])
    assert tier.keep([name(0), name(5)])  # kept already
    assert not tier.keep([name(6)])
    assert [store(tier, 100 + i) for i in range(4)] == [6, 7, 6, 7]


def test_a_name_may_be_kept_before_it_is_stored() -> None:
    tier = OffloadTier(4)
    assert tier.keep([name(7)])
    assert store(tier, 7) is not None
    for i in range(20):
        assert store(tier, i + 100) is not None
    assert name(7) in tier


def test_damage_forgets_a_kept_name_whose_keepers_stay_until_they_let_go() -> None:
    tier = filled(4)
    assert tier.keep([name(2)])
    assert tier.begin_load(name(2)) == 2
    assert not tier.end_load(name(2), ok=False)
    assert name(2) not in tier
    assert tier.dropped == [2]
    assert tier.num_free == 1
    assert tier.num_kept == 1
    assert store(tier, 2) == 2  # recomputed: kept again
    assert [store(tier, 100 + i) for i in range(6)] == [0, 1, 3, 0, 1, 3]
    tier.unkeep([name(2)])
    assert tier.num_kept == 0


def test_a_kept_name_is_loaded_and_is_kept_still() -> None:
    tier = filled(2)
    assert tier.keep([name(0)])
    assert tier.begin_load(name(0)) == 0
    assert store(tier, 100) == 1
    assert tier.end_load(name(0), ok=True)
    assert store(tier, 101) == 1


@pytest.mark.parametrize("ok", [True, False])
def test_a_store_of_a_kept_name_that_fails_leaves_its_slot_free(ok: bool) -> None:
    tier = OffloadTier(4)
    assert tier.keep([name(1)])
    assert tier.begin_store(name(1)) is not None
    tier.end_store(name(1), ok)
    assert (name(1) in tier) == ok
    assert tier.num_free == 3 + (not ok)


def test_what_is_kept_while_it_goes_to_host_memory_is_stored_again_on_disk() -> None:
    tier = OffloadTier(4, num_host=2)
    name = b"a" * 32
    assert tier.begin_store(name) == 0 or tier.slots()[name] < 2
    assert tier.keep([name])
    tier.end_store(name, ok=True)
    assert name not in tier
    slot = tier.begin_store(name)
    assert slot is not None
    assert slot >= 2
    tier.end_store(name, ok=True)
    assert tier.can_keep(name)


def test_what_is_in_host_memory_leaves_it_to_be_kept() -> None:
    tier = OffloadTier(4, num_host=2)
    name = b"b" * 32
    tier.begin_store(name)
    tier.end_store(name, ok=True)
    assert name in tier
    assert not tier.can_keep(name)
    assert tier.keep([name])
    assert name not in tier


def test_host_memory_alone_keeps_nothing() -> None:
    assert not OffloadTier(4, num_host=4).keep([b"c" * 32])


def test_of_names_that_are_kept_no_more_the_tail_is_forgotten_before_the_head() -> None:
    tier = OffloadTier(8)
    chain = [b"head", b"middle", b"tail"]
    for name in chain:
        tier.begin_store(name)
        tier.end_store(name, True)
    assert tier.keep(chain)
    tier.unkeep(chain)
    assert tier.names() == [b"tail", b"middle", b"head"]
