"""The flags of `octavo cluster`: start, inspect, scale, update and stop replicas of a model on Ray.

`cli/cluster.py`, which loads Ray, implements the commands.
"""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli import options as opt
from octavo.cli.flags import Only, ResolvedFlags, with_settings
from octavo.cli.options import ClusterOptions
from octavo.cluster.spec import NOT_OF_ENGINES, NOT_OF_RELAYS
from octavo.cluster.state import DEFAULT_NAME
from octavo.config import StartOptions
from octavo.server.settings import ServerSettings
from octavo.setting import settings_of

cluster_app = typer.Typer(
    help="Serve a model with many replicas, on Ray (docs/cluster.md).", no_args_is_help=True
)

_ENGINE = tuple(each.field for each in settings_of(StartOptions) if each.name not in NOT_OF_ENGINES)
_SERVER = tuple(each.field for each in settings_of(ServerSettings) if each.name not in NOT_OF_RELAYS)


Name = Annotated[str, typer.Option(metavar="NAME", help="Which of this machine's clusters.")]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="HOST:PORT of a running Ray. Default: that of this machine's cluster.",
        show_default=False,
    ),
]
OpenCluster = Annotated[
    bool,
    typer.Option(
        "--allow-open-cluster",
        help="Use a Ray without a token: anyone who reaches its ports can run code on every node.",
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
            help="HOST:PORT of a Ray to join. Default: start one, which ends with this command.",
            show_default=False,
        ),
    ] = None,
    open_cluster: OpenCluster = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print an equivalent Serve config file and exit.")
    ] = False,
    *,
    cluster: ClusterOptions,
    engine: Annotated[StartOptions, Only(*_ENGINE)],
    server: Annotated[ServerSettings, Only(*_SERVER)],
    resolved: ResolvedFlags,
) -> None:
    """Serve a model with several replicas behind one address, until ctrl-c."""
    from octavo.cli import cluster as commands

    named = opt.with_file(model or resolved.model, file)
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
    """Show the replicas and relays, with their slots, states and nodes."""
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
    """Change the number of replicas without restarting the others."""
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
    """Replace the replicas one by one with the installed Octavo and the given settings."""
    from octavo.cli import cluster as commands

    commands.update(name, address, cluster, resolved, open_cluster=open_cluster)


@cluster_app.command("stop")
def stop(name: Name = DEFAULT_NAME, address: Address = None, open_cluster: OpenCluster = False) -> None:
    """Stop a whole cluster. Running requests have --drain-timeout to end."""
    from octavo.cli import cluster as commands

    commands.stop(name, address, open_cluster=open_cluster)
