"""`octavo cluster`: many replicas of a model on Ray, started, looked at, scaled, updated and stopped.

What each command does is in `cli/cluster.py`, which loads Ray; this file is the flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from octavo.cli import options as opt
from octavo.cli.given import Only, ResolvedFlags, with_settings
from octavo.cluster.spec import NOT_OF_ENGINES, NOT_OF_RELAYS
from octavo.cluster.state import DEFAULT_NAME
from octavo.config import StartOptions
from octavo.server.settings import ServerSettings
from octavo.setting import setting, settings_of

cluster_app = typer.Typer(
    help="Serve a model with many replicas, on Ray (docs/cluster.md).", no_args_is_help=True
)

_ENGINE = tuple(each.field for each in settings_of(StartOptions) if each.name not in NOT_OF_ENGINES)
_SERVER = tuple(each.field for each in settings_of(ServerSettings) if each.name not in NOT_OF_RELAYS)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How many replicas, and where. `ClusterSpec` checks the bounds."""

    replicas: int | None = setting(None, "Replicas of the model.", unset="1", group="Cluster")
    min_replicas: int | None = setting(
        None, "With --max-replicas: start and stop replicas by load.", unset="1"
    )
    max_replicas: int | None = setting(None, "Replicas at most.", unset="none are started by load")
    requests_per_replica: int = setting(8, "Running and waiting requests of a replica, for these two.")
    replicas_per_node: int | None = setting(
        None,
        "Replicas of a node, which divide its threads and memory.",
        unset="as many as the nodes need",
    )
    relays_per_node: int = setting(2, "Processes of a node that take clients, on one port.")
    private_network: bool = setting(
        False, "Let replicas listen on their nodes' addresses, for relays of other machines."
    )


Name = Annotated[str, typer.Option(metavar="NAME", help="The cluster, of several on this machine.")]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="HOST:PORT of a Ray that runs. Default: the one that this machine's cluster has.",
        show_default=False,
    ),
]
OpenCluster = Annotated[
    bool,
    typer.Option(
        "--allow-open-cluster",
        help="Use a Ray without a token: everyone who reaches its ports runs code on every node.",
    ),
]


@cluster_app.command("serve")
@with_settings
def serve(
    model: opt.Model = None,
    file: opt.File = None,
    name: Name = DEFAULT_NAME,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="HOST:PORT of a Ray to join. Default: one is started, and ends with this command.",
            show_default=False,
        ),
    ] = None,
    open_cluster: OpenCluster = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print a Serve config file that does the same, and leave.")
    ] = False,
    *,
    cluster: ClusterOptions,
    engine: Annotated[StartOptions, Only(*_ENGINE)],
    server: Annotated[ServerSettings, Only(*_SERVER)],
    resolved: ResolvedFlags,
) -> None:
    """Serve a model with several replicas behind one address, until ctrl-c."""
    from octavo.cli import cluster as commands

    named = opt.named(model or resolved.model, file)
    spec, keys = commands.spec_of(named, cluster, resolved, server, open_cluster=open_cluster)
    if print_config:
        commands.print_config(spec, keys)
    else:
        commands.serve(spec, keys, name, address, open_cluster=open_cluster)


@cluster_app.command("status")
def status(
    name: Name = DEFAULT_NAME,
    address: Address = None,
    open_cluster: OpenCluster = False,
    as_json: opt.AsJson = False,
) -> None:
    """Show the replicas and relays, with their slots, states and places."""
    from octavo.cli import cluster as commands

    commands.status(name, address, open_cluster=open_cluster, as_json=as_json)


@cluster_app.command("scale")
@with_settings
def scale(
    name: Name = DEFAULT_NAME,
    address: Address = None,
    open_cluster: OpenCluster = False,
    *,
    cluster: Annotated[ClusterOptions, Only("replicas", "min_replicas", "max_replicas")],
) -> None:
    """Have another number of replicas; those that stay run on."""
    from octavo.cli import cluster as commands

    commands.scale(name, address, cluster, open_cluster=open_cluster)


@cluster_app.command("update")
@with_settings
def update(
    name: Name = DEFAULT_NAME,
    address: Address = None,
    open_cluster: OpenCluster = False,
    *,
    cluster: Annotated[ClusterOptions, Only("replicas_per_node")],
    engine: Annotated[StartOptions, Only(*_ENGINE)],
    resolved: ResolvedFlags,
) -> None:
    """Replace the replicas one after another: by the installed Octavo, with what flags change."""
    from octavo.cli import cluster as commands

    commands.update(name, address, cluster, resolved, open_cluster=open_cluster)


@cluster_app.command("stop")
def stop(name: Name = DEFAULT_NAME, address: Address = None, open_cluster: OpenCluster = False) -> None:
    """Stop a cluster whole: requests that run may end, and every process goes."""
    from octavo.cli import cluster as commands

    commands.stop(name, address, open_cluster=open_cluster)
