"""The pool: states of a block, and the order in which unheld blocks are taken."""

from __future__ import annotations

import pytest

from octavo.memory.pool import BlockPool


def name(i: int) -> bytes:
    return bytes([i]) * 32


def test_unnamed_blocks_are_taken_before_named_ones_and_the_longest_unheld_name_goes_first() -> None:
    pool = BlockPool(4)
    a, b, c, d = (pool.take() for _ in range(4))
    for block in (a, b, c):
        pool.publish(block, name(block))
    for block in (c, d, a, b):
        pool.release(block)
    assert [pool.take() for _ in range(4)] == [d, c, a, b]
    assert pool.num_evictions == 3
    assert pool.by_name == {}


def test_a_cached_block_is_found_and_revived_without_losing_its_name() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.publish(block, name(1))
    pool.release(block)
    assert pool.num_cached == 1
    assert pool.find(name(1)) == block
    pool.retain(block)
    assert pool.num_cached == 0
    assert pool.name_of[block] == name(1)


def test_a_block_is_freed_by_its_last_holder_only() -> None:
    pool = BlockPool(1)
    block = pool.take()
    pool.retain(block)
    pool.release(block)
    assert pool.num_available == 0
    pool.release(block)
    assert pool.num_available == 1


def test_releasing_an_unheld_block_is_a_bug_that_is_noticed() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="without a holder"):
        pool.release(0)


def test_taking_from_an_empty_pool_is_a_bug_that_is_noticed() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(AssertionError, match="empty"):
        pool.take()


def test_publishing_a_name_that_exists_returns_the_canonical_block() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    assert pool.publish(first, name(1)) == first
    assert pool.publish(second, name(1)) == first
    assert pool.name_of[second] is None


def test_a_forgotten_block_is_never_found_again() -> None:
    pool = BlockPool(1)
    block = pool.take()
    pool.publish(block, name(1))
    pool.forget(name(1))
    assert pool.find(name(1)) is None
