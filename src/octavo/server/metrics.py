"""Prometheus metrics: what the engine counts, read when scraped, and what only the edge can see, its
latencies.

Each application has its own registry, so that two servers in one process (tests) do not add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from octavo.engine.outputs import Delta, EngineStats
from octavo.types import Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_GAUGES = MappingProxyType(
    {
        "waiting": ("octavo_sequences_waiting", "Sequences that wait to be admitted"),
        "running": ("octavo_sequences_running", "Sequences that hold blocks and take part in steps"),
        "block_size": ("octavo_block_size_tokens", "Tokens in a block"),
        "blocks_resident": ("octavo_blocks_resident", "Blocks that have memory behind them"),
        "blocks_wanted": ("octavo_blocks_wanted", "Blocks that the pool has while memory is not short"),
        "blocks_pinned": ("octavo_blocks_pinned", "Blocks that pins may hold"),
        "blocks_below": ("octavo_blocks_below", "Blocks that can be found in the tier below"),
        "sessions": ("octavo_sessions", "Chat sessions that the engine knows"),
        "drafter_bytes": ("octavo_drafter_bytes", "Memory of what guesses tokens, nearly"),
        "blocks_kept_below": (
            "octavo_blocks_kept_below",
            "Blocks that only damage drops from the tier below",
        ),
        "tail_slots_wasted": ("octavo_tail_slots_wasted", "Allocated slots beyond the last planned position"),
    }
)
_COUNTERS = MappingProxyType(
    {
        "prompt_tokens": ("octavo_prompt_tokens", "Prompt tokens, computed or taken from the cache"),
        "cached_tokens": ("octavo_cached_tokens", "Prompt tokens taken from the prefix cache"),
        "output_tokens": ("octavo_output_tokens", "Tokens generated"),
        "steps": ("octavo_steps", "Engine steps"),
        "preemptions": ("octavo_preemptions", "Sequences sent back to waiting"),
        "preemptions_kept": ("octavo_preemptions_kept", "Of these, blocks were below afterwards"),
        "preemptions_recomputed": ("octavo_preemptions_recomputed", "Of these, nothing was below afterwards"),
        "tokens_recomputed": ("octavo_tokens_recomputed", "Positions computed again after a preemption"),
        "blocks_stored": ("octavo_blocks_stored", "Blocks sent to the tier below"),
        "blocks_loaded": ("octavo_blocks_loaded", "Blocks brought up from the tier below"),
        "transfers_failed": ("octavo_transfers_failed", "Blocks lost on their way to or from the tier below"),
        "evictions": ("octavo_evictions", "Cached blocks taken for new ones"),
        "forced_tokens": ("octavo_forced_tokens", "Output tokens that a grammar forced: they cost no step"),
        "mask_seconds": ("octavo_mask_seconds", "Time inside steps spent on what grammars allow"),
        "grammars_compiled": ("octavo_grammars_compiled", "Grammars and schemas that were compiled"),
        "grammar_seconds": ("octavo_grammar_compile_seconds", "Time spent on compiling them"),
        "requests_finished": ("octavo_engine_requests_finished", "Requests that the engine has ended"),
        "step_seconds": ("octavo_step_seconds", "Time inside steps"),
        "schedule_seconds": (
            "octavo_schedule_seconds",
            "Time inside steps spent on scheduling, building batches and committing",
        ),
    }
)


class Metrics:
    """The registry of one server. `stats` is called once per scrape."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self._answers = Counter(
            "octavo_http_requests", "Answered requests", ["route", "status"], registry=self._registry
        )
        self._first = self._histogram("time_to_first_token", "From arrival to the first token", _SLOW_S)
        self._between = self._histogram("inter_token", "Between two tokens of a choice", _FAST_S)
        self._whole = self._histogram("request", "From arrival to the last token", _SLOW_S)

    def render(self) -> bytes:
        """The scrape."""
        return generate_latest(self._registry)

    def latency(self) -> dict[str, object]:
        """How often each latency was seen, by bucket: upper bounds in seconds (the last has none), counts
        that only grow."""
        return {"first": _counts_of(self._first), "between": _counts_of(self._between)}

    def count_answer(self, route: str, status: int) -> None:
        """One more answer; `route` is one of a fixed set, never a path that a client made up."""
        self._answers.labels(route, str(status)).inc()

    def watch(self, scope: Scope) -> RequestWatch:
        """A stopwatch for one request, started now, and noted in its scope for the access log."""
        watch = RequestWatch(self._first, self._between, self._whole)
        scope[RequestWatch.SCOPE_KEY] = watch
        return watch

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"octavo_{name}_seconds", text, buckets=buckets, registry=self._registry)


class RequestWatch:
    """The latencies of one request, as its client sees them, and what it cost."""

    SCOPE_KEY: Final = "octavo.watch"

    def __init__(self, first: Histogram, between: Histogram, whole: Histogram) -> None:
        self._first = first
        self._between = between
        self._whole = whole
        self._begun = time.perf_counter()
        self._last: dict[int, float] = {}  # choice index over all prompts -> time of its last token
        self._usage: dict[int, Usage] = {}  # likewise
        self._finishes: dict[str, None] = {}  # in order of coming
        self._first_s: float | None = None

    def see(self, index: int, delta: Delta) -> None:
        """A delta has arrived. Several tokens at once share the time since the last delta."""
        self._usage[index] = delta.usage
        if delta.finish is not None:
            self._finishes[delta.finish.value] = None
        if not delta.tokens:
            return
        now = time.perf_counter()
        last = self._last.get(index)
        if last is not None:
            share = (now - last) / len(delta.tokens)
            for _ in delta.tokens:
                self._between.observe(share)
        elif not self._last:
            self._first_s = now - self._begun
            self._first.observe(self._first_s)
        self._last[index] = now

    @property
    def first_token_s(self) -> float | None:
        """From arrival to the first token; None before it."""
        return self._first_s

    @property
    def age_s(self) -> float:
        """From arrival until now."""
        return time.perf_counter() - self._begun

    def finish(self) -> None:
        """The last delta of the last choice has arrived."""
        self._whole.observe(time.perf_counter() - self._begun)

    def told(self) -> dict[str, object]:
        """What the access log tells: tokens (of all choices; a prompt counts for each), times, finishes."""
        usages = self._usage.values()
        return {
            "prompt_tokens": sum(usage.num_prompt for usage in usages),
            "cached_tokens": sum(usage.num_cached for usage in usages),
            "output_tokens": sum(usage.num_output for usage in usages),
            "preemptions": sum(usage.preemptions for usage in usages),
            "first_token_s": None if self._first_s is None else round(self._first_s, 4),
            "finish": ",".join(self._finishes),
        }


def _counts_of(histogram: Histogram) -> dict[str, object]:
    [family] = histogram.collect()
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    upto = [float(sample.labels["le"]) for sample in buckets][:-1]
    sums = [int(sample.value) for sample in buckets]
    return {"upto": upto, "counts": [b - a for a, b in zip([0, *sums], sums, strict=False)]}


class _EngineCollector(Collector):
    """Turns a snapshot of the engine into metrics."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not call the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One family per statistic, and the blocks by state."""
        stats = self._stats()
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=float(getattr(stats, field)))
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=float(getattr(stats, field)))
        blocks = GaugeMetricFamily("octavo_blocks", "Blocks of KV memory by state", labels=["state"])
        blocks.add_metric(["held"], stats.blocks_held)
        blocks.add_metric(["cached"], stats.blocks_cached)
        blocks.add_metric(["free"], stats.blocks_free)
        yield blocks
        device = GaugeMetricFamily(
            "octavo_device_info", "Where the blocks lie, and what computes", labels=["device"]
        )
        device.add_metric([stats.device], 1)
        yield device
        events = CounterMetricFamily("octavo_events", "What happened to somebody, by kind", labels=["kind"])
        for kind, count in stats.events.items():
            events.add_metric([kind], count)
        yield events
        refused = CounterMetricFamily(
            "octavo_grammar_refusals", "Schemas refused, by keyword", labels=["keyword"]
        )
        for keyword, count in stats.grammar_refusals.items():
            refused.add_metric([keyword], count)
        yield refused
        for name, words, counts in (
            ("octavo_draft_tokens", "Tokens that were guessed and computed", stats.draft_tokens),
            ("octavo_accepted_draft_tokens", "Of them, those that were right", stats.accepted_draft_tokens),
        ):
            guessed = CounterMetricFamily(name, words, labels=["drafter"])
            for drafter, count in counts.items():
                guessed.add_metric([drafter], count)
            yield guessed
        yield GaugeMetricFamily("octavo_blocks_total", "Blocks of KV memory", value=float(stats.blocks_total))
