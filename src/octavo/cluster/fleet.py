"""The replicas of a cluster as a relay sees them, and the reservation of one while a request runs on it.

Ray's deployment is one fleet; a list of addresses is another. A fleet gets nothing of a client's request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Replica:
    """One `octavo serve` in replica mode. `replica_id` names this start; `slot` names its disk cache, and is
    in the ids that it makes."""

    replica_id: str
    slot: int
    base_url: str  # http://host:port, of its private port
    state: str = "running"  # or "starting", "draining"
    since: float = 0.0  # start of this state, in seconds of the epoch
    node: str = ""
    reason: str = ""  # for this state, in words

    @property
    def name(self) -> str:
        """The name for clients and operators: x-octavo-replica, ?replica=, the metrics' label."""
        return f"replica-{self.slot}"


class NoReplicaLeft(Exception):
    """All ranked replicas have died or are draining."""


class Fleet(Protocol):
    """The replicas of one cluster. On the relay's event loop."""

    @property
    def cluster_key(self) -> str:
        """The key of the replicas' private ports; in no log and no answer."""

    def replicas(self) -> Mapping[str, Replica]:
        """All replicas by id, also starting and draining ones. O(1): called for each request."""

    def reserve(self, ranked: Sequence[str]) -> AbstractAsyncContextManager[Replica]:
        """Reserve the first of these that can be reserved: it is not stopped before the block ends. Raises
        NoReplicaLeft on entering."""
