"""The pool: which blocks are held, which are free, and what the full ones are called. Integers and names
only.

A block is in one of three states:

    held     num_holders > 0, named (published: full, immutable) or unnamed (private to its writer)
    cached   num_holders == 0 but still named: findable until it is taken
    free     num_holders == 0 and unnamed

Cached and free blocks stand in one line, threaded through two lists of neighbours, so that every operation
is O(1):

    head -> [unnamed, unnamed, ... | named, longest unheld first ... ] -> tail
            take() pops here                          release() appends here

A released table comes in tail first, so a prefix's tail is taken before its head: a chain without its head
finds nothing. It does not know tables, sequences, tenants or bytes. Source: Kwon et al. 2023, section 4.5;
the order of reuse is vLLM's.
"""

from __future__ import annotations

from array import array
from collections import deque


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
        self.num_unheld = num_blocks
        self.num_cached = 0
        self.num_evictions = 0
        self.newly_cached: deque[int] | None = (
            None  # if set: blocks that became cached, for whoever stores them
        )
        # The line: index `capacity` is the sentinel that is both head and tail.
        self._end = capacity
        self._next: list[int] = [*range(1, capacity + 1), 0]
        self._previous: list[int] = [capacity, *range(capacity)]
        self._next[num_blocks - 1], self._previous[capacity] = capacity, num_blocks - 1

    def find(self, name: bytes) -> int | None:
        """The block of that name, held or cached."""
        return self.by_name.get(name)

    def take(self) -> int:
        """Hold the first block of the line, alone; it loses its name.

        The caller has checked that `num_unheld` > 0.
        """
        block = self._next[self._end]
        assert block != self._end, "take() from an empty pool"
        self._leave_line(block)
        self.holders[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more holder."""
        if self.holders[block] == 0:
            self._unlink(block)
            if self.name_of[block] is not None:
                self.num_cached -= 1
        self.holders[block] += 1

    def release(self, block: int) -> None:
        """One holder less; the last one puts the block in line: unnamed in front, named behind."""
        assert self.holders[block] > 0, f"block {block} released without a holder"
        self.holders[block] -= 1
        if self.holders[block] == 0:
            named = self.name_of[block] is not None
            self._link(block, before=self._end if named else self._next[self._end])
            self.num_cached += named
            if named and self.newly_cached is not None:
                self.newly_cached.append(block)

    def is_writable(self, block: int) -> bool:
        """True for a held block that nobody else holds and nobody can find."""
        return self.holders[block] == 1 and self.name_of[block] is None

    def publish(self, block: int, name: bytes) -> int:
        """Name a held, full, unnamed block; returns the canonical block of that name, which may be
        another."""
        assert self.holders[block] > 0, f"block {block} is published after it was dropped"
        assert self.name_of[block] is None, f"block {block} has a name already"
        canonical = self.by_name.setdefault(name, block)
        if canonical == block:
            self.name_of[block] = name
        return canonical

    def forget(self, name: bytes) -> None:
        """Nobody finds a block under this name again. An unheld one becomes free, and is taken next."""
        block = self.by_name.pop(name, None)
        if block is None:
            return
        self.name_of[block] = None
        if self.holders[block] == 0:
            self.num_cached -= 1
            self._unlink(block)
            self._link(block, before=self._next[self._end])

    def move(self, old: int, new: int) -> None:
        """What `old` was, `new` is: holders and name. `new` was just taken; `old` is in no state now."""
        assert self.holders[old] > 0
        assert self.is_writable(new)
        self.holders[new], self.holders[old] = self.holders[old], 0
        name = self.name_of[old]
        if name is not None:
            self.name_of[old], self.name_of[new] = None, name
            self.by_name[name] = new

    def shrink(self, num_blocks: int) -> None:
        """Park the unheld blocks from `num_blocks` on; whoever holds one of the others moves it next."""
        for block in range(num_blocks, self.num_blocks):
            if self.holders[block] == 0:
                self._leave_line(block)
        self.num_blocks = num_blocks

    def grow(self, num_blocks: int) -> None:
        """Parked blocks up to `num_blocks` are free again."""
        assert num_blocks <= self.capacity
        for block in range(self.num_blocks, num_blocks):
            self._link(block, before=self._next[self._end])
        self.num_blocks = num_blocks

    def line(self) -> list[int]:
        """The unheld blocks, next to be taken first. O(n): for checks and maps."""
        blocks, block = [], self._next[self._end]
        while block != self._end:
            blocks.append(block)
            block = self._next[block]
        return blocks

    def _leave_line(self, block: int) -> None:
        """An unheld block loses its name, if it has one: this is eviction."""
        self._unlink(block)
        name = self.name_of[block]
        if name is not None:
            del self.by_name[name]
            self.name_of[block] = None
            self.num_cached -= 1
            self.num_evictions += 1

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self.num_unheld -= 1

    def _link(self, block: int, before: int) -> None:
        previous = self._previous[before]
        self._next[previous] = self._previous[before] = block
        self._previous[block], self._next[block] = previous, before
        self.num_unheld += 1
