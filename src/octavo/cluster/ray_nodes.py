"""Checks a cluster's nodes before anything starts: the same Octavo, Python, model and files.

No runtime environment is sent: operators install code and models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from octavo.cluster.spec import ClusterSpec
from octavo.errors import ConfigError

ENTRY = "octavo_entry"  # Ray's custom resource of nodes that take clients; if no node has it, all do
_CHECK_S = 120.0
Facts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """A living node."""

    node_id: str
    address: str
    has_entry: bool = False  # the resource ENTRY

    @property
    def name(self) -> str:
        """The name for operators; several nodes of one machine differ in the id."""
        return f"{self.address} ({self.node_id[:8]})"


def living_nodes() -> list[Node]:
    """All living nodes, in a fixed order."""
    found = [
        Node(each["NodeID"], each["NodeManagerAddress"], ENTRY in each["Resources"])
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.node_id))


def check_reach(nodes: Sequence[Node], spec: ClusterSpec) -> None:
    """Raises ConfigError if relays of one node cannot reach replicas of another."""
    addresses = {node.address for node in nodes}
    if len(addresses) > 1 and not spec.private_network:
        raise ConfigError(
            f"the nodes are {len(addresses)} machines, and replicas listen only on loopback; allowed: "
            "--private-network, where nodes reach each other over a network that others do not"
        )


def check_nodes(nodes: Sequence[Node], spec: ClusterSpec) -> None:
    """Raises ConfigError, which names each node that differs from this one, and how."""
    files = spec.files()
    read = _fact_reader()
    expected = read(spec.model, files)
    if "trouble" in expected:
        raise ConfigError(f"this node: {expected['trouble']}")
    found = _run_on(nodes, read, spec.model, files)
    _refuse({name: _difference(facts, expected) for name, facts in found.items()})


def check_ports(nodes: Sequence[Node], spec: ClusterSpec) -> None:
    """Raises ConfigError, which names each node where the clients' port is in use. To be called before relays
    run: a relay would share the port with another cluster of the same user."""
    entries = [node for node in nodes if node.has_entry] or nodes
    settings = spec.server_settings()
    found = _run_on(entries, _port_checker(), settings.host, settings.port)
    _refuse({name: facts.get("trouble", "") for name, facts in found.items()})


def _run_on(nodes: Sequence[Node], check: Callable[..., Facts], *arguments: object) -> dict[str, Facts]:
    """Run a function on each node. Returns its results by the node's name."""
    task = ray.remote(check)
    answers = {
        node.name: task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote(*arguments)
        for node in nodes
    }
    found: dict[str, Facts] = {}
    for name, answer in answers.items():
        try:
            found[name] = ray.get(answer, timeout=_CHECK_S)
        except ray.exceptions.RayError as error:
            found[name] = {"trouble": f"it did not answer: {type(error).__name__}"}
    return found


def _refuse(reasons: dict[str, str]) -> None:
    """Raises ConfigError if a node has a reason."""
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


def _fact_reader() -> Callable[[str | None, list[str]], Facts]:
    """The function for each node. It is sent as code, so that it also runs on a node without Octavo."""

    def read(model: str | None, files: list[str]) -> Facts:
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

    return read


def _port_checker() -> Callable[[str, int], Facts]:
    """A function as of `_fact_reader`, which binds a port and closes it."""

    def check(host: str, port: int) -> Facts:
        from octavo.errors import OctavoError
        from octavo.server.run import bind

        try:
            bind(host, port).close()
        except OctavoError as error:
            return {"trouble": str(error)}
        return {}

    return check
