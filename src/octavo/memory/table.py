"""A block table: the blocks of one holder. Only tables keep KV alive.

    position p of the sequence  ->  slot p % B of block blocks[p // B]

    blocks          [ 7 | 2 | 9 | 4 ]
    num_published     3                 blocks 7, 2, 9 are full, committed and named; 4 is private

A block's holder count is the number of tables that list it. Only `memory.Ledger` changes a table.

A sequence larger than the pool has a cold prefix: its first entries are names, whose bytes are in an offload
tier. `blocks` are the entries after them.

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
    charges: bool = True  # False: a copy in flight to an offload tier, which holds its block only briefly
    num_published: int = 0  # entries, cold ones included
    blocks: list[int] = field(default_factory=list)
    cold: list[bytes] = field(default_factory=list)
    # Of a long sequence: entries that could be cold, as of the last check.
    num_stored: int = 0
    number: int = field(default_factory=_next_number)  # unique: views name tables by it

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.cold) + len(self.blocks)

    @property
    def published(self) -> list[int]:
        """The pool blocks that were published through it or adopted by it."""
        return self.blocks[: self.num_published - len(self.cold)]

    def block_at(self, index: int) -> int:
        """The block of an entry that is not cold."""
        return self.blocks[index - len(self.cold)]
