"""Cold blocks: the ledger's tables with a cold prefix, and what the tiers' ledger holds for them."""

from __future__ import annotations

import pytest

from octavo.memory.check import check
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.table import BlockTable
from octavo.memory.tiers import OffloadTier
from octavo.types import COLD_FIRST, BlockCopy

NAMES = [bytes([i]) * 32 for i in range(8)]
SIZE = 4


def stored(tier: OffloadTier, names: list[bytes]) -> None:
    for name in names:
        tier.begin_store(name)
        tier.end_store(name, True)


def ledger_over(num_slots: int = 8, num_blocks: int = 8, num_readable: int | None = None) -> Ledger:
    memory = Ledger(num_blocks, SIZE)
    memory.tier = OffloadTier(num_slots, num_readable=num_slots if num_readable is None else num_readable)
    return memory


def opened(memory: Ledger, positions: int) -> BlockTable:
    """A table whose full blocks are published."""
    table = memory.open(Holder(HolderKind.SEQUENCE))
    assert memory.reserve(table, 0, positions) is not None
    memory.publish(table, NAMES, positions)
    return table


def test_what_is_stored_becomes_cold_oldest_first_and_its_blocks_are_unheld() -> None:
    memory = ledger_over()
    table = opened(memory, 5 * SIZE + 1)
    assert memory.tier is not None
    stored(memory.tier, NAMES[:3])
    assert memory.count_cold_candidates(table, 9) == 3
    assert memory.make_cold(table, 2) == [0, 1]
    assert table.cold == NAMES[:2]
    assert len(table) == 6
    assert memory.num_available == 8 - 4
    slots = [memory.tier.slot_of(name) for name in NAMES[:2]]
    assert memory.entries(table)[:2] == [COLD_FIRST + slot for slot in slots if slot is not None]
    assert memory.find_prefix(NAMES) == 5  # the pool finds them until it takes their place
    check(memory)


def test_positions_behind_a_cold_prefix_are_written_copied_and_cut_by_their_own_index() -> None:
    memory = ledger_over()
    table = opened(memory, 4 * SIZE + 1)
    assert memory.tier is not None
    stored(memory.tier, NAMES[:3])
    memory.make_cold(table, 3)
    twin = memory.fork(table, Holder(HolderKind.SEQUENCE))
    assert memory.tier.readers() == dict.fromkeys(NAMES[:3], 2)
    tail = twin.blocks[-1]
    reservation = memory.reserve(twin, 4 * SIZE + 1, 5 * SIZE + 1)
    assert reservation is not None
    assert reservation.first_index == 4
    assert reservation.copies == (BlockCopy(tail, twin.blocks[1]),)
    memory.truncate(twin, 4 * SIZE + 2)
    assert len(twin) == 5
    assert memory.publish(twin, NAMES, 4 * SIZE + 2) == []
    memory.close(twin)
    memory.close(table)
    assert not memory.tier.readers()
    check(memory)


def test_a_slot_that_is_read_is_not_taken_and_a_name_forgotten_meanwhile_leaves_it_when_no_one_reads_it() -> (
    None
):
    memory = ledger_over(num_slots=4)
    table, tier = opened(memory, 3 * SIZE), memory.tier
    assert tier is not None
    stored(tier, NAMES[:2])
    memory.make_cold(table, 2)
    stored(tier, NAMES[4:8])  # two slots for four names
    assert all(name in tier for name in NAMES[:2])
    tier.forget(NAMES[0])
    assert NAMES[0] not in tier
    assert tier.is_read(NAMES[0])
    assert memory.entries(table)[0] >= COLD_FIRST
    memory.close(table)
    assert not tier.is_read(NAMES[0])
    assert tier.slot_of(NAMES[1]) is not None
    assert NAMES[0] not in tier.slots()


def test_a_table_begins_with_what_is_offloaded_once_that_is_known_to_be_right() -> None:
    memory = Ledger(4, SIZE)
    tier = memory.tier = OffloadTier(8, [(name, slot) for slot, name in enumerate(NAMES)], num_readable=6)
    assert not tier.may_read(NAMES[0])
    assert tier.could_read(NAMES[0])
    assert not tier.could_read(NAMES[7])  # attention does not reach its slot
    for name in NAMES[:3]:
        tier.begin_load(name)
        assert tier.end_load(name, True)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    memory.adopt_cold(table, NAMES[:3])
    assert table.num_published == 3
    assert memory.reserve(table, 3 * SIZE, 3 * SIZE + 2) is not None
    with pytest.raises(AssertionError, match="cold blocks are not written"):
        memory.reserve(table, SIZE, 2 * SIZE)
    check(memory)


def test_what_moves_to_disk_cannot_become_cold_before_it_is_there() -> None:
    tier = OffloadTier(6, num_host=2, num_readable=6)
    stored(tier, NAMES[:3])
    (moved,) = tier.moved
    assert moved.name == NAMES[0]
    assert not tier.may_read(NAMES[0])
    tier.end_move(moved, True)
    assert tier.may_read(NAMES[0])


def test_names_are_kept_alongside_what_requests_claim() -> None:
    tier = OffloadTier(16, num_readable=16)
    assert tier.kept_max == 12
    assert tier.num_to_read == 14
    tier.num_claimed = 10
    assert tier.kept_max == 6
    stored(tier, NAMES)
    assert not tier.keep(NAMES[:7])
    assert tier.keep(NAMES[:6])
    assert tier.num_to_read == 10
