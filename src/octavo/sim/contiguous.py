"""Allocators that give every request one contiguous run of KV slots, as servers did before paging.

Two of them, over slots [0, num_slots); both are exact and deterministic, and both only know sizes:

    FirstFit         the lowest hole that is large enough; neighbouring holes become one

        [ used | hole | used | used | hole      | used | hole ]

    BuddyAllocator   sizes are rounded up to powers of two; a larger piece is halved until it fits, and two
                     free halves of one whole (buddies) become that whole again

        1024 = [            512            |     256     | 128 |  free 128 ]

A memory whose size is no power of two consists of trees of falling size: 7,680 = 4,096 + 2,048 + 1,024 + 512.
Buddies of different trees have different sizes, so they are never joined. Source: Knowlton 1965, for the
buddies; Kwon et al. 2023, section 6.1, assumes that Orca uses them.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Slots [start, start + size)."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        """One past the last slot."""
        return self.start + self.size


class Allocator(Protocol):
    """A policy's interface to contiguous memory."""

    @property
    def num_free(self) -> int:
        """Slots in no piece."""

    @property
    def largest_hole(self) -> int:
        """The largest size that `take` could give."""

    def take(self, size: int) -> Extent | None:
        """A piece of at least `size` slots; None changes nothing."""

    def give(self, piece: Extent) -> None:
        """Return a piece."""


class FirstFit:
    """The lowest hole that is large enough. O(holes)."""

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 1
        self._holes = [Extent(0, num_slots)]  # ascending, never touching

    @property
    def num_free(self) -> int:
        """Slots in holes."""
        return sum(hole.size for hole in self._holes)

    @property
    def largest_hole(self) -> int:
        """Slots of the largest hole; 0 without any."""
        return max((hole.size for hole in self._holes), default=0)

    def take(self, size: int) -> Extent | None:
        """Exactly `size` slots from the start of the first hole that has them."""
        assert size >= 1
        for index, hole in enumerate(self._holes):
            if hole.size >= size:
                rest = Extent(hole.start + size, hole.size - size)
                self._holes[index : index + 1] = [rest] if rest.size else []
                return Extent(hole.start, size)
        return None

    def give(self, piece: Extent) -> None:
        """The piece becomes a hole, joined with adjacent holes."""
        index = bisect.bisect(self._holes, piece)
        start, stop = piece.start, piece.stop
        first, last = index, index
        if first and self._holes[first - 1].stop == start:
            first -= 1
            start = self._holes[first].start
        if last < len(self._holes) and self._holes[last].start == stop:
            stop = self._holes[last].stop
            last += 1
        self._holes[first:last] = [Extent(start, stop - start)]


class BuddyAllocator:
    """Powers of two that split and merge. O(log slots) splits and merges for each call."""

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 1
        self.num_free = num_slots
        # free[k]: starts of the free pieces of 2^k slots. The whole trees, largest first.
        self.free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]
        start = 0
        for order in reversed(range(len(self.free))):
            if num_slots >> order & 1:
                self.free[order].add(start)
                start += 1 << order

    @property
    def largest_hole(self) -> int:
        """Slots of the largest free piece; 0 without any."""
        return max((1 << order for order, starts in enumerate(self.free) if starts), default=0)

    def take(self, size: int) -> Extent | None:
        """`size` rounded up to a power of two, from the smallest free piece that has it, lowest first."""
        assert size >= 1
        wanted = rounded(size).bit_length() - 1
        order = next((k for k in range(wanted, len(self.free)) if self.free[k]), None)
        if order is None:
            return None
        start = min(self.free[order])
        self.free[order].remove(start)
        while order > wanted:  # keep the lower half, free the upper
            order -= 1
            self.free[order].add(start + (1 << order))
        self.num_free -= 1 << wanted
        return Extent(start, 1 << wanted)

    def give(self, piece: Extent) -> None:
        """Free the piece, and join it with its buddy as long as that is free and whole too."""
        order, start = piece.size.bit_length() - 1, piece.start
        self.num_free += piece.size
        while (buddy := start ^ (1 << order)) in self.free[order]:
            self.free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        assert start not in self.free[order], "a piece was returned twice"
        self.free[order].add(start)


def rounded(size: int) -> int:
    """The smallest power of two that is at least `size`: 25 becomes 32, 32 stays."""
    return 1 << (size - 1).bit_length()
