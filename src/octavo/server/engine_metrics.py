"""The engine's statistics as Prometheus' families: one snapshot per scrape, no state here.

Names follow Prometheus' rules: base units, last in the name; counters end in `_total`, which the library
adds, and nothing else does. Every family has the label `model_name`. The values of other labels come from a
fixed set or from the operator, never from a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.engine.outputs import AGES_S, AgeCounts, EngineStats, Place
from octavo.server.former_names import with_former_events

MODEL_LABEL = "model_name"


@dataclass(frozen=True, slots=True)
class _Meter:
    """A family with one number."""

    name: str
    text: str
    read: Callable[[EngineStats], float]


_GAUGES = (
    _Meter("octavo_sequences_waiting", "Sequences that wait to be admitted", lambda s: s.waiting),
    _Meter(
        "octavo_sequences_running",
        "Sequences that hold blocks and take part in steps",
        lambda s: s.running,
    ),
    _Meter("octavo_block_size_tokens", "Tokens in a block", lambda s: s.block_size),
    _Meter("octavo_pool_blocks", "Blocks that the pool has now", lambda s: s.blocks_total),
    _Meter(
        "octavo_blocks_wanted",
        "Blocks that the pool has while memory is not short",
        lambda s: s.blocks_wanted,
    ),
    _Meter("octavo_blocks_resident", "Blocks whose memory is allocated", lambda s: s.blocks_resident),
    _Meter("octavo_blocks_pinned", "Blocks that pins may hold", lambda s: s.blocks_pinned),
    _Meter(
        "octavo_tail_slots_wasted",
        "Allocated slots beyond the last planned position",
        lambda s: s.tail_slots_wasted,
    ),
    _Meter(
        "octavo_blocks_offloaded",
        "Blocks that can be found in an offload tier",
        lambda s: s.blocks_offloaded,
    ),
    _Meter("octavo_blocks_below", "Former name of octavo_blocks_offloaded", lambda s: s.blocks_offloaded),
    _Meter(
        "octavo_blocks_cold",
        "Blocks of an offload tier that sequences read there for each token",
        lambda s: s.blocks_cold,
    ),
    _Meter(
        "octavo_blocks_kept_offloaded",
        "Blocks that an offload tier drops only if they are damaged",
        lambda s: s.blocks_kept_offloaded,
    ),
    _Meter(
        "octavo_blocks_kept_below",
        "Former name of octavo_blocks_kept_offloaded",
        lambda s: s.blocks_kept_offloaded,
    ),
    _Meter("octavo_sessions", "Chat sessions that the engine knows", lambda s: s.sessions),
    _Meter("octavo_grammar_bytes", "Approximate memory of compiled grammars", lambda s: s.grammar_bytes),
    _Meter("octavo_drafter_bytes", "Approximate memory of the drafters of tokens", lambda s: s.drafter_bytes),
)
_COUNTERS = (
    _Meter(
        "octavo_prompt_tokens", "Prompt tokens, computed or taken from the cache", lambda s: s.prompt_tokens
    ),
    _Meter("octavo_cached_tokens", "Prompt tokens taken from the prefix cache", lambda s: s.cached_tokens),
    _Meter("octavo_output_tokens", "Tokens generated", lambda s: s.output_tokens),
    _Meter("octavo_steps", "Engine steps", lambda s: s.steps),
    _Meter("octavo_step_seconds", "Time inside steps", lambda s: s.step_seconds),
    _Meter(
        "octavo_schedule_seconds",
        "Time inside steps spent on scheduling, building batches and committing",
        lambda s: s.schedule_seconds,
    ),
    _Meter("octavo_mask_seconds", "Time inside steps spent on what grammars allow", lambda s: s.mask_seconds),
    _Meter("octavo_preemptions", "Sequences sent back to waiting", lambda s: s.preemptions),
    _Meter(
        "octavo_preemptions_kept",
        "Preemptions with blocks in an offload tier afterwards",
        lambda s: s.preemptions_kept,
    ),
    _Meter(
        "octavo_preemptions_recomputed",
        "Preemptions without blocks in an offload tier afterwards",
        lambda s: s.preemptions_recomputed,
    ),
    _Meter(
        "octavo_tokens_recomputed",
        "Positions computed again after a preemption",
        lambda s: s.tokens_recomputed,
    ),
    _Meter("octavo_evictions", "Cached blocks evicted for new ones", lambda s: s.evictions),
    _Meter("octavo_blocks_stored", "Blocks stored in an offload tier", lambda s: s.blocks_stored),
    _Meter("octavo_blocks_loaded", "Blocks loaded from an offload tier", lambda s: s.blocks_loaded),
    _Meter(
        "octavo_transfers_failed",
        "Blocks whose transfer to or from an offload tier failed",
        lambda s: s.transfers_failed,
    ),
    _Meter(
        "octavo_forced_tokens",
        "Output tokens that a grammar forced: they cost no step",
        lambda s: s.forced_tokens,
    ),
    _Meter(
        "octavo_grammars_compiled", "Grammars and schemas that were compiled", lambda s: s.grammars_compiled
    ),
    _Meter(
        "octavo_grammar_compile_seconds",
        "Time spent on trying and compiling grammars",
        lambda s: s.grammar_seconds,
    ),
    _Meter(
        "octavo_engine_requests_finished",
        "Requests that the engine has ended, for any reason",
        lambda s: s.requests_finished,
    ),
    _Meter(
        "octavo_kv_event_gaps",
        "Times when KV events came faster than they could be published",
        lambda s: s.event_gaps,
    ),
    _Meter(
        "octavo_kv_events_lost",
        "Changes of blocks that were dropped then: routers were sent all blocks instead",
        lambda s: s.events_lost,
    ),
)


class EngineCollector(Collector):
    """Turns a snapshot of the engine into families; it calls `stats` for each scrape."""

    def __init__(self, stats: Callable[[], EngineStats], model_name: str) -> None:
        self._stats = stats
        self._model_name = model_name

    def describe(self) -> Iterator[Metric]:
        """Nothing: registration must not call the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One family per statistic."""
        stats = self._stats()
        for meter in _GAUGES:
            yield self._gauge(meter.name, meter.text, float(meter.read(stats)))
        for meter in _COUNTERS:
            yield self._counter(meter.name, meter.text, float(meter.read(stats)))
        blocks = GaugeMetricFamily(
            "octavo_blocks", "Blocks of KV memory by state: all of the pool", labels=[MODEL_LABEL, "state"]
        )
        for state, count in (
            ("held", stats.blocks_held),
            ("cached", stats.blocks_cached),
            ("free", stats.blocks_free),
        ):
            blocks.add_metric([self._model_name, state], count)
        yield blocks
        device = GaugeMetricFamily(
            "octavo_device_info",
            "The device that computes and has the blocks",
            labels=[MODEL_LABEL, "device"],
        )
        device.add_metric([self._model_name, stats.device], 1)
        yield device
        yield self._counter_by(
            "octavo_device_steps",
            "Steps on a device: replayed, launched, warming (later replayed), first of a size",
            "way",
            stats.device_steps,
        )
        yield from self._target_families(stats)
        if stats.ranks:
            yield from self._rank_families(stats)
        yield self._age_histogram(
            "octavo_block_age_at_hit_seconds",
            "How long blocks had been in their tier when prompts found them there",
            stats.ages_at_hit,
        )
        yield self._age_histogram(
            "octavo_block_age_at_eviction_seconds",
            "How long blocks had been in their tier when they were evicted from it",
            stats.ages_at_eviction,
        )
        yield self._counter_by(
            "octavo_events",
            "What happened to a request, pin or session",
            "kind",
            with_former_events(stats.events),
        )
        yield self._counter_by(
            "octavo_grammar_refusals", "Schemas refused, by keyword", "keyword", stats.grammar_refusals
        )
        yield self._counter_by(
            "octavo_draft_tokens", "Draft tokens that were computed", "drafter", stats.draft_tokens
        )
        yield self._counter_by(
            "octavo_accepted_draft_tokens",
            "Draft tokens that were accepted",
            "drafter",
            stats.accepted_draft_tokens,
        )

    def _target_families(self, stats: EngineStats) -> Iterator[Metric]:
        """The families of latency targets, if there are any."""
        if stats.target is not None:
            target = stats.target
            yield self._gauge(
                "octavo_target_itl_seconds", "Target for the time between two tokens", target.seconds
            )
            yield self._gauge(
                "octavo_predicted_itl_seconds",
                "Predicted time of the step that was committed last",
                target.predicted_s,
            )
            yield self._counter(
                "octavo_itl_gaps", "Gaps between decoding steps since the target was set", target.gaps
            )
            yield self._counter_by(
                "octavo_itl_gaps_missed",
                "Gaps longer than the target: with prompts or drafts in the step, or by decoding alone",
                "by",
                {"prompts": target.missed, "decoding": target.missed_alone},
            )
        if stats.first_tokens is not None:
            first = stats.first_tokens
            yield self._gauge(
                "octavo_target_ttft_seconds", "Target for the time to the first token", first.seconds
            )
            yield self._gauge(
                "octavo_predicted_ttft_seconds",
                "Predicted time to the first token of the last arrival",
                first.predicted_s,
            )
            yield self._counter(
                "octavo_ttft_counted", "Requests that got a first token, under a target", first.counted
            )
            yield self._counter(
                "octavo_ttft_late", "Requests whose first token came later than the target", first.late
            )
            yield self._counter(
                "octavo_requests_shed", "Requests refused because they would have been late", first.shed
            )

    def _rank_families(self, stats: EngineStats) -> Iterator[Metric]:
        """The families of devices that compute a model together."""
        yield self._counter_by(
            "octavo_rank_wait_seconds",
            "Time that each device waited for the others that compute the model with it",
            "rank",
            {str(one.rank): one.waited_s for one in stats.ranks},
        )
        memory = GaugeMetricFamily(
            "octavo_rank_memory_bytes", "Memory in use on each device", labels=[MODEL_LABEL, "rank"]
        )
        for one in stats.ranks:
            memory.add_metric([self._model_name, str(one.rank)], one.memory_bytes)
        yield memory

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[MODEL_LABEL])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=[MODEL_LABEL])
        family.add_metric([self._model_name], value)
        return family

    def _age_histogram(self, name: str, text: str, ages: Mapping[Place, AgeCounts]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=[MODEL_LABEL, "tier"])
        bounds = [*map(str, AGES_S), "+Inf"]
        for place in Place:
            one = ages.get(place) or AgeCounts()
            counts = list(zip(bounds, map(float, accumulate(one.counts)), strict=True))
            family.add_metric([self._model_name, place.value], counts, one.seconds)
        return family

    def _counter_by(self, name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[MODEL_LABEL, label])
        for value, count in counts.items():
            family.add_metric([self._model_name, value], count)
        return family
