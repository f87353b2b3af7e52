"""The application `relay`: each of its actors takes clients on its node's port.

    client -> kernel (SO_REUSEPORT) -> one of two relays -> RayFleet.reserve -> bytes to and from a replica

It is a separate application, because an update of the engines must not stop it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec
import uvicorn
from ray import serve
from ray.serve import Application

from octavo.cluster.ray_access import ENGINE_DEPLOYMENT, ENGINES, RELAY_DEPLOYMENT, cluster_key
from octavo.cluster.ray_engines import HEALTH_PERIOD_S
from octavo.cluster.ray_fleet import RayFleet
from octavo.cluster.ray_nodes import ENTRY, living_nodes
from octavo.cluster.ray_slots import read_slots
from octavo.cluster.relay import create_relay_server
from octavo.cluster.spec import ClusterSpec, read_spec
from octavo.routing.router import Router
from octavo.server.logs import configure_logging
from octavo.server.run import bind
from octavo.serving.start import start_renderer

_SLOTS_S = 1.0  # between two reads of the slots, for pages and refusals
_READY_S = 20.0  # for the first report of a replica

_log = logging.getLogger("octavo.cluster")


class RelayReplica:
    """One relay, on Serve's event loop."""

    async def __init__(self, spec: dict[str, object]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Raises ConfigError or ModelError."""
        read = read_spec(spec)
        settings = read.server_settings()
        configure_logging(settings.log_level, settings.log_format, "relay", is_guest=True)
        self._listener = bind(settings.host, settings.port, is_shared=True)
        self._renderer = await asyncio.to_thread(start_renderer, read.model, read.engine_options(), _log.info)
        handle = serve.get_deployment_handle(ENGINE_DEPLOYMENT, ENGINES)
        handle._init()  # else Ray reports no replicas before the first request
        fleet = RayFleet(handle, cluster_key(is_open=read.allow_open_cluster))
        self._following = asyncio.create_task(_follow_slots(fleet))
        router = Router()
        self._server: uvicorn.Server = create_relay_server(self._renderer, settings, router, fleet)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        with suppress(TimeoutError):  # without a replica the relay answers 503
            async with asyncio.timeout(_READY_S):
                while not (self._server.started and router.fingerprints()):
                    self.check_health()
                    await asyncio.sleep(0.02)

    def check_health(self) -> None:
        """Raises the error that ended the server."""
        if self._task.done():
            self._task.result()
            raise RuntimeError("the relay's server has ended")

    async def __del__(self) -> None:
        """Close the listener; running requests have the drain timeout to finish."""
        if (server := getattr(self, "_server", None)) is None:
            return
        server.should_exit = True
        await self._task
        self._following.cancel()
        self._renderer.close()


async def _follow_slots(fleet: RayFleet) -> None:
    while True:
        try:
            fleet.on_slots(await asyncio.to_thread(read_slots))
        except Exception as error:  # noqa: BLE001  Ray has many; the last table stays until a read succeeds
            _log.warning("the slots are not read: %s: %s", type(error).__name__, error)
        await asyncio.sleep(_SLOTS_S)


def relay_application(spec: ClusterSpec) -> Application:
    """The application for `serve.run`."""
    nodes = living_nodes()
    entries = [node for node in nodes if node.has_entry]
    resources = {"resources": {ENTRY: 0.001}} if entries else {}
    drain_timeout_s = spec.server_settings().drain_timeout_s
    deployment = serve.deployment(RelayReplica, name=RELAY_DEPLOYMENT).options(
        _internal=True,
        version="1",
        num_replicas=spec.relays_per_node * len(entries or nodes),
        max_replicas_per_node=spec.relays_per_node,
        health_check_period_s=HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=drain_timeout_s + 15,
        ray_actor_options={"num_cpus": 0.1, **resources},
    )
    return deployment.bind(msgspec.to_builtins(spec))
