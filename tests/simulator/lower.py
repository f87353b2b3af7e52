"""The tiers below the pool, for random lives: host memory, disk, both or none, of which a restart finds the
disk's part; moves between them fail now and then, and what is old is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from octavo.memory.tiers import OffloadTier
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import OracleExecutor
from octavo.types import COLD_FIRST, Move, StepPlan, TransferDone

Below = dict[int, tuple[bytes, list[tuple[int, int, int] | None]]]  # slot -> name, meanings
DAMAGES_MAX = 10  # in a life, so that it comes to an end


class SimulatedTiers:
    """Sizes drawn once; `new_ledger` begins a process."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._num_host = random.choice([0, 0, 2, 10])
        self._num_slots = self._num_host + random.choice([0, 3, 20, 200])
        self._move_failures = random.choice([0.0, 0.3])
        self._max_age_s = random.choice([math.inf, math.inf, 60.0])
        self._own = own = Random(
            repr(random.getstate()[1][:8])
        )  # so that lives without cold blocks stay as they were
        self._num_readable = own.choice([0, self._num_host, self._num_slots, self._num_slots])
        self._num_damages = 0
        self.damage_rate = own.choice([0.0, 0.0, 0.05])

    @property
    def exist(self) -> bool:
        """Whether there is anything below."""
        return self._num_slots > 0

    def new_ledger(self, stored: Mapping[bytes, int]) -> OffloadTier | None:
        """Of what is on disk."""
        if not self.exist:
            return None
        return OffloadTier(
            self._num_slots,
            stored.items(),
            num_host=self._num_host,
            max_age_s=self._max_age_s,
            num_readable=self._num_readable,
        )

    def after_restart(self, executor: OracleExecutor) -> Below:
        """What is below then: host memory is gone."""
        return {slot: found for slot, found in executor.tier_slots.items() if slot >= self._num_host}

    def on_disk(self, tier: OffloadTier) -> dict[bytes, int]:
        """What the ledger lists there."""
        return {name: slot for name, slot in tier.slots().items() if slot >= self._num_host}

    def end_moves(self, plan: StepPlan, scheduler: Scheduler, executor: OracleExecutor) -> int:
        """The moves of a plan have ended, well or not; how many there were."""
        moves = [transfer for transfer in plan.transfers if transfer.move is Move.MOVE]
        for transfer in moves:
            assert transfer.source < self._num_host <= transfer.slot, "only host memory moves on to disk"
            ok = self._random.random() >= self._move_failures
            name, _ = executor.tier_slots.get(transfer.slot, (b"", []))
            is_there = name == transfer.name  # else something followed it already
            if not ok and is_there:
                executor.tier_slots[transfer.slot] = (b"", [])
            scheduler.transfers.finish(TransferDone(transfer.transfer_id, ok))
        return len(moves)

    def damage(self, executor: OracleExecutor) -> None:
        """Now and then a slot cannot be read any more, of those where cold blocks lie."""
        if self._num_damages < DAMAGES_MAX and self._own.random() < self.damage_rate:
            rows = executor.rows.values()
            slots = sorted({e - COLD_FIRST for row in rows for e in row.blocks if e >= COLD_FIRST})
            if slots:
                self._num_damages += 1
                executor.damaged.add(self._own.choice(slots))
