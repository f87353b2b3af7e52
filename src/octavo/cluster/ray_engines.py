"""The application `engines`: each replica is an actor that supervises one `octavo serve`.

    Serve starts the actor -> claims a slot (waits while a draining replica has it) -> starts the child
    the child exits        -> the actor exits, and Serve starts another
    Serve stops the actor  -> waits until no relay reserves it, then the child drains, then the slot is free
    kill -9 of the actor   -> the kernel kills the child

Of clients' requests the actor has only their number.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from pathlib import Path

import msgspec
import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig

from octavo.cluster.child import ReplicaChild
from octavo.cluster.feed_reader import LastLoad
from octavo.cluster.ray_access import ENGINE_DEPLOYMENT, cluster_key
from octavo.cluster.ray_nodes import check_reach, living_nodes
from octavo.cluster.ray_slots import slot_keeper
from octavo.cluster.spec import ClusterSpec, read_spec
from octavo.engine.available import available_cores, available_memory
from octavo.engine.backends import expects_device
from octavo.server.logs import configure_logging
from octavo.server.replica import ReplicaIdentity

HEALTH_PERIOD_S = 1.0
_HEALTH_TIMEOUT_S = 10.0
_CLAIM_PERIOD_S = 0.25
_DRAIN_MARGIN_S = 15.0  # beyond the child's own drain timeout
_REQUESTS_MAX = 100_000  # reservations of relays; the engine's own queue is full earlier
_OF_NODES = ("OCTAVO_CACHE", "OCTAVO_ISA")  # variables that differ between nodes, and change no answer
_CHILD_DIED = 70  # exit status

_log = logging.getLogger("octavo.cluster")


class EngineReplica:
    """One `octavo serve` with its own slot."""

    async def __init__(self, spec: dict[str, object]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Raises ConfigError or ReplicaEnded if it cannot serve: Serve reports that and tries again."""
        self._spec = read_spec(spec)
        check_reach(living_nodes(), self._spec)  # a machine may have joined since the start
        self._spec.check_template()
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._node = ray.get_runtime_context().get_node_id()
        self._is_ending = False
        self._keeper = slot_keeper()
        self._slot = await self._claim()
        settings = self._spec.server_settings()
        name = f"replica-{self._slot}"
        configure_logging(settings.log_level, settings.log_format, name, is_guest=True)
        self._child = self._start_child()
        await asyncio.to_thread(self._child.wait_ready)
        await self._keeper.on_ready.remote(self._replica_id, self._child.base_url, self._child.pid)
        self._load = LastLoad(self._child)
        self._watch = asyncio.create_task(self._end_with_child())

    def record_replica_metadata(self) -> dict[str, object]:
        """The metadata for relays, without the key."""
        return {"slot": self._slot, "base_url": self._child.base_url, "node": self._node}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Running and waiting requests, as the engine counts them."""
        return {"active": float(self._load.num_requests)}

    async def check_health(self) -> None:
        """Raises ReplicaEnded if the child does not answer."""
        await asyncio.to_thread(self._child.check_health, _HEALTH_TIMEOUT_S / 2)

    async def __del__(self) -> None:
        """Drain the child. Serve calls it when no relay reserves this replica any more."""
        self._is_ending = True
        if (child := getattr(self, "_child", None)) is None:
            return
        await asyncio.to_thread(child.drain, self._spec.server_settings().drain_timeout_s + 5)
        await self._keeper.release.remote(self._replica_id)

    async def _claim(self) -> int:
        while True:
            slot = await self._keeper.claim.remote(self._replica_id, self._node)
            if slot is not None:
                return int(slot)
            await asyncio.sleep(_CLAIM_PERIOD_S)

    def _start_child(self) -> ReplicaChild:
        options = self._spec.engine_options()
        sharing = self._spec.replicas_per_node or 1
        kv_memory = None if expects_device(options) else available_memory() // 4 // sharing
        threads = max(1, available_cores() // sharing)
        disk = None if options.disk_folder is None else Path(options.disk_folder) / str(self._slot)
        host = ray.util.get_node_ip_address() if self._spec.private_network else "127.0.0.1"
        arguments = self._spec.child_arguments(threads, kv_memory)
        for name in [each for each in os.environ if each.startswith("OCTAVO_") and each not in _OF_NODES]:
            del os.environ[name]  # only the spec configures replicas
        key = cluster_key(is_open=self._spec.allow_open_cluster)
        return ReplicaChild(ReplicaIdentity(key, self._slot, f"replica-{self._slot}", disk), arguments, host)

    async def _end_with_child(self) -> None:
        """Exit when the child exits, so that Serve notices at its next health check, not after three."""
        await asyncio.to_thread(self._child.wait)
        if not self._is_ending:
            _log.error("%s", self._child.how_it_ended())
            os._exit(_CHILD_DIED)


class ReplicasByRequests:
    """Ray's autoscaling policy: enough replicas that each has at most `requests_per_replica`, as engines
    count them. Ray's own count lacks the reservations of `choose_replica`."""

    def __init__(self, requests_per_replica: int) -> None:
        self._requests_per_replica = requests_per_replica

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, object]]:
        """The number of replicas, to which Ray applies bounds and delays."""
        per_replica = (context.aggregated_metrics or {}).get("active", {})
        return max(1, math.ceil(sum(per_replica.values()) / self._requests_per_replica)), {}


def engines_application(spec: ClusterSpec) -> Application:
    """The application for `serve.run`. Replicas restart if the spec differs in more than their number."""
    options = spec.engine_options()
    has_gpu = expects_device(options) or ray.cluster_resources().get("GPU", 0) >= 1
    num_gpus = options.tensor_parallel_size if has_gpu and options.device != "cpu" else 0
    scaling: dict[str, object] = {"num_replicas": spec.min_replicas}
    if spec.is_autoscaled:
        policy = AutoscalingPolicy(
            policy_function="octavo.cluster.ray_engines:ReplicasByRequests",
            policy_kwargs={"requests_per_replica": spec.requests_per_replica},
        )
        scaling = {
            "num_replicas": None,
            "autoscaling_config": AutoscalingConfig(
                min_replicas=spec.min_replicas,
                max_replicas=spec.max_replicas,
                metrics_interval_s=1,
                look_back_period_s=3,
                upscale_delay_s=2,
                downscale_delay_s=30,
                policy=policy,
            ),
        }
    deployment = serve.deployment(EngineReplica, name=ENGINE_DEPLOYMENT).options(
        _internal=True,
        version=str(spec.revision),
        max_ongoing_requests=_REQUESTS_MAX,
        max_replicas_per_node=spec.replicas_per_node,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=spec.server_settings().drain_timeout_s + _DRAIN_MARGIN_S,
        request_router_config=RequestRouterConfig(
            request_router_class="octavo.cluster.ray_router:RankedReplicas"
        ),
        ray_actor_options={"num_cpus": 0.1, "num_gpus": num_gpus},
        **scaling,
    )
    return deployment.bind(msgspec.to_builtins(spec))
