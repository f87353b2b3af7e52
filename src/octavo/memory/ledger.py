"""The ledger: block tables and holder records over one pool.

It turns requests for positions ("make [start, stop) writable") into blocks, copies and names. Check and
action are one call: `reserve` does all that was requested, or changes nothing. Shortage is a value (None),
not an exception.

    open -> adopt -> reserve -> (a step is planned, run, committed) -> publish -> reserve -> ... -> close
                  \\-> fork (n > 1): one more holder of the same blocks

Order is the fence: plans run in the order in which they are made. So a block released now may go to the next
plan although a step in flight still reads or writes it.
Source: Kwon et al. 2023, sections 4.2 to 4.5.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from octavo.memory.changes import Place
from octavo.memory.holders import Holder, HypotheticalRelease
from octavo.memory.name_history import Cause, NameHistory
from octavo.memory.names import NameChain
from octavo.memory.pool import BlockPool
from octavo.memory.quota import SHARED, Quotas
from octavo.memory.table import BlockTable
from octavo.memory.tiers import OffloadTier
from octavo.types import COLD_FIRST, BlockCopy
from octavo.units import blocks_for


@dataclass(frozen=True, slots=True)
class Reservation:
    """The change of a table: entries [first_index, first_index + len(blocks)) are new; copies must run
    first."""

    first_index: int
    blocks: tuple[int, ...]
    copies: tuple[BlockCopy, ...]


UNCHANGED = Reservation(0, (), ())


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks by state; free + cached + held == total."""

    total: int
    held: int
    cached: int
    free: int


class Ledger:
    """Block tables over one pool."""

    def __init__(self, num_blocks: int, block_size: int, capacity: int | None = None) -> None:
        self.block_size = block_size
        self.tier: OffloadTier | None = None  # has the cold blocks
        self.pool = BlockPool(num_blocks, capacity)
        self.quotas = Quotas(self.pool)
        self.holders: dict[BlockTable, Holder] = {}  # all holders

    @property
    def history(self) -> NameHistory:
        """The history of names."""
        return self.pool.history

    def attach(self, tier: OffloadTier | None) -> None:
        """Cold blocks are in this tier from now on, and a name in it is not gone."""
        self.tier = tier
        if tier is not None:
            tier.history = self.history
            self.history.places.append(tier)
            if self.history.changes is not None:
                for name in tier.names():
                    self.history.changes.add(name, tier.place_of(name))

    def describe(
        self, chain: NameChain, tokens: array[int], tenant: str, salt: str, start: int, stop: int
    ) -> None:
        """Where changes are recorded, record the content of the names [start, stop) of the chain: a sequence
        of the tenant is about to publish them, or has found them. O(stop - start)."""
        if (changes := self.history.changes) is not None:
            changes.describe(chain, tokens, None if tenant == SHARED else tenant, salt, start, stop)

    @property
    def num_available(self) -> int:
        """Blocks that `reserve` can take now: free and cached."""
        return self.pool.num_available

    def counts(self) -> BlockCounts:
        """Blocks by state. O(1)."""
        pool = self.pool
        free = pool.num_available - pool.num_cached
        return BlockCounts(pool.num_blocks, pool.num_blocks - pool.num_available, pool.num_cached, free)

    def open(self, holder: Holder, num_shared: int = 0, *, charges: bool = True) -> BlockTable:
        """Register a holder of nothing yet. Its blocks are charged to its tenant, the first `num_shared` only
        until they are published. A holder that does not charge holds its blocks only briefly."""
        assert holder.table is None, "a holder has one table"
        table = BlockTable(self.quotas.owner(holder.tenant), num_shared, charges)
        holder.table = table
        self.holders[table] = holder
        return table

    def without(self, tables: Iterable[BlockTable | None] = ()) -> HypotheticalRelease:
        """The pool as it would be without these holders. O(blocks that they list)."""
        return HypotheticalRelease(self.pool).release(tables)

    def find_prefix(self, names: Sequence[bytes]) -> int:
        """The number of leading names that are published. Changes nothing. O(hits)."""
        by_name = self.pool.by_name
        for hits, name in enumerate(names):
            if name not in by_name:
                return hits
        return len(names)

    def is_published(self, name: bytes) -> bool:
        """Whether `adopt` would find this name."""
        return name in self.pool.by_name

    def blocks_of(self, names: Sequence[bytes]) -> list[int]:
        """The blocks of these published names."""
        by_name = self.pool.by_name
        return [by_name[name] for name in names]

    def adopt(self, table: BlockTable, names: Sequence[bytes]) -> int:
        """Become one more holder of the published blocks that lead `names`; returns their number. The table
        was empty."""
        assert not table.blocks, "only a table without blocks adopts"
        for name in names:
            block = self.pool.find(name)
            if block is None:
                break
            self.pool.retain(block, charge=table.charges)
            table.blocks.append(block)
        table.num_published = len(table)
        return len(table.blocks)

    def adopt_cold(self, table: BlockTable, names: Sequence[bytes]) -> None:
        """List these names as cold; the offload tier `may_read` each. The table was empty."""
        assert not len(table), "only an empty table adopts"
        self._read(table, names)
        table.num_published = len(names)

    def make_cold(self, table: BlockTable, count: int) -> list[int]:
        """Make the table's first `count` blocks cold: the pool may take them, and finds them until then. Each
        is published, and the offload tier `may_read` it. Returns the indices of their entries."""
        first, blocks = len(table.cold), table.blocks[:count]
        assert count <= table.num_published - first, "what is not published stays"
        self._read(table, [self._name_of(block) for block in blocks])
        del table.blocks[:count]
        for block in reversed(blocks):
            self.pool.release(block, charge=table.charges)
        return list(range(first, first + count))

    def make_hot(self, table: BlockTable) -> list[int]:
        """Make the table's cold blocks hot: the pool has a block of each name. Returns the blocks."""
        assert self.tier is not None
        blocks = self.blocks_of(table.cold)
        for block in blocks:
            self.pool.retain(block, charge=table.charges)
        for name in reversed(table.cold):
            self.tier.end_read(name)
        table.cold.clear()
        table.blocks[:0] = blocks
        return blocks

    def count_cold_candidates(self, table: BlockTable, at_most: int) -> int:
        """How many of the table's first blocks `make_cold` may take. O(result)."""
        name_of, tier = self.pool.name_of, self.tier
        for count, block in enumerate(table.published[:at_most]):
            name = name_of[block]
            if tier is None or name is None or not tier.may_read(name):
                return count
        return min(at_most, len(table.published))

    def entries(self, table: BlockTable) -> list[int]:
        """The executor's row: where the bytes of each entry are."""
        return [*self.cold_entries(table), *table.blocks]

    def cold_entries(self, table: BlockTable) -> list[int]:
        """As `entries`, for the cold prefix."""
        tier = self.tier
        return [] if tier is None else [COLD_FIRST + tier.slot_read(name) for name in table.cold]

    def _read(self, table: BlockTable, names: Sequence[bytes]) -> None:
        assert self.tier is not None
        for name in names:
            self.tier.read(name)
        table.cold += names

    def _name_of(self, block: int) -> bytes:
        name = self.pool.name_of[block]
        assert name is not None, "a cold block has a name"
        return name

    def reserve(self, table: BlockTable, start: int, stop: int) -> Reservation | None:
        """Make positions [start, stop) writable, or change nothing and return None.

        Shared or published blocks of the range are replaced (copy-on-write; bytes before `start` are copied).
        Missing blocks are taken from the available ones in eviction order. Copies must run before the step
        that writes. O(blocks of the range). Source: Kwon et al. 2023, section 4.4.
        """
        size, pool, num_cold = self.block_size, self.pool, len(table.cold)
        first, end = start // size - num_cold, -(-stop // size) - num_cold  # indices of `table.blocks`
        assert start < stop
        assert 0 <= first <= len(table.blocks), "a table has no holes, and cold blocks are not written"
        if end == len(table.blocks) == first + 1 and pool.is_writable(table.blocks[first]):
            table.num_published = min(table.num_published, num_cold + first)
            return UNCHANGED  # the common case: one more token in a private tail
        read_only = [
            i for i in range(first, min(end, len(table.blocks))) if not pool.is_writable(table.blocks[i])
        ]
        needed = len(read_only) + max(0, end - len(table.blocks))
        if needed > pool.num_available or (self.quotas.has_maxima and needed > self.quotas.room(table.owner)):
            return None
        copies, request_id = [], self.holders[table].request_id
        for index in read_only:
            old, new = table.blocks[index], pool.take(table.owner, request_id)
            if (num_cold + index) * size < start:
                copies.append(BlockCopy(old, new))
            pool.release(old)
            table.blocks[index] = new
        table.num_published = min(table.num_published, num_cold + first)  # the rest will be published again
        changed_from = read_only[0] if read_only else len(table.blocks)
        while len(table.blocks) < end:
            table.blocks.append(pool.take(table.owner, request_id))
        blocks = tuple(table.blocks[changed_from:end])
        return Reservation(num_cold + changed_from, blocks, tuple(copies))

    def fork(self, table: BlockTable, holder: Holder) -> BlockTable:
        """One more holder of the same blocks; the first write to a shared one copies it."""
        twin = self.open(holder, table.num_shared)
        assert twin.owner == table.owner, "what is forked stays its tenant's"
        for block in table.blocks:
            self.pool.retain(block)
        twin.blocks = list(table.blocks)
        if table.cold:
            self._read(twin, table.cold)
        twin.num_published = table.num_published
        return twin

    def truncate(self, table: BlockTable, num_positions: int) -> None:
        """Release the blocks that hold no position before `num_positions`, tail first. A cut published block
        stays held, and is copied before it is written; in this table it is unpublished."""
        keep = blocks_for(num_positions, self.block_size)
        assert keep >= len(table.cold), "what is cold stays"
        while len(table) > keep:
            self.pool.release(table.blocks.pop())
        table.num_published = min(table.num_published, num_positions // self.block_size)

    def publish(self, table: BlockTable, names: Sequence[bytes], num_computed: int) -> list[int]:
        """Name the blocks that committed positions [0, num_computed) fill; returns the table indices whose
        block changed.

        If a held block has the name already, the entry becomes that canonical block and the duplicate is
        freed: the two are bit-equal by the exactness contract. If only a cached block has the name, the name
        moves to the new block, so no owner is charged for more. Call it only after the commit of the step
        that wrote the last of these positions.
        """
        changed, pool = [], self.pool
        for index in range(table.num_published, num_computed // self.block_size):
            block = table.block_at(index)
            if pool.name_of[block] is None:  # else a fork that shares the block has published it
                existing = pool.find(names[index])
                if existing in pool.uncharged and pool.holders[block] > 1:
                    break  # it is being stored; holding both may exceed the pool by one block
                if existing is not None and pool.holders[existing] == 0:
                    pool.forget(names[index])
                canonical = pool.publish(block, names[index])
                if canonical == block and (index < table.num_shared or table.owner == self.quotas.shared):
                    pool.hand_over(block, self.quotas.once_shared)  # a pinned name has a block already
                if canonical != block:
                    self.pool.retain(canonical)
                    self.pool.release(block)
                    table.blocks[index - len(table.cold)] = canonical
                    changed.append(index)
            table.num_published = index + 1
        return changed

    def take(self, table: BlockTable, count: int) -> list[int]:
        """Add `count` new private blocks to the end of the table. The caller has checked `num_available`."""
        before, request_id = len(table.blocks), self.holders[table].request_id
        table.blocks += [self.pool.take(table.owner, request_id) for _ in range(count)]
        return table.blocks[before:]

    def publish_loaded(self, block: int, name: bytes, *, is_shared: bool = False) -> None:
        """Publish a held block that was filled with the bytes of `name`. `is_shared`: all tenants have the
        name in common. If the name exists already, the block stays private and is useless."""
        if self.pool.publish(block, name) == block and is_shared:
            self.pool.hand_over(block, self.quotas.once_shared)

    def resize(self, num_blocks: int, fixed: Collection[int]) -> tuple[BlockCopy, ...] | None:
        """Make the pool `num_blocks` large. Held blocks after its new end move to available ones before it
        (the copies); cached ones there are evicted.

        Returns None and changes nothing if more blocks are held than would remain, or if one of the `fixed`
        blocks would have to move.
        """
        pool = self.pool
        if num_blocks >= pool.num_blocks:
            pool.grow(num_blocks)
            return ()
        moving = [block for block in range(num_blocks, pool.num_blocks) if pool.holders[block]]
        if pool.num_blocks - pool.num_available > num_blocks or any(block in fixed for block in moving):
            return None
        pool.shrink(num_blocks)
        target = {}
        for old in moving:
            target[old] = pool.take()
            pool.move(old, target[old])
        for table in self.holders if moving else ():
            table.blocks = [target.get(block, block) for block in table.blocks]
        return tuple(BlockCopy(old, new) for old, new in target.items())

    def forget(self, names: Sequence[bytes]) -> None:
        """Remove these names, also from held blocks: what a poisoned request wrote is never found again, even
        if the request was preempted and holds nothing."""
        for name in names:
            if name in self.pool.by_name:
                self.pool.forget(name)
                self.history.leave(name, Cause.POISONED, place=Place.POOL)

    def close(self, table: BlockTable) -> None:
        """Release all blocks, tail first, so that the tail is evicted before the head."""
        for block in reversed(table.blocks):
            self.pool.release(block, charge=table.charges)
        table.blocks.clear()
        for name in reversed(table.cold):
            assert self.tier is not None
            self.tier.end_read(name)
        table.cold.clear()
        table.num_published = 0
        self.holders.pop(table).table = None
