"""The whole memory system, recomputed from scratch. A holder count *is* the number of tables that list a
block, so tables and names suffice to check the ledger. O(blocks): for tests, the simulator, and idle
moments."""

from __future__ import annotations

from collections import Counter

from octavo.memory.ledger import Ledger


def check(memory: Ledger) -> None:
    """Raise AssertionError, with the difference, unless every invariant of the ledger holds."""
    pool = memory.pool
    counted = Counter(block for table in memory.holders for block in table.blocks)
    for block in range(pool.num_blocks):
        assert pool.holders[block] == counted[block], (
            f"block {block}: {pool.holders[block]} holders counted, {counted[block]} tables list it"
        )
    for block in range(pool.num_blocks, pool.capacity):
        assert pool.holders[block] == counted[block] == 0, f"block {block} is inactive and held"
        assert pool.name_of[block] is None, f"block {block} is inactive and named"
    line = pool.eviction_order()
    assert len(line) == len(set(line)) == pool.num_available, "the eviction order is inconsistent"
    assert set(line) == {b for b in range(pool.num_blocks) if pool.holders[b] == 0}, (
        "a held block is in the eviction order"
    )
    assert pool.num_cached == sum(pool.name_of[b] is not None for b in line), (
        "the count of cached blocks is wrong"
    )
    silent = {block for table in memory.holders if not table.charges for block in table.blocks}
    held = {block for table in memory.holders if table.charges for block in table.blocks}
    assert pool.uncharged == silent - held, "a block's charge is lost, or a copy in flight has one"
    charged = Counter(pool.owner[block] for block in held)
    cached = Counter(pool.owner[block] for block in line if pool.name_of[block] is not None)
    for owner in range(len(pool.weights)):
        assert pool.charged[owner] == charged[owner], f"owner {owner} is charged for what it does not hold"
        assert pool.cached[owner] == cached[owner], f"owner {owner}: wrong count of cached blocks"
    for policy in memory.quotas.policies():
        if policy.maximum is not None:
            charged_now = memory.quotas.charged(policy.name)
            assert charged_now <= policy.maximum, f"tenant {policy.name!r} exceeds its maximum"
    for name, block in pool.by_name.items():
        assert pool.name_of[block] == name, f"block {block} is found under a name that it does not have"
    assert len(pool.by_name) == sum(name is not None for name in pool.name_of), (
        "a named block cannot be found"
    )
    with_memory = [block for block in range(pool.capacity) if block in pool.backing]
    in_use = {block for block in range(pool.capacity) if pool.holders[block] or pool.name_of[block]}
    assert pool.backing.count == len(with_memory), "the count of blocks with memory is wrong"
    assert in_use <= set(with_memory), "the memory of a block that is held or cached was given back"
    cold = Counter(name for table in memory.holders for name in table.cold)
    assert memory.tier is None or memory.tier.readers() == cold, "cold blocks are miscounted in the tier"
    for table, holder in memory.holders.items():
        assert holder.table is table, f"{holder.label} is registered with a table that is not its own"
        assert len(table.cold) <= table.num_published <= len(table)
        assert len(set(table.blocks)) == len(table.blocks), "a table lists a block twice"
