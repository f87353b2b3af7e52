"""`octavo serve`: bind, load, serve, drain."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from rich.console import Console

from octavo.cli.terminal import running_engine
from octavo.config import StartOptions
from octavo.engine.available import available_cores
from octavo.engine.backends import expects_device
from octavo.engine.traffic import TrafficWriter
from octavo.errors import EngineStopped
from octavo.server.logs import configure_logging
from octavo.server.replica import ReplicaIdentity, claimed_slot
from octavo.server.run import (
    Listeners,
    describe_reach,
    ignore_signals,
    open_listener,
    open_metrics_listener,
    serve,
)
from octavo.server.settings import ServerSettings

OnReady = Callable[[str, str], None]  # base URL, and the model's name
FRONT_ENDS_MAX, CORES_EACH = 4, 4  # cores of the machine for each front end


class Parent(Protocol):
    """What started this server as a replica of a cluster."""

    replica: ReplicaIdentity

    def report_progress(self, text: str) -> None:
        """A phase of the start."""

    def report_ready(self, port: int) -> None:
        """It serves there."""


def run(
    model: str | None, options: StartOptions, settings: ServerSettings, parent: Parent | None = None
) -> None:
    """Serve until a signal. The port is taken and the tenants are read before the model is loaded, so what is
    wrong with them is known at once. `parent`: it is a replica, and shows nothing in a terminal."""
    if parent is not None:
        options, settings = replica_settings(parent.replica, options, settings)
    name = None if settings.replica is None else settings.replica.name
    configure_logging(settings.log_level, settings.log_format, name)
    ignore_signals()
    policies_of = None if settings.roster is None else settings.roster.tenants.policies
    with (
        ExitStack() as held,
        open_listener(settings) as listener,
        open_metrics_listener(settings) as scrapes,
    ):

        def on_ready(url: str, name: str) -> None:
            if parent is None:
                show_ready(url, name, settings)
            else:
                parent.report_ready(listener.getsockname()[1])

        if parent is not None:
            held.enter_context(claimed_slot(parent.replica, parent.report_progress))
        if count := num_front_ends(options, settings):
            run_supervised(model, options, settings, Listeners(listener, scrapes), count, on_ready)
            return
        traffic = traffic_of(settings)
        progress = None if parent is None else parent.report_progress
        start = None if parent is None else parent.replica.start
        with running_engine(model, options, policies_of, traffic, progress, start) as llm:
            serve(llm, listener, settings, lambda url: on_ready(url, llm.name), scrapes)


def replica_settings(
    replica: ReplicaIdentity, options: StartOptions, settings: ServerSettings
) -> tuple[StartOptions, ServerSettings]:
    """Of a server that is this replica. Raises ConfigError."""
    if replica.disk is not None:
        options = dataclasses.replace(options, disk_cache=str(replica.disk))
    return options, dataclasses.replace(settings, replica=replica)


def traffic_of(settings: ServerSettings) -> TrafficWriter | None:
    """The file that the traffic is written in, if there is to be one. Raises ConfigError, before a model is
    loaded for nothing."""
    return None if settings.trace_file is None else TrafficWriter.open(settings.trace_file)


def num_front_ends(options: StartOptions, settings: ServerSettings) -> int:
    """As given; else none on a processor, whose cores compute, and up to `FRONT_ENDS_MAX` beside a GPU."""
    if settings.http_processes is not None:
        return settings.http_processes
    return min(FRONT_ENDS_MAX, available_cores() // CORES_EACH) if expects_device(options) else 0


def run_supervised(
    model: str | None,
    options: StartOptions,
    settings: ServerSettings,
    listeners: Listeners,
    count: int,
    on_ready: OnReady,
) -> None:
    """Serve with so many front ends. The status of an engine that could not begin is the command's."""
    from octavo.server.supervisor import ChildExit, supervise

    try:
        supervise(model, options, settings, listeners, count, on_ready)
    except ChildExit as ended:
        if ended.status <= 0:  # else it has said why
            raise EngineStopped(f"{ended} before the server was ready") from None
        sys.exit(ended.status)


def show_ready(url: str, name: str, settings: ServerSettings) -> None:
    """The banner: where, for whom, and a request that can be copied."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.has_keys else ""
    body = '{"messages": [{"role": "user", "content": "What is a book?"}], "stream": true, "max_tokens": 64}'
    is_file = settings.unix_socket is not None
    scheme = "http" if settings.tls_cert is None else "https"
    base, where = (f"{scheme}://localhost", url) if is_file else (url, f"{url}/v1")
    curl = f"curl -N --unix-socket {settings.unix_socket}" if is_file else "curl -N"
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold]octavo[/] serves {name} at {where}   (ctrl-c ends it)")
    reach = describe_reach(settings)
    if settings.has_keys:
        console.print(f"reachable by {reach}; every request needs a key", style="dim")
    elif settings.insecure:
        console.print(f"reachable by {reach}; there are no keys: anyone there can use it", style="yellow")
    if not is_file:
        console.print(f"see it: {url}/ in a browser shows the memory, live, and a playground", style="dim")
    console.print("try:", style="dim")
    console.print(f"  {curl} {base}/v1/chat/completions{key} -d '{body}'", markup=False)
