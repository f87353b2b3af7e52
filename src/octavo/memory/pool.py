"""The pool: which blocks are held, which are free, and the names of the full ones. Integers and names only.

A block is in one of three states:

    held     num_holders > 0, named (published: full, immutable) or unnamed (private to its writer)
    cached   num_holders == 0 but still named: findable until it is taken
    free     num_holders == 0 and unnamed

Free blocks form one list, and cached ones a list for each owner. All are doubly linked through two arrays, so
every operation is O(1), except the choice of an owner, O(owners):

    free          [ ... ]                            take() pops here first
    owner 0       [ longest cached first ... ]       then here, from the owner with most for its weight
    owner 1       [ ... ]                            release() appends

A table is released tail first, so the tail of a prefix is taken before its head: a chain without its head
finds nothing. An owner is a small integer. A block is charged to its owner once while it is held, however
many hold it. The pool does not know tables, sequences, tenants or bytes. Source: Kwon et al. 2023, section
4.5; the order of reuse is vLLM's.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Sequence

from octavo.memory.changes import Place
from octavo.memory.name_history import Cause, NameHistory


class BlockPool:
    """Holder counts, names, and the eviction order of available blocks."""

    def __init__(self, num_blocks: int, capacity: int | None = None) -> None:
        capacity = capacity or num_blocks
        assert 1 <= num_blocks <= capacity
        self.num_blocks = num_blocks  # from here to `capacity`: inactive, in no state and no list
        self.capacity = capacity
        self.holders = array("l", [0]) * capacity  # how many tables list the block
        self.name_of: list[bytes | None] = [None] * capacity
        self.by_name: dict[bytes, int] = {}
        self.num_available = num_blocks
        self.num_cached = 0
        self.num_evictions = 0
        self.history = NameHistory()
        self.history.places.append(self.by_name)
        self.named_at = array("d", [0.0]) * capacity  # named blocks only, on the history's clock
        self.back_by(Backing(capacity))
        self.newly_cached: deque[int] | None = (
            None  # if set: blocks that became cached, to be stored in an offload tier
        )
        self.owner = array("l", [0]) * capacity  # held and cached blocks only
        self.charged: list[int] = []  # held blocks by owner, without `uncharged`
        self.cached: list[int] = []  # by owner
        self.weights: list[float] = []  # by owner: its share of the cached blocks
        self.uncharged: set[int] = set()  # held only by copies in flight to an offload tier
        self._copies: Counter[int] = Counter()  # by block: holders that are such copies
        # Index `capacity` is the sentinel, head and tail, of the free list; the owners' sentinels follow.
        self._free = capacity
        self._next: list[int] = [*range(1, capacity + 1), 0]
        self._previous: list[int] = [capacity, *range(capacity)]
        self._next[num_blocks - 1], self._previous[capacity] = capacity, num_blocks - 1
        self.add_owner()

    def back_by(self, backing: Backing) -> None:
        """Use this record of memory: a new ledger may be over the same bytes."""
        self.backing, self._has_memory = backing, backing.has_memory

    def count_unused(self) -> int:
        """Blocks with memory, without holder and without name, inactive ones included. Every held or cached
        block has memory. O(1)."""
        return self.backing.count - (self.num_blocks - self.num_available) - self.num_cached

    def add_owner(self, weight: float = 1.0) -> int:
        """Add an owner without blocks; returns its number."""
        sentinel = len(self._next)
        self._next.append(sentinel)
        self._previous.append(sentinel)
        self.charged.append(0)
        self.cached.append(0)
        self.weights.append(weight)
        return len(self.weights) - 1

    def find(self, name: bytes) -> int | None:
        """The block of that name, held or cached."""
        return self.by_name.get(name)

    def take(self, owner: int = 0, request_id: int | None = None) -> int:
        """Hold a free or cached block exclusively. It loses its name and is charged to `owner`. `request_id`:
        the request that needs it.

        The caller has checked that `num_available` > 0.
        """
        line = self._free
        if self._next[line] == line:
            line = self._sentinel(self._most_cached())
        block = self._next[line]
        assert block != line, "take() from an empty pool"
        self._detach(block, Cause.EVICTED, request_id)
        self.holders[block] = 1
        self.owner[block] = owner
        self.charged[owner] += 1
        if not self._has_memory[block]:
            self.backing.record_taken(block)
        return block

    def retain(self, block: int, *, charge: bool = True) -> None:
        """Add a holder. One that does not charge holds a cached block only briefly."""
        if self.holders[block] == 0:
            self._unlink(block)
            if self.name_of[block] is not None:
                self._count_cached(block, -1)
            if charge:
                self.charged[self.owner[block]] += 1
            else:
                self.uncharged.add(block)
        elif charge and block in self.uncharged:
            self.uncharged.discard(block)
            self.charged[self.owner[block]] += 1
        self.holders[block] += 1
        if not charge:
            self._copies[block] += 1

    def release(self, block: int, *, charge: bool = True) -> None:
        """Remove a holder, `charge` as at `retain`. After the last one the block is free, or its owner's most
        recently cached block. After the last one that charges, no owner is charged."""
        assert self.holders[block] > 0, f"block {block} released without a holder"
        self.holders[block] -= 1
        if not charge:
            self._copies[block] -= 1
            if not self._copies[block]:
                del self._copies[block]
        elif 0 < self.holders[block] == self._copies.get(block, 0):
            self.charged[self.owner[block]] -= 1
            self.uncharged.add(block)
        if self.holders[block] == 0:
            if block in self.uncharged:
                self.uncharged.discard(block)
            else:
                self.charged[self.owner[block]] -= 1
            if self.name_of[block] is None:
                self._link(block, before=self._next[self._free])
                return
            self._link(block, before=self._sentinel(self.owner[block]))
            self._count_cached(block, 1)
            if self.newly_cached is not None:
                self.newly_cached.append(block)

    def is_writable(self, block: int) -> bool:
        """True for a block that has exactly one holder and no name."""
        return self.holders[block] == 1 and self.name_of[block] is None

    def publish(self, block: int, name: bytes) -> int:
        """Name a held, full, unnamed block; returns the canonical block of that name, which may be
        another."""
        assert self.holders[block] > 0, f"block {block} is published after it was dropped"
        assert self.name_of[block] is None, f"block {block} has a name already"
        canonical = self.by_name.setdefault(name, block)
        if canonical == block:
            self.name_of[block] = name
            self.named_at[block] = self.history.arrive(name, Place.POOL)
        return canonical

    def forget(self, name: bytes) -> None:
        """Remove this name from its block. An available block becomes free, and is taken next."""
        block = self.by_name.pop(name, None)
        if block is None:
            return
        self.name_of[block] = None
        if self.holders[block] == 0:
            self._count_cached(block, -1)
            self._unlink(block)
            self._link(block, before=self._next[self._free])

    def hand_over(self, block: int, owner: int) -> None:
        """Charge a held block to that owner from now on."""
        assert self.holders[block] > 0, "a cached block is in its owner's list"
        if block not in self.uncharged:
            self.charged[self.owner[block]] -= 1
            self.charged[owner] += 1
        self.owner[block] = owner

    def drop_cached(self, count: int) -> int:
        """Evict `count` cached blocks, owner by owner, longest cached first: they become free. Returns their
        number. O(available blocks)."""
        named = [block for block in self.eviction_order() if self.name_of[block] is not None][:count]
        for block in named:
            self._detach(block, Cause.EVICTED)
            self._link(block, before=self._next[self._free])
        return len(named)

    def move(self, old: int, new: int) -> None:
        """Move the holders and the name of `old` to `new`, which was just taken. `old` has no state then."""
        assert self.holders[old] > 0
        assert self.is_writable(new)
        assert old not in self._copies, "a block of a transfer in flight cannot move"
        self.charged[self.owner[new]] -= 1  # `take` did not know its owner
        self.owner[new] = self.owner[old]
        self.holders[new], self.holders[old] = self.holders[old], 0
        name = self.name_of[old]
        if name is not None:
            self.name_of[old], self.name_of[new] = None, name
            self.by_name[name], self.named_at[new] = new, self.named_at[old]

    def shrink(self, num_blocks: int) -> None:
        """Make the available blocks from `num_blocks` on inactive. The ledger then moves the held ones
        there."""
        for block in range(num_blocks, self.num_blocks):
            if self.holders[block] == 0:
                self._detach(block, Cause.RESIZED)
        self.num_blocks = num_blocks

    def grow(self, num_blocks: int) -> None:
        """Make inactive blocks before `num_blocks` free again."""
        assert num_blocks <= self.capacity
        for block in range(self.num_blocks, num_blocks):
            self._link(block, before=self._next[self._free])
        self.num_blocks = num_blocks

    def eviction_order(self) -> list[int]:
        """The available blocks in the order in which they are taken: free ones, then those of each owner.
        O(n): for checks and maps."""
        blocks = []
        for sentinel in range(self._free, len(self._next)):
            block = self._next[sentinel]
            while block != sentinel:
                blocks.append(block)
                block = self._next[block]
        return blocks

    def _sentinel(self, owner: int) -> int:
        return self._free + 1 + owner

    def _most_cached(self) -> int:
        """The owner with the most cached blocks for its weight: above its share, if any is."""
        if self.cached[0] == self.num_cached:
            return 0
        return max(range(len(self.cached)), key=lambda owner: self.cached[owner] / self.weights[owner])

    def _count_cached(self, block: int, change: int) -> None:
        self.num_cached += change
        self.cached[self.owner[block]] += change

    def _detach(self, block: int, cause: Cause, request_id: int | None = None) -> None:
        """Remove an available block from its list, and its name, if it has one: this is eviction."""
        self._unlink(block)
        name = self.name_of[block]
        if name is not None:
            del self.by_name[name]
            self.name_of[block] = None
            self._count_cached(block, -1)
            self.num_evictions += 1
            self.history.evict(name, self.named_at[block], cause, request_id)

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self.num_available -= 1

    def _link(self, block: int, before: int) -> None:
        previous = self._previous[before]
        self._next[previous] = self._previous[before] = block
        self._previous[block], self._next[block] = previous, before
        self.num_available += 1


class Backing:
    """Which blocks may have memory behind them: one bit for each. `count`: blocks that have.

    The system maps a page at the first write to it, and takes it back when the engine returns it. Only an
    unused block may be given back: it has no holder and no name, so the next reader of it has written it
    first.
    """

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.has_memory = bytearray(capacity)  # changed in place only

    def __contains__(self, block: int) -> bool:
        return bool(self.has_memory[block])

    def record_taken(self, block: int) -> None:
        """The block may be written from now on."""
        if not self.has_memory[block]:
            self.has_memory[block] = 1
            self.count += 1

    def record_ready(self, count: int) -> None:
        """The first `count` blocks get memory before any request takes them."""
        for block in range(count):
            self.record_taken(block)

    def record_given_back(self, first: int, last: int) -> None:
        """Blocks [first, last) have no memory once the plan that returns it has run."""
        self.count -= self.has_memory.count(1, first, last)
        self.has_memory[first:last] = bytes(last - first)

    def unused_runs(self, holders: Sequence[int], name_of: Sequence[bytes | None]) -> list[tuple[int, int]]:
        """Ranges [first, last) of unused blocks with memory, inactive blocks included. O(blocks).

        Each range is as long as possible: a huge page spans several blocks.
        """
        runs, first = [], 0
        for block in range(len(holders) + 1):
            if block < len(holders) and _is_unused(holders[block], name_of[block]):
                continue
            if self.has_memory.find(1, first, block) >= 0:
                runs.append((first, block))
            first = block + 1
        return runs


def _is_unused(num_holders: int, name: bytes | None) -> bool:
    return num_holders == 0 and name is None
