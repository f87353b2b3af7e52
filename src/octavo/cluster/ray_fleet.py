"""The fleet that Ray Serve has: which replicas run, and how a relay holds one.

    Serve's news -> RankedReplicas (ray_router.py) -> ReplicaPicture -> RayFleet -> relay

Ray makes the router of a copy of its class, in a thread of its own, and the relay cannot get at it. So the
picture is in this module, which is not copied: one a process, replaced whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar

from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from octavo.cluster.fleet import NoReplicaLeft, Replica
from octavo.cluster.slots import SlotHolder

_RESERVE_S = 10.0  # a replica that has died, and that Ray does not miss yet


class ReplicaPicture:
    """Of this process: the replicas that run, by id."""

    current: ClassVar[Mapping[str, Replica]] = {}


class RayFleet:
    """The replicas of Serve's deployment, as `Fleet` wants them."""

    def __init__(self, handle: DeploymentHandle, key: str) -> None:
        self._handle, self._key = handle, key
        self._slots: Sequence[SlotHolder] = ()
        self._seen: Mapping[str, Replica] = {}
        self._all: Mapping[str, Replica] = {}

    @property
    def cluster_key(self) -> str:
        """What opens replicas' private ports."""
        return self._key

    def replicas(self) -> Mapping[str, Replica]:
        """Those that run, as Ray knows them, and others that have a slot: without an address."""
        if self._seen is not ReplicaPicture.current:
            self._merge()
        return self._all

    def on_slots(self, slots: Sequence[SlotHolder]) -> None:
        """Who has which slot now."""
        self._slots = slots
        self._merge()

    def _merge(self) -> None:
        self._seen = ReplicaPicture.current
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
        """Hold the first of these that takes it. Raises NoReplicaLeft."""
        picture = ReplicaPicture.current
        left = tuple(each for each in ranked if each in picture)
        if not left:
            raise NoReplicaLeft(f"none of {len(ranked)} replicas runs")
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(_RESERVE_S):
                    chosen = await held.enter_async_context(self._handle.choose_replica(left))
            except (TimeoutError, DeploymentUnavailableError) as error:
                raise NoReplicaLeft(f"none of {len(left)} replicas takes it: {error}") from None
            yield picture[chosen.replica_id]
