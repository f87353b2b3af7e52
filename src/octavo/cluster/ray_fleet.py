"""The fleet of Ray Serve: which replicas run, and how a relay reserves one.

    Serve's updates -> RankedReplicas (ray_router.py) -> RunningReplicas -> RayFleet -> relay

Ray creates the router from a copy of its class, in another thread, out of the relay's reach. So the table of
replicas is in this module, which is not copied: one per process, replaced as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar

from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from octavo.cluster.fleet import NoReplicaLeft, Replica
from octavo.cluster.slot_table import SlotHolder

_RESERVE_S = 10.0  # a replica may have died without Ray's notice


class RunningReplicas:
    """The running replicas by id, in this process."""

    current: ClassVar[Mapping[str, Replica]] = {}


class RayFleet:
    """The replicas of Serve's deployment, as a `Fleet`."""

    def __init__(self, handle: DeploymentHandle, key: str) -> None:
        self._handle, self._key = handle, key
        self._slots: Sequence[SlotHolder] = ()
        self._seen: Mapping[str, Replica] = {}
        self._all: Mapping[str, Replica] = {}

    @property
    def cluster_key(self) -> str:
        """The key of the replicas' private ports."""
        return self._key

    def replicas(self) -> Mapping[str, Replica]:
        """Running replicas, and others that have a slot, without an address."""
        if self._seen is not RunningReplicas.current:
            self._merge()
        return self._all

    def on_slots(self, slots: Sequence[SlotHolder]) -> None:
        """Take the new table of slots."""
        self._slots = slots
        self._merge()

    def _merge(self) -> None:
        self._seen = RunningReplicas.current
        others = {
            slot.holder: Replica(
                replica_id=slot.holder,
                slot=number,
                base_url="",
                state="draining" if slot.base_url else "starting",
                since=slot.since,
                node=slot.node,
                reason="it drains, or has died" if slot.base_url else "it loads",
            )
            for number, slot in enumerate(self._slots)
            if slot.holder and slot.holder not in self._seen
        }
        self._all = {**others, **self._seen}

    @asynccontextmanager
    async def reserve(self, ranked: Sequence[str]) -> AsyncIterator[Replica]:
        """Reserve the first of these that accepts. Raises NoReplicaLeft."""
        running = RunningReplicas.current
        left = tuple(each for each in ranked if each in running)
        if not left:
            raise NoReplicaLeft(f"none of {len(ranked)} replicas runs")
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_RESERVE_S):
                    chosen = await stack.enter_async_context(self._handle.choose_replica(left))
            except (TimeoutError, DeploymentUnavailableError) as error:
                raise NoReplicaLeft(f"none of {len(left)} replicas accepts: {error}") from None
            yield running[chosen.replica_id]
