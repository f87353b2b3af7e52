"""Host slots are filled first, what leaves them moves on to disk, and what is old on disk is forgotten."""

from __future__ import annotations

from octavo.memory.tiers import OffloadTier, SlotMove


def store(tier: OffloadTier, *names: bytes) -> list[int | None]:
    slots = []
    for name in names:
        slots.append(tier.begin_store(name))
        if slots[-1] is not None:
            tier.end_store(name, True)
    return slots


def test_the_least_recently_used_of_host_memory_moves_on_and_the_one_of_the_disk_is_forgotten() -> None:
    tier = OffloadTier(4, num_host=2)
    assert store(tier, b"a", b"b") == [0, 1]
    tier.begin_load(b"a")
    tier.touch(b"a")
    tier.end_load(b"a", True)
    assert store(tier, b"c") == [1]
    assert tier.moved == [SlotMove(b"b", 1, 2)]
    assert store(tier, b"d", b"e") == [0, 1]
    assert tier.moved[1:] == [SlotMove(b"a", 0, 3), SlotMove(b"c", 1, 2)]
    assert b"b" not in tier
    assert (tier.num_evictions, tier.num_stored, tier.num_in_host) == (1, 4, 2)
    assert tier.slots() == {b"a": 3, b"c": 2, b"d": 0, b"e": 1}
    assert tier.names() == [b"a", b"c", b"d", b"e"]


def test_host_memory_alone_forgets_its_least_recently_used() -> None:
    tier = OffloadTier(2, num_host=2)
    assert store(tier, b"a", b"b", b"c") == [0, 1, 0]
    assert tier.moved == []
    assert (b"a" in tier, b"b" in tier, tier.num_evictions) == (False, True, 1)


def test_what_is_loading_stays_where_it_is_and_the_store_goes_elsewhere() -> None:
    tier = OffloadTier(2, num_host=1)
    store(tier, b"a")
    assert tier.begin_load(b"a") == 0
    assert store(tier, b"b") == [1]
    tier.begin_load(b"b")
    assert store(tier, b"c") == [None]
    assert tier.moved == []
    tier.end_load(b"a", True)
    assert store(tier, b"c") == [0]
    assert tier.moved == []  # nothing on disk could be taken for it
    assert b"a" not in tier


def test_a_name_that_is_forgotten_while_it_loads_keeps_its_slot_until_the_load_has_ended() -> None:
    tier = OffloadTier(1)
    store(tier, b"a")
    tier.begin_load(b"a")
    tier.begin_load(b"a")
    tier.forget(b"a")
    assert b"a" not in tier
    assert not tier.end_load(b"a", True)
    assert store(tier, b"b") == [None], "its slot is read"
    assert not tier.end_load(b"a", True)
    assert store(tier, b"b") == [0]
    assert tier.names() == [b"b"]


def test_a_name_that_is_forgotten_while_it_is_stored_is_not_found_afterwards() -> None:
    tier = OffloadTier(1)
    assert tier.begin_store(b"a") == 0
    tier.forget(b"a")
    tier.end_store(b"a", True)
    assert b"a" not in tier
    assert store(tier, b"b") == [0]


def test_a_move_that_failed_loses_the_name_unless_it_is_elsewhere_by_now() -> None:
    tier = OffloadTier(3, num_host=1)
    store(tier, b"a", b"b")
    (moved,) = tier.moved
    tier.end_move(moved, True)
    assert b"a" in tier
    tier.end_move(moved, False)
    assert b"a" not in tier
    assert tier.dropped == [moved.target]
    tier.end_move(moved, False)
    assert tier.dropped == [moved.target]


def test_names_on_disk_that_no_one_uses_are_forgotten_a_few_at_a_time() -> None:
    kept = [(bytes([i]), i) for i in range(40)]
    tier = OffloadTier(50, kept, max_age_s=100.0)
    tier.expire(1000.0)
    assert tier.num_stored == 40
    for name, _ in kept[:5]:
        tier.begin_load(name)
        tier.end_load(name, True)
    tier.expire(1100.0)
    assert tier.num_expired == 0
    tier.expire(1099.0 + 2.0)
    assert (tier.num_expired, tier.num_stored, len(tier.dropped)) == (16, 24, 16)
    tier.expire(1101.0)
    tier.begin_load(kept[39][0])  # it was used in time
    tier.expire(1101.0)
    assert set(tier.names()) == {kept[39][0]}
    tier.expire(5000.0)
    assert tier.num_stored == 1  # on its way up
    tier.end_load(kept[39][0], True)
    tier.expire(5000.0)
    assert tier.num_stored == 0


def test_host_memory_has_no_age() -> None:
    tier = OffloadTier(2, num_host=1, max_age_s=1.0)
    tier.expire(0.0)
    store(tier, b"a", b"b")
    tier.expire(100.0)
    assert tier.names() == [b"b"]
