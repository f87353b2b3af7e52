"""The pool: which blocks are held, which are free, and what the full ones are called. Integers and names
only.

A block is in one of three states:

    held     num_holders > 0, named (published: full, immutable) or unnamed (private to its writer)
    cached   num_holders == 0 but still named: findable until it is taken
    free     num_holders == 0 and unnamed

Free blocks stand in one line and cached ones in a line for each owner, threaded through two lists of
neighbours, so that every operation is O(1), but for the choice of an owner, O(owners):

    free          [ ... ]                            take() pops here first
    owner 0       [ longest unheld first ... ]       then here, where most are cached for the owner's weight
    owner 1       [ ... ]                            release() appends

A released table comes in tail first, so a prefix's tail is taken before its head: a chain without its head
finds nothing. An owner is a small integer; a block is charged to its owner while it is held, once, however
many hold it. It does not know tables, sequences, tenants or bytes. Source: Kwon et al. 2023, section 4.5; the
order of reuse is vLLM's.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque

from octavo.memory.backing import Backing
from octavo.memory.changes import Place
from octavo.memory.name_history import Cause, NameHistory


class BlockPool:
    """Holder counts, names, and the line of unheld blocks."""

    def __init__(self, num_blocks: int, capacity: int | None = None) -> None:
        capacity = capacity or num_blocks
        assert 1 <= num_blocks <= capacity
        self.num_blocks = num_blocks  # those from here to `capacity` are parked: in no state and in no line
        self.capacity = capacity
        self.holders = array("l", [0]) * capacity  # how many holders list the block
        self.name_of: list[bytes | None] = [None] * capacity
        self.by_name: dict[bytes, int] = {}
        self.num_available = num_blocks
        self.num_cached = 0
        self.num_evictions = 0
        self.history = NameHistory()
        self.history.places.append(self.by_name)
        self.named_at = array("d", [0.0]) * capacity  # of named blocks, on the history's clock
        self.back_by(Backing(capacity))
        self.newly_cached: deque[int] | None = (
            None  # if set: blocks that became cached, to be stored in an offload tier
        )
        self.owner = array("l", [0]) * capacity  # of held and cached blocks
        self.charged: list[int] = []  # held blocks by owner, those in `uncharged` aside
        self.cached: list[int] = []  # by owner
        self.weights: list[float] = []  # by owner: of its share of cached blocks
        self.uncharged: set[int] = set()  # held by copies on their way to an offload tier alone
        self._copies: Counter[int] = Counter()  # by block: such holders, beside all others
        # Index `capacity` is the sentinel, both head and tail, of the free line; those of owners follow.
        self._free = capacity
        self._next: list[int] = [*range(1, capacity + 1), 0]
        self._previous: list[int] = [capacity, *range(capacity)]
        self._next[num_blocks - 1], self._previous[capacity] = capacity, num_blocks - 1
        self.add_owner()

    def back_by(self, backing: Backing) -> None:
        """From now on this says which blocks have memory: a new ledger may be over the same bytes."""
        self.backing, self._has_memory = backing, backing.has_memory

    def count_unused(self) -> int:
        """Blocks with memory, without holder and without name, parked ones too: whatever is held or
        cached has memory. O(1)."""
        return self.backing.count - (self.num_blocks - self.num_available) - self.num_cached

    def add_owner(self, weight: float = 1.0) -> int:
        """One more owner, of nothing yet; returns its number."""
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
        """Hold a free block, or one that is cached, alone; it loses its name and is charged to `owner`.
        `request_id`: the request that it is taken for.

        The caller has checked that `num_available` > 0.
        """
        line = self._free
        if self._next[line] == line:
            line = self._sentinel(self._most_cached())
        block = self._next[line]
        assert block != line, "take() from an empty pool"
        self._leave_line(block, Cause.EVICTED, request_id)
        self.holders[block] = 1
        self.owner[block] = owner
        self.charged[owner] += 1
        if not self._has_memory[block]:
            self.backing.record_taken(block)
        return block

    def retain(self, block: int, *, charge: bool = True) -> None:
        """One more holder. One that does not charge keeps a cached block for a moment only."""
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
        """One holder less, `charge` as it was retained; after the last one the block is free, or cached as
        the newest of its owner. After the last one that charges, no owner is charged for it."""
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
        """True for a held block that has one holder and cannot be found."""
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
        """No block is found under this name again. An unheld one becomes free, and is taken next."""
        block = self.by_name.pop(name, None)
        if block is None:
            return
        self.name_of[block] = None
        if self.holders[block] == 0:
            self._count_cached(block, -1)
            self._unlink(block)
            self._link(block, before=self._next[self._free])

    def hand_over(self, block: int, owner: int) -> None:
        """A held block is that owner's from now on."""
        assert self.holders[block] > 0, "a cached block stands in its owner's line"
        if block not in self.uncharged:
            self.charged[self.owner[block]] -= 1
            self.charged[owner] += 1
        self.owner[block] = owner

    def drop_cached(self, count: int) -> int:
        """Evict `count` cached blocks, owner by owner, longest cached first; they are free now. Returns how
        many that were. O(unheld)."""
        named = [block for block in self.eviction_order() if self.name_of[block] is not None][:count]
        for block in named:
            self._leave_line(block, Cause.EVICTED)
            self._link(block, before=self._next[self._free])
        return len(named)

    def move(self, old: int, new: int) -> None:
        """What `old` was, `new` is: holders and name. `new` was just taken; `old` is in no state now."""
        assert self.holders[old] > 0
        assert self.is_writable(new)
        assert old not in self._copies, "a block on its way cannot move"
        self.charged[self.owner[new]] -= 1  # taken for whom it was not yet known
        self.owner[new] = self.owner[old]
        self.holders[new], self.holders[old] = self.holders[old], 0
        name = self.name_of[old]
        if name is not None:
            self.name_of[old], self.name_of[new] = None, name
            self.by_name[name], self.named_at[new] = new, self.named_at[old]

    def shrink(self, num_blocks: int) -> None:
        """Park the unheld blocks from `num_blocks` on; the ledger moves those of the others that are held
        next."""
        for block in range(num_blocks, self.num_blocks):
            if self.holders[block] == 0:
                self._leave_line(block, Cause.RESIZED)
        self.num_blocks = num_blocks

    def grow(self, num_blocks: int) -> None:
        """Parked blocks up to `num_blocks` are free again."""
        assert num_blocks <= self.capacity
        for block in range(self.num_blocks, num_blocks):
            self._link(block, before=self._next[self._free])
        self.num_blocks = num_blocks

    def eviction_order(self) -> list[int]:
        """The unheld blocks: free ones, then those of each owner, next to be taken first. O(n): for checks
        and maps."""
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
        """The owner with most cached blocks for its weight, which is above its share if one is."""
        if self.cached[0] == self.num_cached:
            return 0
        return max(range(len(self.cached)), key=lambda owner: self.cached[owner] / self.weights[owner])

    def _count_cached(self, block: int, change: int) -> None:
        self.num_cached += change
        self.cached[self.owner[block]] += change

    def _leave_line(self, block: int, cause: Cause, request_id: int | None = None) -> None:
        """An unheld block loses its name, if it has one: this is eviction."""
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
