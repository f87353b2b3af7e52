"""The two applications of a Serve config file, made from its `args`.

    applications:
    - name: engines
      import_path: octavo.cluster.ray_apps:engines
      route_prefix: null
      args: {model: smollm2-135m, min_replicas: 2, max_replicas: 2, engine: {max_seqs: 8}}
    - name: relay
      import_path: octavo.cluster.ray_apps:relay
      route_prefix: null
      args: the same

`octavo cluster serve --print-config` writes such a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import ray
from ray import serve
from ray.serve import Application

from octavo.cluster.ray_access import ENGINES, RELAY, check_token, write_value
from octavo.cluster.ray_engines import engines_application
from octavo.cluster.ray_nodes import Node, check_nodes, check_ports, check_reach, living_nodes
from octavo.cluster.ray_relay import relay_application
from octavo.cluster.spec import ClusterSpec, read_spec
from octavo.errors import ConfigError

SPEC_KEY = b"spec"


def engines(args: Mapping[str, object]) -> Application:
    """The application of replicas. Raises ConfigError, also if nodes differ."""
    spec = _checked(read_spec(args))
    spec = spec_for(living_nodes(), spec)
    write_value(SPEC_KEY, msgspec.json.encode(spec))
    return engines_application(spec)


def relay(args: Mapping[str, object]) -> Application:
    """The application of relays. Raises ConfigError, also if the clients' port is in use on a node."""
    spec = _checked(read_spec(args))
    if not _relays_run():  # else the port is theirs
        check_ports(living_nodes(), spec)
    return relay_application(spec)


def _relays_run() -> bool:
    found = serve.status().applications.get(RELAY)
    deployments = {} if found is None else found.deployments
    return any(sum(one.replica_states.values()) for one in deployments.values())


def _checked(spec: ClusterSpec) -> ClusterSpec:
    """Check the spec and return it. Raises ConfigError for a Ray without a token, or ClusterFailed."""
    if not spec.allow_open_cluster:
        check_token(str(ray.get_runtime_context().gcs_address))
    return spec


def spec_for(nodes: list[Node], spec: ClusterSpec) -> ClusterSpec:
    """Check the nodes, and complete the spec with what depends on them. Raises ConfigError."""
    check_reach(nodes, spec)
    check_nodes(nodes, spec)
    spec = spec.with_template_digest()
    if spec.replicas_per_node is None:
        spec = msgspec.structs.replace(spec, replicas_per_node=-(-spec.max_replicas // len(nodes)))
    check_room(spec, len(nodes))
    return spec


def check_room(spec: ClusterSpec, num_nodes: int) -> None:
    """Raises ConfigError for more replicas than the nodes' shares of memory allow."""
    room = (spec.replicas_per_node or spec.max_replicas) * num_nodes
    if spec.max_replicas > room:
        raise ConfigError(
            f"{spec.max_replicas:,} replicas are given; allowed: up to {room:,}, because a node's "
            f"threads and memory are divided by {spec.replicas_per_node};"
            " octavo cluster update --replicas-per-node changes that"
        )


def config_file(spec: ClusterSpec) -> str:
    """A Serve config of these two applications, as JSON, which is also YAML."""
    args = {key: value for key, value in msgspec.to_builtins(spec).items() if value is not None}
    applications = [
        {
            "name": name,
            "import_path": f"octavo.cluster.ray_apps:{name}",
            "route_prefix": None,
            "args": args,
        }
        for name in (ENGINES, RELAY)
    ]
    return json.dumps({"proxy_location": "Disabled", "applications": applications}, indent=2)
