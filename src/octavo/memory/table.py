"""A block table: what a holder lists, and the only thing that keeps KV alive.

    position p of the sequence  ->  slot p % B of block blocks[p // B]

    blocks          [ 7 | 2 | 9 | 4 ]
    num_published     3                 blocks 7, 2, 9 are full, committed and named; 4 is private

A block's holder count is the number of tables that list it. Only `memory.Ledger` changes a table.

A sequence larger than the pool has a cold prefix: its first entries are names, whose bytes lie in an offload
tier, and `blocks` are those behind them.

    cold            [ name 0 | name 1 ]
    blocks                             [ 9 | 4 ]       entry 2 is block 9; num_published is 3
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

_next_number: Callable[[], int] = itertools.count(1).__next__


@dataclass(slots=True, eq=False)
class BlockTable:
    """An ordered list of held block ids; the first `num_published` were published through it or adopted by
    it. New blocks are charged to `owner`, the first `num_shared` only until all tenants can find them."""

    owner: int = 0
    num_shared: int = 0
    charges: bool = True  # False: a copy on its way to an offload tier, which keeps its block for a moment
    num_published: int = 0  # entries, cold ones included
    blocks: list[int] = field(default_factory=list)
    cold: list[bytes] = field(default_factory=list)
    # Of a long sequence: entries that could be cold, or could when that was last looked at.
    num_stored: int = 0
    number: int = field(default_factory=_next_number)  # no other table's: views name tables by it

    def __len__(self) -> int:
        """Entries."""
        return len(self.cold) + len(self.blocks)

    @property
    def published(self) -> list[int]:
        """The blocks of the pool that were published through it or adopted by it."""
        return self.blocks[: self.num_published - len(self.cold)]

    def block_at(self, index: int) -> int:
        """The block of an entry that is not cold."""
        return self.blocks[index - len(self.cold)]
