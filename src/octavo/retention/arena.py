"""The staging arena: a few blocks behind the pool, from which what victims keep is stored below."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.step.context import Context
from octavo.types import TransferDone

SMOOTHING = 0.2
HALF_LIFE_S = 20.0  # a measurement counts half after it


class StagingArena:
    """Blocks [first, first + num_blocks), behind the pool, and how long it takes to store one."""

    def __init__(self, context: Context) -> None:
        self.first = context.ledger.pool.capacity
        self.num_blocks = context.config.staging_blocks
        self._context = context
        self._free = list(range(self.first + self.num_blocks - 1, self.first - 1, -1))
        self._store_s: float | None = None  # for a block, measured
        self._stored_at = 0.0

    @property
    def free(self) -> Sequence[int]:
        """Blocks that nothing is in; the last one is taken next."""
        return self._free

    def take(self) -> None:
        """The last of the free ones is in use."""
        self._free.pop()

    def finish(self, block: int, done: TransferDone) -> None:
        """The store from this block has ended, well or not."""
        self._free.append(block)
        if done.ok:
            self._stored_at = self._context.now
            old = self._store_s
            self._store_s = done.seconds if old is None else old + SMOOTHING * (done.seconds - old)

    @property
    def store_s(self) -> float | None:
        """Seconds to store a block; None: not measured. A measurement counts half after `HALF_LIFE_S`."""
        if self._store_s is None:
            return None
        return self._store_s * math.exp2(-(self._context.now - self._stored_at) / HALF_LIFE_S)
