"""`octavo serve`: bind, load, serve, drain; and `octavo render`, which loads no weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from rich.console import Console

from octavo.cli.terminal import running_engine, show_progress
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
FRONT_ENDS_MAX, CORES_PER_FRONT_END = 4, 4


class Parent(Protocol):
    """The process that started this server as a replica of a cluster."""

    replica: ReplicaIdentity

    def report_progress(self, text: str) -> None:
        """Report a phase of the start."""

    def report_ready(self, port: int) -> None:
        """Report that the replica serves on this port."""


def run(
    model: str | None, options: StartOptions, settings: ServerSettings, parent: Parent | None = None
) -> None:
    """Serve until a signal. Binds the port and reads the tenants before it loads the model, so that their
    errors show at once. With a `parent` it serves as a replica, and prints nothing in a terminal."""
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
    """The options and settings of a server that is this replica. Raises ConfigError."""
    if replica.disk is not None:
        options = dataclasses.replace(options, disk_cache=str(replica.disk))
    return options, dataclasses.replace(settings, replica=replica)


def traffic_of(settings: ServerSettings) -> TrafficWriter | None:
    """The writer of the traffic file, if one is configured. Raises ConfigError."""
    return None if settings.trace_file is None else TrafficWriter.open(settings.trace_file)


def num_front_ends(options: StartOptions, settings: ServerSettings) -> int:
    """As configured; by default up to `FRONT_ENDS_MAX` with a GPU, and none on a processor, where the engine
    needs the cores."""
    if settings.http_processes is not None:
        return settings.http_processes
    return min(FRONT_ENDS_MAX, available_cores() // CORES_PER_FRONT_END) if expects_device(options) else 0


def run_supervised(
    model: str | None,
    options: StartOptions,
    settings: ServerSettings,
    listeners: Listeners,
    count: int,
    on_ready: OnReady,
) -> None:
    """Serve with `count` front ends. If the engine fails to start, its exit status is the command's."""
    from octavo.server.supervisor import ChildExit, supervise

    try:
        supervise(model, options, settings, listeners, count, on_ready)
    except ChildExit as ended:
        if ended.status <= 0:  # else the child has printed its error
            raise EngineStopped(f"{ended} before the server was ready") from None
        sys.exit(ended.status)


def show_ready(url: str, name: str, settings: ServerSettings) -> None:
    """Print the banner: the address, who can reach it, and an example request."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.has_keys else ""
    body = '{"messages": [{"role": "user", "content": "What is a book?"}], "stream": true, "max_tokens": 64}'
    is_file = settings.unix_socket is not None
    scheme = "http" if settings.tls_cert is None else "https"
    base, where = (f"{scheme}://localhost", url) if is_file else (url, f"{url}/v1")
    curl = f"curl -N --unix-socket {settings.unix_socket}" if is_file else "curl -N"
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold]octavo[/] serves {name} at {where}   (ctrl-c stops it)")
    reach = describe_reach(settings)
    if settings.has_keys:
        console.print(f"reachable by {reach}; every request needs a key", style="dim")
    elif settings.insecure:
        console.print(f"reachable by {reach}, without keys: anyone there can use it", style="yellow")
    if not is_file:
        console.print(f"in a browser: {url}/ shows the live memory and a playground", style="dim")
    console.print("try:", style="dim")
    console.print(f"  {curl} {base}/v1/chat/completions{key} -d '{body}'", markup=False)


def run_renderer(model: str | None, options: StartOptions, settings: ServerSettings) -> None:
    """Serve the render routes until a signal. Binds the port and reads the tenants before loading."""
    from octavo.serving.start import start_renderer

    configure_logging(settings.log_level, settings.log_format)
    ignore_signals()
    with open_listener(settings) as listener:
        with show_progress() as report:
            renderer = start_renderer(model, options, report)
        try:
            serve(
                renderer, listener, settings, lambda url: _show_renderer_ready(url, renderer.name, settings)
            )
        finally:
            renderer.close()


def _show_renderer_ready(url: str, name: str, settings: ServerSettings) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold]octavo[/] renders prompts for {name} at {url}/v1   (ctrl-c stops it)")
    keys = "every request needs a key" if settings.has_keys else "no key is needed"
    console.print(f"reachable by {describe_reach(settings)}; {keys}", style="dim")
