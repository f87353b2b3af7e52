"""What an engine has done so far, and what it holds now, in numbers. Computed when they are read."""

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
    device: str = ""  # where they lie, and what computes
    block_size: int = 16
    prompt_tokens: int = 0  # computed or taken from the cache
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    preemptions_kept: int = 0  # after which blocks were below
    preemptions_recomputed: int = 0  # and others
    tokens_recomputed: int = 0  # computed again because of a preemption
    requests_finished: int = 0
    tail_slots_wasted: int = 0  # allocated slots beyond the last planned position, now
    step_seconds: float = 0.0  # total time inside steps
    schedule_seconds: float = 0.0  # of it, scheduling, building batches and committing
    mask_seconds: float = 0.0  # of it, telling which tokens grammars allow
    device_steps: dict[str, int] = field(default_factory=dict)  # by how a device's kernels were started
    forced_tokens: int = 0  # of the output tokens, those that grammars forced: they cost no step
    grammars_compiled: int = 0
    grammar_seconds: float = 0.0  # total time for trying and compiling them
    grammar_bytes: int = 0  # of memory that compiled ones take, about
    grammar_refusals: dict[str, int] = field(default_factory=dict)  # by a schema's keyword; "other": the rest
    # Tokens that were guessed and computed, and of them those that were right, by kind of drafter.
    draft_tokens: dict[str, int] = field(default_factory=dict)
    accepted_draft_tokens: dict[str, int] = field(default_factory=dict)
    drafter_bytes: int = 0  # memory of what guesses, nearly
    evictions: int = 0  # cached blocks taken for new ones
    blocks_resident: int = 0  # that may have memory behind them: taken, and not given back since
    blocks_wanted: int = 0  # the size that was asked for; the pool is smaller while memory is short
    blocks_pinned: int = 0  # that pins may hold
    blocks_offloaded: int = 0  # that can be found in the tier below
    blocks_stored: int = 0  # sent down, brought up, and lost on the way, since the start
    blocks_loaded: int = 0
    transfers_failed: int = 0
    sessions: int = 0  # that the scheduler knows
    blocks_cold: int = 0  # in a tier below, that attention reads there
    blocks_kept_offloaded: int = 0  # that only damage drops from the tier below
    events: dict[str, int] = field(default_factory=dict)  # by kind
    ranks: tuple[RankState, ...] = ()  # devices that compute the model together; of one device none
    target: TargetView | None = None  # for the time between two tokens
    first_tokens: FirstTokenView | None = None  # for the time to the first one
    event_gaps: int = 0  # how often KV events came faster than they could be published
    events_lost: int = 0  # changes that were dropped then
    # How long blocks had been in their tier when requests found them, and when they were evicted from it.
    ages_at_hit: dict[Place, AgeCounts] = field(default_factory=dict)
    ages_at_eviction: dict[Place, AgeCounts] = field(default_factory=dict)


@dataclass(slots=True)
class EngineCounters:
    """What only grows: of all schedulers that an engine has had."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    finished: int = 0
    preemptions_before: int = 0  # by schedulers that were replaced
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
        """So many changes were not published one by one."""
        self.event_gaps += count > 0
        self.events_lost += count

    def record_step(self, result: StepResult, schedule_seconds: float) -> None:
        """A step was committed, whose scheduling took so long."""
        self.step_seconds += result.seconds + schedule_seconds
        self.schedule_seconds += schedule_seconds + result.batch_seconds
        self.mask_seconds += result.mask_seconds
        self.forced_tokens += result.num_forced
        if result.way is not None:
            self.device_steps[result.way.value] = self.device_steps.get(result.way.value, 0) + 1

    def record_update(self, update: Update) -> None:
        """A client learns this."""
        self.output_tokens += len(update.tokens)
        if update.finish is not None and update.choice == 0:
            self.finished += 1
            self.prompt_tokens += update.usage.num_prompt
            self.cached_tokens += update.usage.num_cached
