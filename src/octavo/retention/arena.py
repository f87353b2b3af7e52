"""The staging arena: blocks after the pool, from which a victim's blocks are offloaded."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.averages import FadingAverage
from octavo.step.context import Context
from octavo.types import TransferDone


def transfer_average() -> FadingAverage:
    """The average of seconds per block over the transfers of one direction."""
    return FadingAverage(weight=0.2, half_life_s=20.0)


class StagingArena:
    """Blocks [first, first + num_blocks), after the pool, and the time to store one."""

    def __init__(self, context: Context) -> None:
        self.first = context.ledger.pool.capacity
        self.num_blocks = context.config.staging_blocks
        self._context = context
        self._free = list(range(self.first + self.num_blocks - 1, self.first - 1, -1))
        self._store_s = transfer_average()

    @property
    def free(self) -> Sequence[int]:
        """The empty blocks; the last one is taken next."""
        return self._free

    def take(self) -> None:
        """Take the last of the free blocks."""
        self._free.pop()

    def finish(self, block: int, done: TransferDone) -> None:
        """The store from this block has ended, with success or failure."""
        self._free.append(block)
        if done.ok:
            self._store_s.add(done.seconds, self._context.now)

    @property
    def store_s(self) -> float | None:
        """Seconds to store a block; None: not measured."""
        return self._store_s.at(self._context.now)
