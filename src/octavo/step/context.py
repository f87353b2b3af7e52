"""The context of every part of the scheduler: its bounds, and leaves that know none of these parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.memory.ledger import Ledger
from octavo.step.events import EventRing
from octavo.step.latency_target import LatencyTarget
from octavo.step.plan_builder import PlanBuilder
from octavo.step.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Bounds of the scheduler. `step_tokens`: the most positions of a step."""

    max_rows: int = 64
    step_tokens: int = 512
    max_waiting: int = 1024
    context_length: int = 8192
    stop_ids: frozenset[int] = frozenset()  # end-of-sequence tokens of the model
    prefix_caching: bool = True
    pace: bool = True  # delay prompts while other sequences decode, once step times are known
    pin_blocks: int = 0  # for all pins together
    bytes_per_block: int = 0  # for messages only
    device: str = ""  # likewise: the device that holds the blocks and computes
    long_context: bool = True  # accept requests larger than the pool if a tier can hold them
    parts_max: int = 1  # of a chunk with cold blocks: the model's layers; 1: not cut
    target_itl_s: float | None = None  # target between two tokens of a sequence; None: `pace` decides
    target_ttft_s: float | None = None  # target to a request's first token
    shed: bool = False  # refuse requests that would miss it
    staging_blocks: int = 0  # after the pool's capacity, to offload blocks of victims


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
