"""The operator's commands on a cluster: start, join, list, scale, update, stop.

    begin()     checks the nodes, then starts engines and relays
    scale()     serve.run of the engines with another number: running replicas stay
    update()    serve.run of the engines with another revision: Serve replaces replicas one after another
    end()       stops both applications, Serve, the slots, and Ray if this process started it

The running spec is in Ray's own store, so that any node with the token can scale and update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import ProxyLocation
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from octavo.cluster.child import ReplicaEnded
from octavo.cluster.ray_access import (
    ENGINES,
    RELAY,
    ClusterFailed,
    delete_values,
    join_ray,
    leave_ray,
    read_value,
    start_ray,
    write_value,
)
from octavo.cluster.ray_apps import SPEC_KEY, check_room, spec_for
from octavo.cluster.ray_engines import engines_application
from octavo.cluster.ray_nodes import Node, check_ports, living_nodes
from octavo.cluster.ray_relay import relay_application
from octavo.cluster.ray_slots import end_slot_keeper, read_slots
from octavo.cluster.spec import ClusterSpec
from octavo.errors import ConfigError

Progress = Callable[[str], None]
_LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)


@dataclass(frozen=True, slots=True)
class Member:
    """An actor of a cluster: an engine or a relay. Without a slot yet, `slot` is None and `address` ""."""

    kind: str
    replica: str
    slot: int | None
    state: str
    node: str
    pid: int | None  # of the actor
    child_pid: int | None
    address: str
    since: float | None  # seconds of the epoch


def begin(spec: ClusterSpec, progress: Progress) -> ClusterSpec:
    """Start both applications on the current Ray, and wait until they serve. Returns the running spec. Raises
    ConfigError or ClusterFailed, and then does not stop what was started."""
    nodes = living_nodes()
    progress(f"checking {len(nodes)} nodes ...")
    spec = spec_for(nodes, spec)
    check_ports(nodes, spec)
    write_value(SPEC_KEY, msgspec.json.encode(spec))
    serve.start(proxy_location=ProxyLocation.Disabled, logging_config=_LOGGING)
    progress("starting the engines ...")
    _run(engines_application(spec), ENGINES)
    progress("starting the relays ...")
    _run(relay_application(spec), RELAY)
    return spec


def refuse_second() -> None:
    """Raises ConfigError if this Ray already runs a cluster of Octavo."""
    if running_spec() is not None:
        raise ConfigError(
            "Octavo's replicas already run on this Ray; allowed: octavo cluster update, or first octavo "
            "cluster stop"
        )


def running_spec() -> ClusterSpec | None:
    """The running cluster's spec; None: there is no cluster on this Ray."""
    stored = read_value(SPEC_KEY)
    return None if stored is None else msgspec.json.decode(stored, type=ClusterSpec)


def scale(num_min: int, num_max: int) -> ClusterSpec:
    """Change the numbers of replicas, and wait until they serve. Raises ConfigError or ClusterFailed."""
    spec = _running()
    spec = msgspec.structs.replace(spec, min_replicas=num_min, max_replicas=num_max).check()
    check_room(spec, len(living_nodes()))
    return _replace(spec)


def update(change: Callable[[ClusterSpec], ClusterSpec]) -> ClusterSpec:
    """Apply `change` to the running spec, and replace the replicas one after another; relays stay. Raises
    ConfigError or ClusterFailed."""
    spec = _running()
    changed = msgspec.structs.replace(change(spec), revision=spec.revision + 1).check()
    spec.check_update(changed.with_template_digest())
    return _replace(spec_for(living_nodes(), changed))


def members() -> list[Member]:
    """All actors of both applications. Raises ConfigError if no cluster runs."""
    _running()
    details = _get_global_client().get_serve_details()
    slots = {slot.holder: (number, slot) for number, slot in enumerate(read_slots()) if slot.holder}
    found = []
    for kind, application in (("engine", ENGINES), ("relay", RELAY)):
        deployments = details["applications"].get(application, {}).get("deployments", {})
        for replica in (each for one in deployments.values() for each in one["replicas"]):
            number, slot = slots.get(replica["replica_id"], (None, None))
            found.append(
                Member(
                    kind=kind,
                    replica=replica["replica_id"],
                    slot=number,
                    state=replica["state"].lower(),
                    node=_node_name(replica),
                    pid=replica.get("pid"),
                    child_pid=(slot.pid or None) if slot else None,
                    address=slot.base_url if slot else "",
                    since=replica.get("start_time_s"),
                )
            )
    return sorted(found, key=lambda each: (each.kind, each.slot is None, each.slot or 0, each.replica))


def _node_name(replica: Mapping[str, object]) -> str:
    """The name of a replica's node; "": it has none yet."""
    node_id = str(replica.get("node_id") or "")
    return node_id and Node(node_id, str(replica.get("node_ip"))).name


def end() -> None:
    """Stop both applications; replicas drain. Serve stays if it has other applications, and so does a Ray
    that this process did not start."""
    with suppress(RayServeException):  # Serve was not started
        for name in (RELAY, ENGINES):
            serve.delete(name)
        if not serve.status().applications:
            serve.shutdown()
    end_slot_keeper()
    delete_values()


def enter(address: str | None, *, is_open: bool, quiet: bool = False) -> str:
    """Start Ray, or join the one at `address`. Returns its address. Raises ConfigError or ClusterFailed."""
    if address is None:
        return start_ray()
    join_ray(address, is_open=is_open, quiet=quiet)
    return address


def leave() -> None:
    """Disconnect from Ray, or stop a Ray that this process started."""
    leave_ray()


def _running() -> ClusterSpec:
    spec = running_spec()
    if spec is None:
        raise ConfigError("no cluster of Octavo runs on this Ray; allowed: octavo cluster serve first")
    return spec


def _replace(spec: ClusterSpec) -> ClusterSpec:
    write_value(SPEC_KEY, msgspec.json.encode(spec))
    _run(engines_application(spec), ENGINES)
    return spec


def _run(application: Application, name: str) -> None:
    try:
        serve.run(application, name=name, route_prefix=None, logging_config=_LOGGING)
    except (RuntimeError, ray.exceptions.RayError) as error:
        raise ClusterFailed(f"{name}: {_why(name) or error}") from None


def _why(name: str) -> str:
    """Serve's reason why an application cannot start."""
    found = serve.status().applications.get(name)
    if found is None:
        return ""
    whole = " ".join([found.message, *(each.message for each in found.deployments.values())]).strip()
    _, marker, reason = whole.rpartition(f"{ReplicaEnded.__name__}: ")  # after Ray's traceback
    return reason if marker else whole
