"""Metrics under vLLM's names, so that dashboards made for vLLM work: `--metrics-compat vllm`.

A view of Octavo's own histograms and counters, with Octavo's buckets, read at each scrape. Metrics without a
counterpart here (KV connectors, tokens by iteration) are missing. The family of adapters is present but
empty, because llm-d counts a scrape without it as failed.
Source of names and labels: vLLM's v1/metrics/loggers.py and its example dashboards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from octavo.engine.outputs import EngineStats

_ENGINE = "0"  # vLLM numbers its engines; this is the only one
_LABELS = ("model_name", "engine")
_LORA = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
# vLLM's names of Octavo's finish reasons; the others are the same.
_REASONS = {"cancelled": "abort", "timeout": "abort"}


class VllmCollector(Collector):
    """The engine's metrics."""

    def __init__(self, stats: Callable[[], EngineStats], model_name: str) -> None:
        self._stats = stats
        self._model_name = model_name

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not call the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every family that has a counterpart here."""
        stats = self._stats()
        usage = stats.blocks_held / stats.blocks_total if stats.blocks_total else 0.0
        for name, text, value in (
            ("num_requests_running", "Sequences that run", float(stats.running)),
            ("num_requests_waiting", "Sequences that wait", float(stats.waiting)),
            ("num_requests_swapped", "Always 0: preempted requests count as waiting", 0.0),
            ("kv_cache_usage_perc", "Blocks that are held, of all: 0 to 1", usage),
            ("gpu_cache_usage_perc", "The same, by its older name", usage),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            gauge.add_metric([self._model_name, _ENGINE], value)
            yield gauge
        for name, text, count in (
            ("num_preemptions", "Sequences sent back to waiting", stats.preemptions),
            ("prompt_tokens", "Prompt tokens, computed or taken from the cache", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated", stats.output_tokens),
            ("prefix_cache_queries", "Prompt tokens that were looked up", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens taken from the prefix cache", stats.cached_tokens),
            (
                "spec_decode_num_draft_tokens",
                "Draft tokens that were computed",
                sum(stats.draft_tokens.values()),
            ),
            (
                "spec_decode_num_accepted_tokens",
                "Draft tokens that were accepted",
                sum(stats.accepted_draft_tokens.values()),
            ),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            counter.add_metric([self._model_name, _ENGINE], count)
            yield counter
        cache = GaugeMetricFamily(
            "vllm:cache_config_info", "The pool", labels=["block_size", "num_gpu_blocks", "engine"]
        )
        cache.add_metric([str(stats.block_size), str(stats.blocks_total), _ENGINE], 1)
        yield cache
        adapters = GaugeMetricFamily("vllm:lora_requests_info", "Empty: there are no adapters", labels=_LORA)
        adapters.add_metric(["0", "", ""], time.time())  # the value is the time of the scrape
        yield adapters


class VllmCountsCollector(Collector):
    """The edge's metrics. `sources` maps vLLM's names, without prefix, to Octavo's; `counted` returns the
    families."""

    def __init__(self, sources: Mapping[str, str], counted: Callable[[], Iterable[Metric]]) -> None:
        self._sources = dict(sources)
        self._counted = counted

    def describe(self) -> Iterator[Metric]:
        """Nothing, for the same reason."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every family that has a counterpart here."""
        by_name = {family.name: family for family in self._counted()}
        for name, source in self._sources.items():
            yield _renamed(by_name[source], f"vllm:{name}")


def _renamed(family: Metric, name: str) -> Metric:
    """The samples under another name, with vLLM's labels. Reasons that share a vLLM name are summed."""
    renamed = Metric(name, family.documentation, family.type)
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        if suffix == "_created":
            continue
        labels = {label: value for label, value in sample.labels.items() if label != "finish_reason"}
        labels["engine"] = _ENGINE
        if "finish_reason" in sample.labels:
            reason = sample.labels["finish_reason"]
            labels["finished_reason"] = _REASONS.get(reason, reason)
        key = suffix, tuple(labels.items())
        sums[key] = sums.get(key, 0.0) + sample.value
    for (suffix, pairs), value in sums.items():
        renamed.samples.append(Sample(name + suffix, dict(pairs), value))
    return renamed
