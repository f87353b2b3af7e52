"""The ledger: tables, forks, copy-on-write, names; with the smallest numbers that show each case."""

from __future__ import annotations

from array import array

import pytest

from octavo.memory.check import check
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import BlockCounts, Ledger
from octavo.memory.names import NameChain, root_name
from octavo.memory.table import BlockTable
from octavo.types import BlockCopy
from octavo.units import blocks_for


def names_of(tokens: list[int], block_size: int, tenant: bytes = b"t") -> list[bytes]:
    chain = NameChain(root_name(tenant), block_size)
    chain.extend(array("I", tokens))
    return chain.names


def filled(memory: Ledger, tokens: list[int]) -> BlockTable:
    table = memory.open(Holder(HolderKind.SEQUENCE))
    assert memory.reserve(table, 0, len(tokens)) is not None
    memory.publish(table, names_of(tokens, memory.block_size), len(tokens))
    return table


def test_600_tokens_in_blocks_of_16_take_38_blocks_and_waste_8_slots() -> None:
    memory = Ledger(40, 16)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(table, 0, 600)
    assert len(table) == 38
    assert len(table) * 16 - 600 == 8
    assert blocks_for(2048, 16) == 128


def test_reserve_takes_one_block_at_a_time_and_only_when_needed() -> None:
    memory = Ledger(4, 4)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    for position in range(9):
        reservation = memory.reserve(table, position, position + 1)
        assert reservation is not None
        assert len(reservation.blocks) == int(position % 4 == 0)
    assert len(table) == 3


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    memory = Ledger(2, 4)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(table, 0, 4)
    before = (list(table.blocks), memory.counts())
    assert memory.reserve(table, 4, 13) is None
    assert (table.blocks, memory.counts()) == before
    check(memory)


def test_the_first_write_to_a_shared_tail_copies_it_and_the_last_holder_writes_in_place() -> None:
    memory = Ledger(8, 4)
    parent = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(parent, 0, 6)
    child = memory.fork(parent, Holder(HolderKind.SEQUENCE))
    shared = parent.blocks[1]
    reservation = memory.reserve(child, 6, 7)
    assert reservation is not None
    assert reservation.copies == (BlockCopy(shared, child.blocks[1]),)
    assert child.blocks[0] == parent.blocks[0]
    again = memory.reserve(parent, 6, 7)
    assert again is not None
    assert again.copies == ()
    assert parent.blocks[1] == shared
    check(memory)


def test_a_shared_full_block_is_not_copied_when_the_next_one_begins() -> None:
    memory = Ledger(8, 4)
    parent = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(parent, 0, 4)
    child = memory.fork(parent, Holder(HolderKind.SEQUENCE))
    for table in (parent, child):
        reservation = memory.reserve(table, 4, 5)
        assert reservation is not None
        assert reservation.copies == ()
    assert parent.blocks[1] != child.blocks[1]


def test_writing_back_into_a_published_block_replaces_it() -> None:
    memory = Ledger(8, 4)
    table = filled(memory, list(range(8)))
    published = table.blocks[1]
    memory.truncate(table, 6)
    reservation = memory.reserve(table, 6, 7)
    assert reservation is not None
    assert reservation.copies == (BlockCopy(published, table.blocks[1]),)
    assert table.num_published == 1
    check(memory)


def test_a_prefix_is_adopted_by_name_and_a_second_holder_keeps_it() -> None:
    memory = Ledger(8, 4)
    first = filled(memory, list(range(8)))
    second = memory.open(Holder(HolderKind.SEQUENCE))
    assert memory.adopt(second, names_of(list(range(8)), 4)) == 2
    assert second.blocks == first.blocks
    memory.close(first)
    assert memory.counts().held == 2
    check(memory)


def test_another_tenant_finds_nothing_of_the_same_tokens() -> None:
    memory = Ledger(8, 4)
    filled(memory, list(range(8)))
    assert memory.find_prefix(names_of(list(range(8)), 4, b"t")) == 2
    assert memory.find_prefix(names_of(list(range(8)), 4, b"other")) == 0


def test_the_same_tokens_after_another_prefix_have_another_name() -> None:
    assert names_of([1, 2, 3, 4, 9, 9], 2)[2] != names_of([5, 6, 7, 8, 9, 9], 2)[2]


def test_released_tail_is_evicted_before_head() -> None:
    memory = Ledger(3, 4)
    names = names_of(list(range(12)), 4)
    memory.close(filled(memory, list(range(12))))
    memory.reserve(memory.open(Holder(HolderKind.SEQUENCE)), 0, 1)
    assert memory.find_prefix(names) == 2
    memory.reserve(memory.open(Holder(HolderKind.SEQUENCE)), 0, 1)
    assert memory.find_prefix(names) == 1


def test_publishing_a_name_that_exists_swaps_the_entry_and_frees_the_duplicate() -> None:
    memory = Ledger(8, 4)
    first, second = memory.open(Holder(HolderKind.SEQUENCE)), memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(first, 0, 5)
    memory.reserve(second, 0, 5)
    names = names_of([1, 2, 3, 4], 4)
    assert memory.publish(first, names, 5) == []
    assert memory.publish(second, names, 5) == [0]
    assert second.blocks[0] == first.blocks[0]
    assert memory.counts().held == 3
    check(memory)


def test_forks_that_share_a_full_block_publish_it_once() -> None:
    memory = Ledger(8, 4)
    parent = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(parent, 0, 4)
    child = memory.fork(parent, Holder(HolderKind.SEQUENCE))
    names = names_of([1, 2, 3, 4], 4)
    assert memory.publish(parent, names, 4) == []
    assert memory.publish(child, names, 4) == []
    assert child.num_published == 1
    check(memory)


def test_what_a_poisoned_request_wrote_is_never_found_again() -> None:
    memory = Ledger(8, 4)
    table = filled(memory, list(range(8)))
    memory.forget(names_of(list(range(8)), 4))
    memory.close(table)
    assert memory.find_prefix(names_of(list(range(8)), 4)) == 0
    check(memory)


def test_what_only_a_copy_on_its_way_holds_is_charged_to_no_one_who_held_it_before() -> None:
    memory, names = Ledger(10, 4), [b"a", b"b"]
    table = memory.open(Holder(HolderKind.SEQUENCE, "t"))
    memory.reserve(table, 0, 8)
    memory.publish(table, names, 8)
    copies = [memory.open(Holder(HolderKind.STORE, "t"), charges=False) for _ in range(2)]
    for copy, name in zip(copies, names, strict=True):
        memory.adopt(copy, [name])
    assert memory.quotas.charged("t") == 2
    memory.close(table)
    check(memory)
    assert (memory.quotas.charged("t"), memory.counts().held) == (0, 2)
    again = memory.open(Holder(HolderKind.SEQUENCE, "t"))
    assert memory.adopt(again, names) == 2
    memory.close(copies[0])
    check(memory)
    assert memory.quotas.charged("t") == 2
    memory.close(again)
    check(memory)
    assert (memory.quotas.charged("t"), memory.counts().held) == (0, 1)
    memory.close(copies[1])
    check(memory)
    assert memory.counts().cached == 2


def test_check_notices_a_count_that_is_wrong() -> None:
    memory = Ledger(4, 4)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(table, 0, 4)
    memory.pool.holders[table.blocks[0]] = 2
    with pytest.raises(AssertionError, match="holders counted"):
        check(memory)


def test_a_name_is_forgotten_also_where_no_one_holds_its_block() -> None:
    memory = Ledger(2, 4)
    names = names_of(list(range(8)), 4)
    memory.close(filled(memory, list(range(8))))
    memory.forget(names[:1])
    assert memory.find_prefix(names) == 0
    assert memory.counts() == BlockCounts(total=2, held=0, cached=1, free=1)
    check(memory)
    memory.reserve(memory.open(Holder(HolderKind.SEQUENCE)), 0, 4)
    assert memory.is_published(names[1]), "the forgotten block is taken before one that can still be found"


def test_who_computes_a_forgotten_prefix_again_publishes_it_again() -> None:
    memory = Ledger(8, 4)
    sharer = filled(memory, list(range(8)))
    names = names_of(list(range(8)), 4)
    memory.forget(names)
    assert memory.publish(sharer, names, 8) == [], "the doubtful blocks stay unnamed"
    assert memory.find_prefix(names) == 0
    filled(memory, list(range(8)))
    assert memory.find_prefix(names) == 2
    check(memory)


def test_a_duplicate_that_forks_share_is_freed_by_the_last_of_them() -> None:
    memory = Ledger(8, 4)
    filled(memory, [1, 2, 3, 4])
    parent = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(parent, 0, 4)
    child, names = memory.fork(parent, Holder(HolderKind.SEQUENCE)), names_of([1, 2, 3, 4], 4)
    assert memory.publish(parent, names, 4) == [0]
    assert memory.counts().held == 2
    assert memory.publish(child, names, 4) == [0]
    assert memory.counts().held == 1
    check(memory)


def test_a_copy_needs_a_block_of_its_own_and_changes_nothing_without() -> None:
    memory = Ledger(2, 4)
    parent = memory.open(Holder(HolderKind.SEQUENCE))
    memory.reserve(parent, 0, 6)
    child = memory.fork(parent, Holder(HolderKind.SEQUENCE))
    assert memory.reserve(child, 6, 7) is None
    assert child.blocks == parent.blocks
    check(memory)


def test_what_is_rewritten_after_its_name_was_forgotten_is_published_again() -> None:
    memory = Ledger(8, 4)
    table = filled(memory, list(range(8)))
    memory.forget(names_of(list(range(8)), 4))
    memory.truncate(table, 6)
    assert memory.reserve(table, 6, 8) is not None
    again = names_of([0, 1, 2, 3, 4, 5, 9, 9], 4)
    memory.publish(table, again, 8)
    assert memory.is_published(again[1])
