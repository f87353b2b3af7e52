"""What every collaborator of the scheduler is handed: leaves, none of which knows a collaborator."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.memory.memory import Memory
from octavo.scheduler.budget import Pace
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.diff import PlanDiff
from octavo.scheduler.events import EventRing


@dataclass(slots=True, eq=False)
class Context:
    """Fields alone. `events` may be replaced by those of an earlier scheduler; the others stay."""

    ledger: Memory
    config: SchedulerConfig
    costs: Pace  # measured costs of a step's positions
    plan: PlanDiff = field(default_factory=PlanDiff)  # in the making
    events: EventRing = field(default_factory=EventRing)
    now: float = 0.0  # of the last call that brought the time
