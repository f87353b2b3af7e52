"""The engine's loop without an engine: a real scheduler that a caller gives commands, results and times.

A replay takes these from a recording, a planner from a model of the machine. Nothing is computed, and no
clock is read.
"""

from __future__ import annotations

from collections import deque
from typing import cast

from octavo.engine.port import Command, Port, ReplyT
from octavo.engine.scheduler_setup import SchedulerSetup, TierSetup
from octavo.inspect.stats import EngineCounters
from octavo.scheduler.pressure import PressurePolicy
from octavo.scheduler.scheduler import Scheduler
from octavo.speculation.speculator import Speculator
from octavo.types import StepPlan, StepResult, Update


class VirtualLoop:
    """One engine's life: a scheduler, and its successors after each `begin_again`."""

    def __init__(self, setup: SchedulerSetup, tier: TierSetup | None) -> None:
        self.in_flight: deque[StepPlan] = deque()
        self._counters = EngineCounters()
        self._speculator: Speculator | None = setup.new_speculator()
        self._pressure: PressurePolicy | None = setup.new_pressure()
        self.scheduler: Scheduler = setup.new_scheduler(tier, self._speculator)
        self._port = Port(self.scheduler, self._counters, self._pressure)

    def begin_again(self, setup: SchedulerSetup, tier: TierSetup | None) -> None:
        """Replace the scheduler, as after a broken state."""
        scheduler = setup.new_scheduler(tier, self._speculator)
        scheduler.continue_from(self.scheduler)
        self.scheduler = scheduler
        self._port = Port(scheduler, self._counters, self._pressure)

    def answer(self, command: Command[ReplyT], now: float) -> ReplyT:
        """Execute a command. Raises as it documents."""
        return cast(ReplyT, self._port.answer(command, now))

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, which is then in flight."""
        plan = self.scheduler.schedule(now)
        if plan is not None:
            self.in_flight.append(plan)
        return plan

    def commit(self, result: StepResult, now: float) -> list[Update]:
        """Commit the result of the oldest plan in flight."""
        return self.scheduler.commit(self.in_flight.popleft(), result, now)
