"""The implementation of `octavo cluster`, which loads Ray on demand; `cluster_app.py` has the flags."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console

from octavo.cli.admin import Columns, show, text
from octavo.cli.terminal import show_progress
from octavo.cluster.ports import listening_ports
from octavo.cluster.ray_access import ClusterFailed, check_ray, set_environment
from octavo.cluster.spec import ClusterSpec, Table, settings_table
from octavo.cluster.state import ClusterAddress, ClusterFolder
from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.model.hub.alias import DEFAULT_ALIAS
from octavo.server.run import describe_reach
from octavo.server.settings import ServerSettings
from octavo.setting import settings_of

if TYPE_CHECKING:
    from octavo.cli.flags import ResolvedFlags
    from octavo.cli.options import ClusterOptions

_STOP_TIMEOUT_S = 150.0  # longer than the drain timeout
_POLL_S = 1.0
MEMBERS: Columns = {
    "kind": text("kind"),
    "slot": lambda row: "" if row["slot"] is None else str(row["slot"]),
    "state": text("state"),
    "node": text("node"),
    "address": text("address"),
    "pid": lambda row: str(row["pid"] or ""),
    "child": lambda row: str(row["child_pid"] or ""),
    "replica": text("replica"),
}


def spec_of(
    model: str | None,
    cluster: ClusterOptions,
    resolved: ResolvedFlags,
    server: ServerSettings,
    *,
    open_cluster: bool,
) -> tuple[ClusterSpec, tuple[str, ...]]:
    """The cluster that a command line describes, and the keys of --api-key, which are in no file yet. Raises
    ConfigError."""
    check_ray()
    low, high = bounds_of(cluster)
    table = given_table(resolved, ServerSettings)
    keys: tuple[str, ...] = ()
    if table.pop("api_key", None) is not None:
        os.environ.pop("OCTAVO_API_KEY", None)  # every process of Ray would inherit it
        keys = server.keys
    spec = ClusterSpec(
        model=model,
        min_replicas=low,
        max_replicas=high,
        requests_per_replica=cluster.requests_per_replica,
        replicas_per_node=cluster.replicas_per_node,
        relays_per_node=cluster.relays_per_node,
        private_network=cluster.private_network,
        allow_open_cluster=open_cluster,
        engine=given_table(resolved, StartOptions),
        server=table,
    )
    msgspec.structs.replace(spec, server={**table, "insecure": True} if keys else table).check()
    return spec, keys


def given_table(resolved: ResolvedFlags, cls: type[StartOptions] | type[ServerSettings]) -> Table:
    """The given settings of this dataclass, from flags, variables or a file."""
    names = {each.name for each in settings_of(cls)}
    given = [each for each in resolved.origins if each.setting.name in names]
    return settings_table((each.setting, each.value) for each in given)


def bounds_of(cluster: ClusterOptions) -> tuple[int, int]:
    """The minimum and maximum number of replicas. Raises ConfigError."""
    if cluster.replicas is not None:
        if (cluster.min_replicas, cluster.max_replicas) != (None, None):
            raise ConfigError("--replicas is given with --min-replicas or --max-replicas; allowed: one form")
        return cluster.replicas, cluster.replicas
    low = 1 if cluster.min_replicas is None else cluster.min_replicas
    return low, low if cluster.max_replicas is None else cluster.max_replicas


def print_config(spec: ClusterSpec, keys: tuple[str, ...]) -> None:
    """Print the Serve config file. Raises ConfigError."""
    if keys:
        raise ConfigError(
            "--print-config and --api-key are both given, and the file must hold no secret; allowed: "
            "--api-key-file or --tenants"
        )
    from octavo.cluster.ray_apps import config_file

    typer.echo(config_file(spec))


def serve(
    spec: ClusterSpec, keys: tuple[str, ...], name: str, address: str | None, *, open_cluster: bool
) -> None:
    """Serve until a signal, then stop everything that was started. A second signal stops without waiting for
    requests."""
    folder = ClusterFolder(name)
    running = folder.find_address()
    if running is not None and _is_serving(running):
        raise ConfigError(
            f"cluster {name} is already served here by process {running.pid}; allowed: another --name, or "
            "octavo cluster stop first"
        )
    token = None if open_cluster or address is not None else folder.make_token()
    set_environment(token, is_open=open_cluster)
    from octavo.cluster import ray_cluster  # loads Ray, which reads the environment once

    owns_folder = address is None  # with an address, the folder may be that of the running cluster
    try:
        with show_progress() as report:
            report("starting Ray ..." if address is None else "joining Ray ...")
            found = ray_cluster.enter(address, is_open=open_cluster)
        ray_cluster.refuse_second()
        owns_folder = True
        folder.write_address(
            ClusterAddress(found, os.getpid(), None if token is None else str(token), open_cluster)
        )
        if keys:
            server = {**spec.server, "api_key_file": str(folder.write_keys(keys))}
            spec = msgspec.structs.replace(spec, server=server)
        _serve_until_signal(spec, is_own=address is None, is_open=open_cluster)
    finally:
        ray_cluster.leave()
        if owns_folder:
            folder.forget()


def _serve_until_signal(spec: ClusterSpec, *, is_own: bool, is_open: bool) -> None:
    """Serve on the Ray that this process has joined. Raises ConfigError or ClusterFailed, after everything
    was stopped."""
    from octavo.cluster import ray_cluster

    signals = _Signals()
    try:
        with show_progress() as report:
            spec = ray_cluster.begin(spec, report)
        _show_ready(spec, is_own=is_own, is_open=is_open)
        signals.is_serving = True
        while not signals.received.wait(_POLL_S) and ray_cluster.running_spec() is not None:
            pass
    except KeyboardInterrupt:
        pass  # during the start
    finally:
        Console(stderr=True).print(
            "octavo stops; running requests have --drain-timeout to end (a second signal: now)", style="dim"
        )
        with contextlib.suppress(KeyboardInterrupt):
            ray_cluster.end()


def status(name: str, address: str | None, *, open_cluster: bool, as_json: bool) -> None:
    """Print the cluster's processes, one per row."""
    with _join(name, address, open_cluster=open_cluster) as ray_cluster:
        rows = [dataclasses.asdict(member) for member in ray_cluster.members()]
    show(rows, MEMBERS, as_json=as_json)


def scale(name: str, address: str | None, cluster: ClusterOptions, *, open_cluster: bool) -> None:
    """Change the number of replicas; returns when so many serve."""
    low, high = bounds_of(cluster)
    with _join(name, address, open_cluster=open_cluster) as ray_cluster:
        ray_cluster.scale(low, high)
    typer.echo(f"replicas: {low}" if low == high else f"replicas: {low} to {high}")


def update(
    name: str,
    address: str | None,
    cluster: ClusterOptions,
    resolved: ResolvedFlags,
    *,
    open_cluster: bool,
) -> None:
    """Replace the replicas; returns when all of them are new."""
    engine = given_table(resolved, StartOptions)

    def change(spec: ClusterSpec) -> ClusterSpec:
        return msgspec.structs.replace(
            spec,
            engine={**spec.engine, **engine},
            replicas_per_node=cluster.replicas_per_node or spec.replicas_per_node,
        )

    with _join(name, address, open_cluster=open_cluster) as ray_cluster:
        spec = ray_cluster.update(change)
    typer.echo(f"all replicas have revision {spec.revision}")


def stop(name: str, address: str | None, *, open_cluster: bool) -> None:
    """Stop the cluster; returns when all its processes have ended."""
    folder = ClusterFolder(name)
    if address is None and _is_serving(running := folder.read_address()):
        os.kill(running.pid, signal.SIGTERM)
        _wait_end(running.pid)
    else:
        try:
            with _join(name, address, open_cluster=open_cluster) as ray_cluster:
                ray_cluster.end()
        except ClusterFailed:
            if address is not None:
                raise
        folder.forget()  # also if its process and Ray were killed
    typer.echo("stopped")


class _Signals:
    """SIGTERM and SIGINT: the first sets `received`; a second one, or one during the start, interrupts the
    main thread."""

    def __init__(self) -> None:
        self.received, self.is_serving = threading.Event(), False
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received.is_set() or not self.is_serving:
            self.received.set()
            raise KeyboardInterrupt
        self.received.set()


@contextlib.contextmanager
def _join(name: str, address: str | None, *, open_cluster: bool) -> Iterator[ModuleType]:
    """The module `ray_cluster`, joined to a running cluster. Raises ConfigError or ClusterFailed."""
    token = None
    if address is None:
        running = ClusterFolder(name).read_address()
        address, open_cluster = running.address, open_cluster or running.is_open
        token = None if running.token is None else Path(running.token)
    set_environment(token, is_open=open_cluster)
    from octavo.cluster import ray_cluster

    ray_cluster.enter(address, is_open=open_cluster, quiet=True)
    try:
        yield ray_cluster
    finally:
        ray_cluster.leave()


def _is_serving(cluster: ClusterAddress) -> bool:
    """Whether the process is alive and is still a cluster's."""
    with contextlib.suppress(OSError):
        return b"cluster" in Path(f"/proc/{cluster.pid}/cmdline").read_bytes()
    return False


def _wait_end(pid: int) -> None:
    """Wait until a process ends. Raises ConfigError after a timeout."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], _STOP_TIMEOUT_S)[0]:
            raise ConfigError(
                f"process {pid} has not ended after {_STOP_TIMEOUT_S:.0f} s; allowed: a second SIGTERM"
            )
    finally:
        os.close(descriptor)


def _show_ready(spec: ClusterSpec, *, is_own: bool, is_open: bool) -> None:
    """Print the banner: the address, who can reach it, and the other open ports."""
    settings = spec.server_settings()
    scheme = "http" if settings.tls_cert is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    count = f"{spec.min_replicas} to {spec.max_replicas}" if spec.is_autoscaled else f"{spec.max_replicas}"
    replicas = "1 replica" if spec.max_replicas == 1 else f"{count} replicas"
    console.print(
        f"[bold]octavo[/] serves {spec.model or DEFAULT_ALIAS} with {replicas} at "
        f"{scheme}://{host}:{settings.port}/v1   (ctrl-c stops it)"
    )
    keys = "every request needs a key" if settings.has_keys else "no key is needed"
    console.print(f"reachable by {describe_reach(settings)}; {keys}", style="dim")
    where = "on their nodes' addresses" if spec.private_network else "on loopback"
    console.print(f"replicas listen {where}, and accept only the cluster's key", style="dim")
    style = "yellow" if is_open else "dim"
    token = "without a token: every host that reaches it can run code here" if is_open else "with a token"
    console.print(f"Ray always listens on all interfaces, {token}", style=style)
    if is_own:
        for each in listening_ports(os.getpid()):
            if each.is_on_all_interfaces:
                console.print(
                    f"  {each.program} on {each.address}, port {each.port}", style="dim", markup=False
                )
