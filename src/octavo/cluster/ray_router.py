"""Ray Serve's request router: reserves a replica by the ranks of Octavo's router.

    relay: handle.choose_replica(("b7", "a1"))         ranked ids from Octavo's router; nothing of a client
      -> RankedReplicas.choose_replicas -> [[b7], [a1]]
      -> Serve reserves the first that accepts         until the block ends; a drain waits for it

Ray sends this module's code to relays, so it has no state.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from octavo.cluster.fleet import NoReplicaLeft, Replica
from octavo.cluster.ray_fleet import RunningReplicas


class RankedReplicas(RequestRouter):
    """Orders the candidates by the ids in the call's one argument."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Replace the table of running replicas."""
        super().update_replicas(replicas)
        known, now = RunningReplicas.current, time.time()
        RunningReplicas.current = {
            replica.replica_id.unique_id: known.get(replica.replica_id.unique_id) or _replica(replica, now)
            for replica in replicas
        }

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """One list for each rank; without an argument all candidates as one list."""
        if pending_request is None or not pending_request.args:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # else Serve retries without a pause
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked: Sequence[str] = pending_request.args[0]
        if chosen := [[by_id[each]] for each in ranked if each in by_id]:
            return chosen
        if not pending_request.future.done():  # else Serve would retry for ever
            pending_request.future.set_exception(NoReplicaLeft(f"none of {len(ranked)} replicas runs"))
        return [candidate_replicas]


def _replica(replica: RunningReplica, now: float) -> Replica:
    metadata = replica.replica_metadata
    return Replica(
        replica_id=replica.replica_id.unique_id,
        slot=int(metadata["slot"]),
        base_url=str(metadata["base_url"]),
        since=now,
        node=str(metadata["node"]),
    )
