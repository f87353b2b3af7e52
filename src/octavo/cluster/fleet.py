"""What a relay knows of the replicas: which there are, and how one is held while a request runs on it.

Ray's deployment is one fleet; a list of addresses is another. Nothing of a client's request gets here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Replica:
    """One `octavo serve` in replica mode. `replica_id` names this start of it, `slot` what it keeps on disk
    and in ids."""

    replica_id: str
    slot: int
    base_url: str  # http://host:port, of its private port
    state: str = "running"  # or "starting", "draining"
    since: float = 0.0  # when it began to be in it, in seconds of the epoch
    node: str = ""
    reason: str = ""  # of its state, in words

    @property
    def name(self) -> str:
        """As clients and operators read it, in x-octavo-replica, ?replica= and the metrics' label."""
        return f"replica-{self.slot}"


class NoReplicaLeft(Exception):
    """None of the ranked replicas can take a request now: they have died, or are draining."""


class Fleet(Protocol):
    """The replicas of one cluster. On the relay's event loop."""

    @property
    def cluster_key(self) -> str:
        """What opens replicas' private ports; in no log and no answer."""

    def replicas(self) -> Mapping[str, Replica]:
        """All that are known now, by id; also those that start or drain. O(1): it is called for each
        request."""

    def reserve(self, ranked: Sequence[str]) -> AbstractAsyncContextManager[Replica]:
        """Hold the first of these ids that can be held: it is not stopped before the block ends. Raises
        NoReplicaLeft on entering."""
