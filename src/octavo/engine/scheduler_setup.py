"""The parameters of a scheduler, as values: for a start, a recovery, and the replay of a recording."""

from __future__ import annotations

import math

import msgspec

from octavo.memory.changes import ChangeRecord
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.memory.tiers import OffloadTier
from octavo.scheduler.pressure import PressureConfig, PressurePolicy
from octavo.scheduler.scheduler import Scheduler
from octavo.speculation.speculator import Speculation, Speculator
from octavo.step.context import SchedulerConfig
from octavo.units import padded_positions


class TierSetup(msgspec.Struct, frozen=True):
    """The offload tiers, and their stored names."""

    num_slots: int
    num_host: int  # slots in host memory: the first ones
    max_age_s: float | None  # None: for ever
    stored: list[tuple[bytes, int]]  # names and slots
    num_readable: int = 0  # slots in which attention can read cold blocks: the first ones

    def new_tier(self) -> OffloadTier:
        """A new ledger over it."""
        max_age_s = math.inf if self.max_age_s is None else self.max_age_s
        return OffloadTier(
            self.num_slots,
            self.stored,
            num_host=self.num_host,
            max_age_s=max_age_s,
            num_readable=self.num_readable,
        )


class SchedulerSetup(msgspec.Struct, frozen=True):
    """A pool's size, and the bounds of its use."""

    config: SchedulerConfig
    num_blocks: int
    capacity: int  # blocks that the pool can grow to
    block_size: int
    identity: tuple[bytes, ...]  # of model, KV layout and arithmetic: part of every name's root
    num_ready: int = 0  # blocks that have memory from the start
    speculate: Speculation = Speculation.OFF
    pressure: PressureConfig | None = None  # None: the pool keeps its memory
    pads_steps: bool = False  # a device pads steps to one of few sizes

    def new_scheduler(
        self, tier: TierSetup | None, speculator: Speculator | None, changes: ChangeRecord | None = None
    ) -> Scheduler:
        """A new scheduler. `changes`: where its ledger records arrivals and departures."""
        ledger = Ledger(self.num_blocks, self.block_size, self.capacity)
        ledger.history.changes = changes
        ledger.pool.backing.record_ready(self.num_ready)
        offload = None if tier is None else tier.new_tier()
        return Scheduler(ledger, self.config, self.root_of_tenant, offload, speculator)

    def new_speculator(self) -> Speculator | None:
        """A new speculator; None: no drafts."""
        if self.speculate is Speculation.OFF:
            return None
        return Speculator(self.speculate, padded=padded_positions if self.pads_steps else None)

    def new_pressure(self) -> PressurePolicy | None:
        """A new policy for the machine's memory."""
        return None if self.pressure is None else PressurePolicy(self.pressure)

    def root_of_tenant(self, tenant: str) -> bytes:
        """The root of the names of a tenant's blocks."""
        return root_name(tenant.encode(), *self.identity)
