"""The context of every part of the scheduler: leaves that know none of these parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.memory.ledger import Ledger
from octavo.step.config import SchedulerConfig
from octavo.step.events import EventRing
from octavo.step.latency_target import LatencyTarget
from octavo.step.plan_builder import PlanBuilder
from octavo.step.step_times import StepTimes


@dataclass(slots=True, eq=False)
class Context:
    """Plain fields. `events` may be replaced by those of an earlier scheduler; the others stay."""

    ledger: Ledger
    config: SchedulerConfig
    times: StepTimes  # measured costs of steps
    target: LatencyTarget  # for the time between two tokens
    plan: PlanBuilder = field(default_factory=PlanBuilder)  # in the making
    events: EventRing = field(default_factory=EventRing)
    now: float = 0.0  # time of the last call
    step_tokens: int = 0  # most positions of a step: as configured, or fewer after a shortage of memory

    def __post_init__(self) -> None:
        self.step_tokens = self.config.step_tokens
        self.ledger.history.clock = lambda: self.now
