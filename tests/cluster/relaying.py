"""A relay over replicas at fixed addresses, in a thread, for tests and benches."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from octavo.cluster.child import ReplicaChild
from octavo.cluster.fleet import NoReplicaLeft, Replica
from octavo.cluster.relay import RelayServer, create_relay_server
from octavo.config import StartOptions
from octavo.routing.router import Router
from octavo.server.run import base_url, bind
from octavo.server.settings import ServerSettings
from octavo.serving.start import start_renderer


@dataclass(slots=True)
class StaticFleet:
    """Replicas at fixed addresses; `gone` are those that can be held no more. What is held is counted."""

    cluster_key: str
    known: dict[str, Replica]
    gone: set[str] = field(default_factory=set)
    num_held: int = 0

    def replicas(self) -> Mapping[str, Replica]:
        return self.known

    @asynccontextmanager
    async def reserve(self, ranked: Sequence[str]) -> AsyncIterator[Replica]:
        held = next((self.known[one] for one in ranked if one in self.known and one not in self.gone), None)
        if held is None:
            raise NoReplicaLeft
        self.num_held += 1
        try:
            yield held
        finally:
            self.num_held -= 1


def fleet_of(children: Sequence[ReplicaChild]) -> StaticFleet:
    """Of children that serve, or will soon."""
    known = {
        f"id-{child.replica.slot}": Replica(
            f"id-{child.replica.slot}", child.replica.slot, child.wait_ready()
        )
        for child in children
    }
    return StaticFleet(children[0].replica.key, known)


@contextlib.contextmanager
def relaying(
    model: Path, fleet: StaticFleet, settings: ServerSettings | None = None, router: Router | None = None
) -> Iterator[tuple[str, RelayServer]]:
    """Its address and its server, while it is there."""
    settings = settings or ServerSettings()
    renderer = start_renderer(str(model), StartOptions(), lambda _: None)
    listener = bind("127.0.0.1", 0)
    server = create_relay_server(renderer, settings, router or Router(), fleet)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield base_url(listener), server
    finally:
        server.should_exit = True
        thread.join(60)
        renderer.close()
        listener.close()
