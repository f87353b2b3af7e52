"""GET /cluster: the replicas as an operator sees them."""

from __future__ import annotations

import time

import msgspec

from octavo.cluster.fleet import Fleet, Replica
from octavo.cluster.relay_metrics import RelayMetrics
from octavo.routing.router import ReplicaState, Router
from octavo.server.errors import JsonObject


def cluster_view(fleet: Fleet, router: Router, metrics: RelayMetrics) -> JsonObject:
    """By slot: what each replica is, what it reported last, and what this relay counts. Times are in seconds,
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
        silent = "its reports are not read, so the router does not choose it"
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
