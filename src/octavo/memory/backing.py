"""Which blocks may have memory behind them. The system maps a page at the first write to it, and takes it
back when the engine returns it.

    taken          the block has memory from now on, whether it is held, cached or free
    given back     it has none until it is taken again

Only an unused block may be given back: it has no holder and no name, so the next reader of it has written it
first. This module knows neither bytes nor plans.
"""

from __future__ import annotations

from collections.abc import Sequence


class Backing:
    """One bit for each block. `count`: blocks that have memory."""

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
