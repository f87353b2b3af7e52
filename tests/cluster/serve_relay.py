"""`octavo serve` as a relay and two replicas, without Ray: for the tests that run a real server.

python -m tests.cluster.serve_relay MODEL FLAGS        flags as of `octavo serve`
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from tests.cluster.conftest import new_replica
from tests.cluster.relaying import fleet_of

from octavo.cli import options as opt
from octavo.cli.flags import Only, with_settings
from octavo.cluster.child import ReplicaChild
from octavo.cluster.relay import create_relay_server
from octavo.cluster.spec import NOT_OF_ENGINES, NOT_OF_RELAYS
from octavo.config import StartOptions
from octavo.routing.router import Router
from octavo.server.logs import configure_logging
from octavo.server.run import bind, ignore_signals
from octavo.server.settings import ServerSettings
from octavo.serving.start import start_renderer
from octavo.setting import settings_of

NUM_REPLICAS = 2
_ENGINE = tuple(each.field for each in settings_of(StartOptions) if each.name not in NOT_OF_ENGINES)
_SERVER = tuple(each.field for each in settings_of(ServerSettings) if each.name not in NOT_OF_RELAYS)

app = typer.Typer()


@app.command()
@with_settings
def serve(
    model: opt.Model = None,
    file: opt.File = None,
    *,
    engine: Annotated[StartOptions, Only(*_ENGINE)],
    server: Annotated[ServerSettings, Only(*_SERVER)],
) -> None:
    """Serve until a signal."""
    ignore_signals()
    configure_logging(server.log_level, server.log_format)
    key = secrets.token_hex(32)
    with bind(server.host, server.port) as listener, ExitStack() as ends:
        # A flag that is given again, as the port of a child is, has its last value.
        disk = engine.disk_cache
        disks = [None if disk is None else Path(disk) / str(slot) for slot in range(NUM_REPLICAS)]
        replicas = [new_replica(slot, disks[slot], key) for slot in range(NUM_REPLICAS)]
        children = [ReplicaChild(replica, sys.argv[1:]) for replica in replicas]
        for child in children:
            ends.callback(child.kill)
        fleet = fleet_of(children)
        renderer = start_renderer(opt.with_file(model, file), engine, lambda _: None)
        ends.callback(renderer.close)
        relay = create_relay_server(renderer, server, Router(), fleet)
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, relay.handle_exit)
        asyncio.run(relay.serve(sockets=[listener]))


if __name__ == "__main__":
    app()
