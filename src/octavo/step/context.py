"""What every collaborator of the scheduler is handed: leaves, none of which knows a collaborator."""

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
    """Fields alone. `events` may be replaced by those of an earlier scheduler; the others stay."""

    ledger: Ledger
    config: SchedulerConfig
    times: StepTimes  # what steps take
    target: LatencyTarget  # for the time between tokens
    plan: PlanBuilder = field(default_factory=PlanBuilder)  # in the making
    events: EventRing = field(default_factory=EventRing)
    now: float = 0.0  # of the last call that brought the time
    step_tokens: int = (
        0  # positions of a step at most: the configured ones, or what the device had memory for
    )

    def __post_init__(self) -> None:
        self.step_tokens = self.config.step_tokens
        self.ledger.history.clock = lambda: self.now
