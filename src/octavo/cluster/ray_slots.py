"""The actor that assigns slots to replicas. Its table survives it in Ray's store.

    EngineReplica --claim--> SlotKeeper --> SlotTable (pure)     stored after each change
                                |
                                +-- Ray: which replicas live, how many are wanted

The first replica that claims a slot starts the actor; Ray restarts it after a crash.
"""

from __future__ import annotations

import time
from typing import cast

import msgspec
import ray
from ray import serve
from ray.actor import ActorHandle

from octavo.cluster.ray_access import ENGINE_DEPLOYMENT, ENGINES, NAMESPACE, read_value, write_value
from octavo.cluster.slot_table import SlotHolder, SlotTable

_NAME = "octavo-slots"
_KEY = b"slots"
_ENDING = ("STOPPING",)


class SlotKeeper:
    """An actor, which runs one call at a time."""

    def __init__(self) -> None:
        self._table = SlotTable()
        if (stored := read_value(_KEY)) is not None:
            self._table = msgspec.json.decode(stored, type=SlotTable)

    def claim(self, replica_id: str, node: str) -> int | None:
        """A slot, or None: the replica must wait until one is free."""
        slot = self._table.claim(replica_id, node, _num_replicas(), _LivingReplicas(), time.time())
        self._store()
        return slot

    def on_ready(self, replica_id: str, base_url: str, pid: int) -> None:
        """The replica's child serves."""
        self._table.on_ready(replica_id, base_url, pid)
        self._store()

    def release(self, replica_id: str) -> None:
        """The replica has ended."""
        self._table.release(replica_id, time.time())
        self._store()

    def slots(self) -> bytes:
        """The table, as JSON."""
        return msgspec.json.encode(self._table)

    def _store(self) -> None:
        write_value(_KEY, msgspec.json.encode(self._table))


class _LivingReplicas:
    """The ids of replicas whose actors live, looked up in Ray by name."""

    def __contains__(self, replica_id: object) -> bool:
        try:
            ray.get_actor(f"SERVE_REPLICA::{ENGINES}#{ENGINE_DEPLOYMENT}#{replica_id}", namespace="serve")
        except ValueError:
            return False
        return True


def slot_keeper() -> ActorHandle[SlotKeeper]:
    """The cluster's slot keeper, started if there is none."""
    options = {"name": _NAME, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    actor = ray.remote(SlotKeeper).options(**options, num_cpus=0, max_restarts=-1, max_task_retries=-1)
    return cast("ActorHandle[SlotKeeper]", actor.remote())


def read_slots() -> list[SlotHolder]:
    """The table as the keeper stored it last, also while the keeper is dead."""
    stored = read_value(_KEY)
    return [] if stored is None else msgspec.json.decode(stored, type=SlotTable).slots


def end_slot_keeper() -> None:
    """Stop the slot keeper. Does nothing if there is none."""
    try:
        ray.kill(ray.get_actor(_NAME, namespace=NAMESPACE), no_restart=True)
    except ValueError:
        return


def _num_replicas() -> int:
    """How many replicas are wanted: all that are not stopping."""
    found = serve.status().applications.get(ENGINES)
    states = {} if found is None else found.deployments[ENGINE_DEPLOYMENT].replica_states
    return sum(count for state, count in states.items() if state not in _ENDING)
