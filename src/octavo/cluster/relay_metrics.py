"""What a relay counts: how requests were shared out, and what became of them."""

from __future__ import annotations

import os
from collections import Counter as Counted
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.routing.router import Router, RouterCounts

_ROUTER_HELP = {
    "chosen": "Requests for which a replica was chosen",
    "full": "Requests that were refused because all replicas were full",
    "none": "Requests that were refused because no replica was there",
    "prompt_tokens": "Prompt tokens of requests that were sent to a replica",
    "predicted_tokens": "Of these, tokens that were expected in that replica's cache",
    "moved": "Requests that were sent elsewhere than to the replica with most of their prompt",
}


class RelayMetrics:
    """The registry of one relay, and its router's counts."""

    def __init__(self, router: Router) -> None:
        self._counts = router.counts
        self._registry = registry = CollectorRegistry()
        registry.register(_RouterCollector(router.counts))
        self.requests = Counter(
            "octavo_relay_requests", "Requests that were passed to a replica", ["to"], registry=registry
        )
        self._num_open = Counted[str]()
        self._open = Gauge(
            "octavo_relay_answers_open", "Answers that are being passed on", ["to"], registry=registry
        )
        self.lost = Counter(
            "octavo_relay_lost", "Replicas that were lost before they answered a request", registry=registry
        )
        self.refused = Counter(
            "octavo_relay_refused", "Refusals of one replica after which another was tried", registry=registry
        )
        self.cut = Counter(
            "octavo_relay_cut", "Answers that were cut because their replica was lost", registry=registry
        )

    def num_open(self, name: str) -> int:
        """Answers of that replica that are being passed on."""
        return self._num_open[name]

    @contextmanager
    def answering(self, name: str) -> Iterator[None]:
        """That replica has one more answer, as long as this is entered."""
        self._num_open[name] += 1
        try:
            with self._open.labels(name).track_inprogress():
                yield
        finally:
            self._num_open[name] -= 1

    def counts(self) -> dict[str, float]:
        """What GET /cluster shows."""
        totals = {name: f"octavo_relay_{name}_total" for name in ("lost", "refused", "cut")}
        own = {name: self._registry.get_sample_value(total) or 0 for name, total in totals.items()}
        return own | asdict(self._counts)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)


class _RouterCollector(Collector):
    def __init__(self, counts: RouterCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for name, text in _ROUTER_HELP.items():
            yield CounterMetricFamily(f"octavo_router_{name}", text, value=getattr(self._counts, name))


def relay_label() -> str:
    """What the label `replica` says of a relay's own figures: there may be several on one port."""
    return f"relay-{os.getpid()}"
