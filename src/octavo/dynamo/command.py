"""The command line of a worker: a model, the engine's flags as `octavo serve` has them, and Dynamo's."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Self

import typer

from octavo.cli import options as opt
from octavo.cli.flags import ResolvedFlags, with_settings
from octavo.cli.main import SERVER_ENGINE
from octavo.config import StartOptions
from octavo.errors import ConfigError, shown
from octavo.setting import check, setting

PROGRAM = "python -m octavo.dynamo"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Where a worker joins Dynamo, as flags of Dynamo's own workers. Raises ConfigError."""

    namespace: str = setting("dynamo", "Dynamo's namespace.", group="Dynamo")
    component: str = setting("backend", "The component in it that this worker belongs to.")
    endpoint: str = setting("generate", "The component's endpoint.")
    endpoint_types: str = setting("chat,completions", "APIs that the frontend serves for the model.")
    discovery_backend: str = setting(
        "etcd",
        "The service discovery of workers and frontends.",
        choices=("etcd", "file", "kubernetes", "mem"),
    )
    request_plane: str = setting("tcp", "The transport of requests.", choices=("tcp", "nats"))
    event_plane: str | None = setting(
        None, "The transport of KV events.", choices=("zmq", "nats"), unset="zmq"
    )
    dyn_tool_call_parser: str | None = setting(
        None, "Dynamo's parser of tool calls, run by the frontend.", metavar="NAME", unset="none"
    )
    dyn_reasoning_parser: str | None = setting(
        None, "Dynamo's parser of thinking, run by the frontend.", metavar="NAME", unset="none"
    )

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def of_environment(cls) -> Self:
        """From Dynamo's variables: DYN_NAMESPACE, DYN_DISCOVERY_BACKEND and so on. Raises ConfigError."""
        variables = {own.name: f"DYN_{own.name.removeprefix('dyn_').upper()}" for own in fields(cls)}
        return cls(**{name: os.environ[key] for name, key in variables.items() if os.environ.get(key)})


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """A parsed command line."""

    model: str | None
    engine: StartOptions
    worker: WorkerOptions


def read_command(argv: list[str] | None) -> WorkerCommand:
    """Parse a command line; None: that of the process. Raises ConfigError, or SystemExit for --help and
    unknown flags."""
    parsed: list[WorkerCommand] = []
    defaults = WorkerOptions.of_environment()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command()
    @with_settings
    def worker(
        model: opt.Model = None,
        file: opt.File = None,
        *,
        worker: WorkerOptions = defaults,
        engine: StartOptions = SERVER_ENGINE,
        resolved: ResolvedFlags,
    ) -> None:
        """Serve a model as a worker of NVIDIA Dynamo."""
        _check_events(engine)
        parsed.append(WorkerCommand(opt.with_file(model or resolved.model, file), engine, worker))

    try:
        typer.main.get_command(app)(args=argv, prog_name=PROGRAM)
    except SystemExit:
        if not parsed:
            raise
    return parsed[0]


def _check_events(engine: StartOptions) -> None:
    """Raise ConfigError for settings of events with which Dynamo would miss some: it only connects and
    subscribes."""
    if engine.kv_events is not None and "*" in engine.kv_events:
        raise ConfigError(
            f"kv_events is {shown(engine.kv_events)}, and Dynamo connects to it; allowed: an address with a "
            "port, or ipc://PATH; without it the worker makes an endpoint of its own"
        )
    if engine.kv_events_replay is not None:
        raise ConfigError(
            f"kv_events_replay is {shown(engine.kv_events_replay)}, with which numbers begin at 0 again, and "
            "Dynamo drops a message whose number it had; allowed: none"
        )
