"""A relay's metrics, and GET /cluster: the replicas as an operator sees them."""

from __future__ import annotations

import os
import time
from collections import Counter as Counted
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.cluster.fleet import Fleet, Replica
from octavo.routing.router import ReplicaState, Router, RouterCounts
from octavo.server.errors import JsonObject

_ROUTER_HELP = {
    "chosen": "Requests for which a replica was chosen",
    "full": "Requests that were refused because all replicas were full",
    "none": "Requests that were refused because no replica was there",
    "prompt_tokens": "Prompt tokens of requests that were sent to a replica",
    "predicted_tokens": "Of these, tokens that were expected in that replica's cache",
    "moved": "Requests that were sent elsewhere than to the replica with most of their prompt",
}


class RelayMetrics:
    """The metrics of one relay and its router."""

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
        """Answers of this replica that are being passed on."""
        return self._num_open[name]

    @contextmanager
    def answering(self, name: str) -> Iterator[None]:
        """Count an answer of this replica as open until the block ends."""
        self._num_open[name] += 1
        try:
            with self._open.labels(name).track_inprogress():
                yield
        finally:
            self._num_open[name] -= 1

    def counts(self) -> dict[str, float]:
        """The counts in GET /cluster."""
        totals = {name: f"octavo_relay_{name}_total" for name in ("lost", "refused", "cut")}
        own = {name: self._registry.get_sample_value(total) or 0 for name, total in totals.items()}
        return own | asdict(self._counts)

    def render(self) -> bytes:
        """The relay's metrics, in Prometheus' text format."""
        return generate_latest(self._registry)


class _RouterCollector(Collector):
    def __init__(self, counts: RouterCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for name, text in _ROUTER_HELP.items():
            yield CounterMetricFamily(f"octavo_router_{name}", text, value=getattr(self._counts, name))


def relay_label() -> str:
    """The label `replica` of a relay's own metrics: several relays may share a port."""
    return f"relay-{os.getpid()}"


def cluster_view(fleet: Fleet, router: Router, metrics: RelayMetrics) -> JsonObject:
    """GET /cluster: each replica by slot with its last report, and this relay's counts. Times are in seconds,
    predicted waits in milliseconds."""
    states = {state.replica_id: state for state in router.states(time.monotonic())}
    replicas = sorted(fleet.replicas().values(), key=lambda one: (one.slot, one.replica_id))
    return {
        "object": "cluster",
        "now": time.time(),
        "replicas": [_row(one, states.get(one.replica_id), metrics) for one in replicas],
        "relay": metrics.counts(),
    }


def _row(replica: Replica, state: ReplicaState | None, metrics: RelayMetrics) -> JsonObject:
    row: JsonObject = {
        "name": replica.name,
        "id": replica.replica_id,
        "slot": replica.slot,
        "state": replica.state,
        "reason": replica.reason,
        "since": replica.since,
        "node": replica.node,
        "answering": metrics.num_open(replica.name),
        "load": None,
    }
    if state is None:
        silent = "its feed is not read, so the router does not choose it"
        return row | {"reason": replica.reason or silent}
    load = msgspec.to_builtins(state.load)
    return row | {
        "model": state.hello.model,
        "fingerprint": state.hello.fingerprint,
        "load": load,
        "load_age": round(state.load_age_s, 3),
        "wait_ms": round(state.wait_ms, 1),
        "blocks_known": state.num_blocks,
    }
