"""Statistics of an engine: totals and present values, computed when they are read."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.inspect.views import FirstTokenView, TargetView
from octavo.memory.changes import Place
from octavo.memory.name_history import AgeCounts
from octavo.types import RankState, StepResult, Update


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot, taken between two steps. Counters only grow; blocks: free + cached + held == total."""

    waiting: int = 0
    running: int = 0
    blocks_total: int = 0
    blocks_held: int = 0  # with at least one holder
    blocks_cached: int = 0  # no holder, but still named and findable
    blocks_free: int = 0
    device: str = ""  # that holds the blocks and computes
    block_size: int = 16
    prompt_tokens: int = 0  # computed or taken from the cache
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    preemptions_kept: int = 0  # after which blocks were in an offload tier
    preemptions_recomputed: int = 0  # all others
    tokens_recomputed: int = 0  # because of a preemption
    requests_finished: int = 0
    tail_slots_wasted: int = 0  # allocated slots beyond the last planned position, now
    step_seconds: float = 0.0  # total time inside steps
    schedule_seconds: float = 0.0  # part of it: scheduling, building batches and committing
    mask_seconds: float = 0.0  # part of it: computing the tokens that grammars allow
    device_steps: dict[str, int] = field(default_factory=dict)  # by the way a device's kernels were launched
    forced_tokens: int = 0  # part of the output tokens: forced by grammars, without a step
    grammars_compiled: int = 0
    grammar_seconds: float = 0.0  # total time for trying and compiling them
    grammar_bytes: int = 0  # approximate memory of compiled ones
    grammar_refusals: dict[str, int] = field(default_factory=dict)  # by a schema's keyword; "other": the rest
    # Drafted and computed tokens, and accepted ones, by kind of drafter.
    draft_tokens: dict[str, int] = field(default_factory=dict)
    accepted_draft_tokens: dict[str, int] = field(default_factory=dict)
    drafter_bytes: int = 0  # approximate memory of drafters
    evictions: int = 0  # cached blocks taken for new ones
    blocks_resident: int = 0  # that may have memory behind them
    blocks_wanted: int = 0  # the requested size; the pool is smaller while memory is short
    blocks_pinned: int = 0  # for pins
    blocks_offloaded: int = 0  # findable in the offload tiers
    blocks_stored: int = 0  # stored, loaded, and lost in transfer, since the start
    blocks_loaded: int = 0
    transfers_failed: int = 0
    sessions: int = 0  # known to the scheduler
    blocks_cold: int = 0  # that attention reads in an offload tier
    blocks_kept_offloaded: int = 0  # in an offload tier, where only damage drops them
    events: dict[str, int] = field(default_factory=dict)  # by kind
    ranks: tuple[RankState, ...] = ()  # devices that share the model; empty for one device
    target: TargetView | None = None  # for the time between two tokens
    first_tokens: FirstTokenView | None = None  # for the time to the first one
    event_gaps: int = 0  # times that KV events came faster than they could be published
    events_lost: int = 0  # changes dropped at these times
    # Ages of blocks in their tier at a hit, and at their eviction.
    ages_at_hit: dict[Place, AgeCounts] = field(default_factory=dict)
    ages_at_eviction: dict[Place, AgeCounts] = field(default_factory=dict)


@dataclass(slots=True)
class EngineCounters:
    """The monotonic counters, over all schedulers of an engine."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    finished: int = 0
    preemptions_before: int = 0  # of replaced schedulers
    kept_before: int = 0
    tokens_recomputed_before: int = 0
    step_seconds: float = 0.0
    schedule_seconds: float = 0.0
    mask_seconds: float = 0.0
    forced_tokens: int = 0
    device_steps: dict[str, int] = field(default_factory=dict)
    event_gaps: int = 0
    events_lost: int = 0

    def record_events_lost(self, count: int) -> None:
        """So many changes were not published individually."""
        self.event_gaps += count > 0
        self.events_lost += count

    def record_step(self, result: StepResult, schedule_seconds: float) -> None:
        """A step was committed; its scheduling took so long."""
        self.step_seconds += result.seconds + schedule_seconds
        self.schedule_seconds += schedule_seconds + result.batch_seconds
        self.mask_seconds += result.mask_seconds
        self.forced_tokens += result.num_forced
        if result.way is not None:
            self.device_steps[result.way.value] = self.device_steps.get(result.way.value, 0) + 1

    def record_update(self, update: Update) -> None:
        """An update goes to a client."""
        self.output_tokens += len(update.tokens)
        if update.finish is not None and update.choice == 0:
            self.finished += 1
            self.prompt_tokens += update.usage.num_prompt
            self.cached_tokens += update.usage.num_cached
