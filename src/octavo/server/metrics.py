"""Prometheus metrics: the engine's counters, read at each scrape (engine_metrics.py), and the HTTP edge's:
latencies and sizes of requests, finish reasons, and answers.

Each application has its own registry, so that two servers in one process (tests) are counted apart. Front
ends of one engine are counted together: a scrape of any of them returns the sums.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.types import Scope

from octavo import __version__
from octavo.engine.outputs import Delta, EngineStats
from octavo.params import SamplerParams
from octavo.server.engine_metrics import MODEL_LABEL, EngineCollector
from octavo.server.running import FrontEnd
from octavo.server.traces import ChoiceTimes, RequestEnd, RequestTrace, Tracing
from octavo.server.vllm_metrics import VllmCollector, VllmCountsCollector
from octavo.types import FinishReason, Phases, Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)


@dataclass(frozen=True, slots=True)
class _Family:
    """A histogram with one value per request or choice, and vLLM's names of it."""

    name: str  # without "octavo_"
    text: str
    buckets: tuple[float, ...]
    vllm: tuple[str, ...]  # without "vllm:"


_FIRST = _Family(
    "time_to_first_token_seconds",
    "From arrival to the first token",
    _SLOW_S,
    ("time_to_first_token_seconds",),
)
_BETWEEN = _Family(
    "inter_token_seconds",
    "Between two tokens of a choice",
    _FAST_S,
    ("inter_token_latency_seconds", "time_per_output_token_seconds"),  # the second is its older name
)
_WHOLE = _Family(
    "request_seconds", "From arrival to the last token", _SLOW_S, ("e2e_request_latency_seconds",)
)
_QUEUE = _Family(
    "request_queue_seconds",
    "From arrival at the engine to the first admission",
    _SLOW_S,
    ("request_queue_time_seconds",),
)
_LOAD = _Family(
    "request_load_seconds",
    "Part of the queue time spent on loads from the offload tier, for requests that waited for some",
    _SLOW_S,
    (),
)
_PREFILL = _Family(
    "request_prefill_seconds",
    "From the first admission to the first token",
    _SLOW_S,
    ("request_prefill_time_seconds",),
)
_DECODE = _Family(
    "request_decode_seconds",
    "From the first token of a choice to its last",
    _SLOW_S,
    ("request_decode_time_seconds",),
)
_INFERENCE = _Family(
    "request_inference_seconds",
    "From the first admission to the last token of a choice",
    _SLOW_S,
    ("request_inference_time_seconds",),
)
_PROMPT = _Family("request_prompt_tokens", "Tokens of a prompt", _TOKENS, ("request_prompt_tokens",))
_OUTPUT = _Family(
    "request_output_tokens",
    "Tokens of a choice's output",
    _TOKENS,
    ("request_generation_tokens", "request_max_num_generation_tokens"),
)
_FINISHED = "octavo_choices_finished"
_FAMILIES = (_FIRST, _BETWEEN, _WHOLE, _QUEUE, _LOAD, _PREFILL, _DECODE, _INFERENCE, _PROMPT, _OUTPUT)


@dataclass(frozen=True, slots=True)
class Meters:
    """The histograms and counters of each request, in seconds and tokens."""

    first: Histogram
    between: Histogram
    whole: Histogram
    queue: Histogram
    load: Histogram
    prefill: Histogram
    decode: Histogram
    inference: Histogram
    prompt_tokens: Histogram
    output_tokens: Histogram
    finished: Mapping[FinishReason, Counter]


class Metrics:
    """The metrics of one server. `vllm_names`: adds those that vLLM has too, under vLLM's names."""

    def __init__(
        self,
        model_name: str = "",
        *,
        vllm_names: bool = False,
        tracing: Tracing | None = None,
        front_end: FrontEnd | None = None,
    ) -> None:
        self._registry = CollectorRegistry()  # of this process alone
        self._stats = EngineStats()
        if front_end is None:
            pid: int | str = "self"
            counted: Callable[[], Iterable[Metric]] = self._registry.collect
        else:
            # The library's multiprocess mode: each process counts in files of that folder, which are summed.
            files = MultiProcessCollector(None, str(front_end.metrics))  # type: ignore[no-untyped-call]
            pid, counted = front_end.engine_pid, files.collect
        self._counted = counted
        engine_registry = CollectorRegistry()
        engine_registry.register(EngineCollector(lambda: self._stats, model_name))
        self.edge_registry = CollectorRegistry()  # with the metrics of the process
        ProcessCollector(pid=lambda: pid, registry=self.edge_registry)
        self.edge_registry.register(_EdgeCollector(counted))
        self._current, self._older = [engine_registry], [self.edge_registry]  # see `render`
        self._older_text, self._older_time = b"", -math.inf
        self._answers = Counter(
            "octavo_http_requests", "Answered requests", ["route", "status"], registry=self._registry
        )
        self._finished = Counter(
            _FINISHED,
            "Choices that have ended: each of a request's n counts",
            [MODEL_LABEL, "finish_reason"],
            registry=self._registry,
        )
        self._families = {family: self._histogram(family) for family in _FAMILIES}
        self._meters = self._meters_of(model_name)
        self._tracing = tracing
        if vllm_names:
            sources = {"request_success": _FINISHED}
            sources |= {name: f"octavo_{one.name}" for one in _FAMILIES for name in one.vllm}
            self._current, self._older = [CollectorRegistry()], [engine_registry, self.edge_registry]
            self._current[0].register(VllmCollector(lambda: self._stats, model_name))
            self.edge_registry.register(VllmCountsCollector(sources, counted))

    @property
    def registries(self) -> tuple[CollectorRegistry, ...]:
        """All registries that `render` reads."""
        return (*self._current, *self._older)

    def render(self, stats: EngineStats, age_s: float = 0.0) -> bytes:
        """The text of a scrape with the engine's current numbers, by vLLM's names if they are on, else by
        Octavo's. All others, over nine tenths of the work, may be `age_s` old."""
        self._stats = stats
        now = time.perf_counter()
        if now - self._older_time >= age_s:
            self._older_text, self._older_time = b"".join(map(generate_latest, self._older)), now
        return b"".join(map(generate_latest, self._current)) + self._older_text

    def latency(self) -> dict[str, object]:
        """Counts of each latency by bucket: upper bounds in seconds (the last has none), and counts that only
        grow."""
        by_name = {family.name: family for family in self._counted()}
        first, between = (by_name[f"octavo_{one.name}"] for one in (_FIRST, _BETWEEN))
        return {"first": _counts_of(first), "between": _counts_of(between)}

    def count_answer(self, route: str, status: int) -> None:
        """Count an answer; `route` is one of a fixed set, never a path that a client made up."""
        self._answers.labels(route, str(status)).inc()

    def watch(self, scope: Scope) -> RequestWatch:
        """A stopwatch for one request, started now, and kept in its scope for the access log."""
        trace = None if self._tracing is None else self._tracing.begin(scope.get("headers", ()))
        watch = RequestWatch(self._meters, trace)
        scope[RequestWatch.SCOPE_KEY] = watch
        return watch

    def _histogram(self, one: _Family) -> Histogram:
        name, labels = f"octavo_{one.name}", [MODEL_LABEL]
        return Histogram(name, one.text, labels, buckets=one.buckets, registry=self._registry)

    def _meters_of(self, model_name: str) -> Meters:
        """The meters of the model, which the first scrape has already, at zero."""
        of = {one: family.labels(model_name) for one, family in self._families.items()}
        return Meters(
            first=of[_FIRST],
            between=of[_BETWEEN],
            whole=of[_WHOLE],
            queue=of[_QUEUE],
            load=of[_LOAD],
            prefill=of[_PREFILL],
            decode=of[_DECODE],
            inference=of[_INFERENCE],
            prompt_tokens=of[_PROMPT],
            output_tokens=of[_OUTPUT],
            finished={reason: self._finished.labels(model_name, reason.value) for reason in FinishReason},
        )


class RequestWatch:
    """The latencies of one request, as its client measures them, and its usage."""

    SCOPE_KEY: Final = "octavo.watch"

    def __init__(self, meters: Meters, trace: RequestTrace | None = None) -> None:
        self._meters = meters
        self._trace = trace
        self._begun = time.perf_counter()
        # By choice, counted over all prompts.
        self._firsts: dict[int, float] = {}  # time of the first token
        self._last: dict[int, float] = {}  # time of the last token
        self._usage: dict[int, Usage] = {}
        self._finish: dict[int, FinishReason] = {}  # in order of arrival
        self._first_s: float | None = None
        self._params: tuple[SamplerParams, int] | None = None

    def record_params(self, params: SamplerParams, n: int) -> None:
        """Record the request's parameters and its number of choices per prompt."""
        self._params = params, n

    def record(self, index: int, delta: Delta) -> None:
        """Record a delta that has arrived. Its tokens share the time since the last delta."""
        now = time.perf_counter()
        self._usage[index] = delta.usage
        if delta.tokens:
            self._record_tokens(index, len(delta.tokens), now)
        if delta.finish is not None:
            self._finish[index] = delta.finish
            self._meters.finished[delta.finish].inc()
            self._record_end(index, delta, now)

    def _record_tokens(self, index: int, count: int, now: float) -> None:
        last = self._last.get(index)
        if last is not None:
            share = (now - last) / count
            for _ in range(count):
                self._meters.between.observe(share)
        elif not self._last:
            self._first_s = now - self._begun
            self._meters.first.observe(self._first_s)
        self._firsts.setdefault(index, now)
        self._last[index] = now

    def _record_end(self, index: int, delta: Delta, now: float) -> None:
        """Record the end of a choice; the first choice of a prompt counts what its choices share."""
        meters, usage, phases = self._meters, delta.usage, delta.usage.phases
        meters.output_tokens.observe(usage.num_output)
        last = self._last.get(index, now)
        if index in self._last:
            meters.decode.observe(last - self._firsts[index])
        if phases is not None and phases.admitted is not None:
            meters.inference.observe(max(0.0, last - phases.admitted))
        if delta.choice != 0:
            return
        meters.prompt_tokens.observe(usage.num_prompt)
        if phases is not None:
            _observe_phases(meters, phases, now)

    @property
    def first_token_s(self) -> float | None:
        """Seconds from arrival to the first token; None before it."""
        return self._first_s

    @property
    def age_s(self) -> float:
        """Seconds from arrival until now."""
        return time.perf_counter() - self._begun

    @property
    def trace_header(self) -> str | None:
        """The value of the answer's `traceresponse` header; None if the request is not traced."""
        return None if self._trace is None else self._trace.header

    def finish(self) -> None:
        """Record that the last delta of the last choice has arrived."""
        self._meters.whole.observe(time.perf_counter() - self._begun)

    def cancel_rest(self, num_choices: int) -> None:
        """Count choices without an end as cancelled: no more deltas will arrive. Idempotent."""
        for index in range(num_choices):
            if index not in self._finish:
                self._finish[index] = FinishReason.CANCELLED
                self._meters.finished[FinishReason.CANCELLED].inc()

    def close(self, route: str, status: int) -> None:
        """End the trace: the answer is complete, with that status."""
        if self._trace is None:
            return
        choices = tuple(
            ChoiceTimes(
                index,
                self._usage.get(index),
                self._firsts.get(index),
                self._last.get(index),
                self._finish.get(index),
            )
            for index in sorted({*self._usage, *self._finish})
        )
        params, n = self._params or (None, 1)
        self._trace.end(RequestEnd(route, status, self._begun, params, n, choices))

    def log_fields(self) -> dict[str, object]:
        """For the access log: tokens (of all choices; a prompt counts for each), times, finish reasons."""
        usages = self._usage.values()
        fields: dict[str, object] = {
            "prompt_tokens": sum(usage.num_prompt for usage in usages),
            "cached_tokens": sum(usage.num_cached for usage in usages),
            "output_tokens": sum(usage.num_output for usage in usages),
            "preemptions": sum(usage.preemptions for usage in usages),
            "first_token_s": None if self._first_s is None else round(self._first_s, 4),
            "finish": ",".join(dict.fromkeys(reason.value for reason in self._finish.values())),
        }
        return fields if self._trace is None else fields | {"trace_id": self._trace.trace_id}


def _observe_phases(meters: Meters, phases: Phases, now: float) -> None:
    """A request that was never admitted counts as waiting until now."""
    meters.queue.observe((now if phases.admitted is None else phases.admitted) - phases.arrived)
    if phases.loading_begun is not None:
        meters.load.observe((now if phases.loaded is None else phases.loaded) - phases.loading_begun)
    if phases.admitted is not None and phases.first_token is not None:
        meters.prefill.observe(phases.first_token - phases.admitted)


class _EdgeCollector(Collector):
    """The edge's metrics, and Octavo's version."""

    def __init__(self, counted: Callable[[], Iterable[Metric]]) -> None:
        self._counted = counted

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The current families."""
        labels = ["version", "python"]
        built = GaugeMetricFamily("octavo_build_info", "Which Octavo, on which Python", labels=labels)
        built.add_metric([__version__, platform.python_version()], 1)
        yield built
        yield from self._counted()


def _counts_of(family: Metric) -> dict[str, object]:
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    upto = [float(sample.labels["le"]) for sample in buckets][:-1]
    sums = [int(sample.value) for sample in buckets]
    return {"upto": upto, "counts": [b - a for a, b in zip([0, *sums], sums, strict=False)]}
