"""The nodes of a cluster, checked before anything starts: the same Octavo, Python, model and files.

No runtime environment is sent: code and models are what operators installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from octavo.cluster.spec import ClusterSpec
from octavo.errors import ConfigError

ENTRY = "octavo_entry"  # Ray's custom resource: nodes with it take clients; without any, all do
_LOOK_S = 120.0
Facts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """A node that lives."""

    node_id: str
    address: str
    has_entry: bool = False  # the resource ENTRY

    @property
    def name(self) -> str:
        """As operators know it; several nodes of one machine differ in the id."""
        return f"{self.address} ({self.node_id[:8]})"


def living_nodes() -> list[Node]:
    """In a fixed order."""
    found = [
        Node(each["NodeID"], each["NodeManagerAddress"], ENTRY in each["Resources"])
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.node_id))


def check_reach(nodes: Sequence[Node], spec: ClusterSpec) -> None:
    """Raises ConfigError where relays of one node could not reach replicas of another."""
    addresses = {node.address for node in nodes}
    if len(addresses) > 1 and not spec.private_network:
        raise ConfigError(
            f"the nodes are {len(addresses)} machines, and replicas listen on loopback alone; allowed: "
            "--private-network, where nodes reach each other over a network that others do not"
        )


def check_nodes(nodes: Sequence[Node], spec: ClusterSpec) -> None:
    """Raises ConfigError that names each node which differs from this process's, and in what."""
    files = spec.files()
    look = _look()
    expected = look(spec.model, files)
    if "trouble" in expected:
        raise ConfigError(f"this node: {expected['trouble']}")
    found = _ask(nodes, look, spec.model, files)
    _refuse({name: _difference(facts, expected) for name, facts in found.items()})


def check_ports(nodes: Sequence[Node], spec: ClusterSpec) -> None:
    """Raises ConfigError that names each node where the clients' port is taken, before any relay runs: later
    a relay would share it with another cluster of the same user."""
    entries = [node for node in nodes if node.has_entry] or nodes
    settings = spec.server_settings()
    found = _ask(entries, _look_at_port(), settings.host, settings.port)
    _refuse({name: facts.get("trouble", "") for name, facts in found.items()})


def _ask(nodes: Sequence[Node], look: Callable[..., Facts], *about: object) -> dict[str, Facts]:
    """What it finds on each node, by name."""
    task = ray.remote(look)
    answers = {
        node.name: task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote(*about)
        for node in nodes
    }
    found: dict[str, Facts] = {}
    for name, answer in answers.items():
        try:
            found[name] = ray.get(answer, timeout=_LOOK_S)
        except ray.exceptions.RayError as error:
            found[name] = {"trouble": f"it did not answer: {type(error).__name__}"}
    return found


def _refuse(reasons: dict[str, str]) -> None:
    """Raises ConfigError for nodes with a reason."""
    if wrong := [f"node {name}: {reason}" for name, reason in reasons.items() if reason]:
        raise ConfigError("; ".join(wrong))


def _difference(found: Facts, expected: Facts) -> str:
    if "trouble" in found:
        return found["trouble"]
    return ", ".join(
        f"{what} is {found[what][:12]}; allowed: {expected[what][:12]}, as on this node"
        for what in expected
        if found[what] != expected[what]
    )


def _look() -> Callable[[str | None, list[str]], Facts]:
    """The function that each node runs. It is sent as code, so that a node without Octavo can say so."""

    def look(model: str | None, files: list[str]) -> Facts:
        import platform

        try:
            import octavo
            from octavo.cluster.node_files import files_digest, model_digest
            from octavo.errors import OctavoError
        except ImportError as error:
            return {"trouble": f"Octavo cannot be imported there ({error}); install the same version"}
        try:
            facts = {
                "the model": model_digest(model),
                "the content of template, key, tenant and TLS files": files_digest(files),
            }
        except OctavoError as error:
            return {"trouble": str(error)}
        return {"Octavo": octavo.__version__, "Python": platform.python_version(), **facts}

    return look


def _look_at_port() -> Callable[[str, int], Facts]:
    """As `_look`, of a port that is to be free."""

    def look(host: str, port: int) -> Facts:
        from octavo.errors import OctavoError
        from octavo.server.run import bind

        try:
            bind(host, port).close()
        except OctavoError as error:
            return {"trouble": str(error)}
        return {}

    return look
