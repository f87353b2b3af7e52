"""The `octavo` command: its subcommands and their options. Another module implements each command.

Commands import heavy modules in their functions, so that `octavo --help` is fast. An expected error ends the
process with its message, without a traceback: status 2 for a wrong setting, 1 for others.
"""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import typer
from typer.core import TyperCommand, TyperGroup

from octavo import __version__
from octavo.bench.workloads import PlanOptions, WorkloadTargets
from octavo.cli import options as opt
from octavo.cli.bench_app import CALIBRATION_ENGINE, CALIBRATION_SETTINGS, bench_app
from octavo.cli.cluster_app import cluster_app
from octavo.cli.disk_app import disk_app
from octavo.cli.flags import Only, ResolvedFlags, with_settings
from octavo.cli.models_app import models_app
from octavo.cli.remote import DEFAULT_URL, ApiKey, OtherUrl, Url
from octavo.cli.server_apps import pins_app, pool_app, sessions_app
from octavo.cli.streams import standard_streams
from octavo.cli.tenants_app import tenants_app
from octavo.config import StartOptions
from octavo.errors import ConfigError, InvalidRequest, OctavoError, TenantsRefused
from octavo.server.settings import ServerSettings

# Defaults that differ from those of the Python API.
TERMINAL_ENGINE = StartOptions(pace=True)
SERVER_ENGINE = StartOptions(pace=True, kv_ready_bytes=2**30)
CHAT_SAMPLING = opt.Sampling(temperature=0.7, top_p=0.95)
GENERATE_SAMPLING = opt.Sampling(max_tokens=128)
# The engine's settings that are useful in a terminal.
TERMINAL_SETTINGS = (
    "weights",
    "packed_cache",
    "context_length",
    "backend",
    "device",
    "threads",
    "kv",
    "kv_memory_bytes",
)

# The settings of `octavo render`: the engine's that change prompts, and the server's without generation.
RENDER_ENGINE_SETTINGS = (
    *("context_length", "chat_template", "tool_parser", "reasoning_parser", "served_name"),
)
RENDER_SERVER_SETTINGS = (
    *("host", "port", "unix_socket", "tls_cert", "tls_key", "log_level", "log_format"),
    *("api_keys", "key_file", "roster", "insecure", "allowed_hosts", "allowed_origins"),
)

app = typer.Typer(
    name="octavo",
    help="Serve language models from paged KV memory.",
    epilog="Exit status: 0 done, 1 failed, 2 a wrong argument or setting, 130 stopped by ctrl-c.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")
app.add_typer(cluster_app, name="cluster")
app.add_typer(disk_app, name="disk")
app.add_typer(models_app, name="models")
app.add_typer(pins_app, name="pins")
app.add_typer(pool_app, name="pool")
app.add_typer(sessions_app, name="sessions")
app.add_typer(tenants_app, name="tenants")


def main() -> None:
    """The entry point of the console script."""
    # The same name for `python -m octavo`: shell completion uses it.
    run_command(lambda: whole_command()(prog_name="octavo"))


def run_command(command: Callable[[], object]) -> None:
    """Run a command. An expected error becomes one line on standard error and the exit status."""
    with standard_streams():
        try:
            command()
        except OctavoError as error:
            typer.echo(f"octavo: {error}", err=True)
            sys.exit(2 if isinstance(error, (ConfigError, InvalidRequest, TenantsRefused)) else 1)
        except (MemoryError, OSError, RuntimeError) as error:
            if not _is_shortage(error):
                raise
            typer.echo(f"octavo: {_describe_shortage(error)}", err=True)
            sys.exit(1)


def _is_shortage(error: Exception) -> bool:
    """Whether the system refused to allocate memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


def _describe_shortage(error: Exception) -> str:
    """The message for refused memory. It imports nothing, since an import needs memory."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_bounded = most != resource.RLIM_INFINITY
    allowed = f"; allowed: {most >> 20:,} MiB of addresses (ulimit -v)" if is_bounded else ""
    return (
        f"the system refuses memory ({str(error) or type(error).__name__}){allowed}; give the process more, "
        "or a smaller --kv-memory, --context-length or model"
    )


def whole_command() -> TyperGroup:
    """All commands as typer makes them, without the <bool> and <str> in --help."""
    whole = cast(TyperGroup, typer.main.get_command(app))
    _hide_types(whole)
    return whole


def _hide_types(command: TyperGroup | TyperCommand) -> None:
    for each in command.get_params(typer.Context(command)):
        if each.param_type_name == "argument":  # its metavar is its name
            vars(each)["display_type_rich"] = lambda ctx: None
        elif getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_types(inner)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    """Serve language models from paged KV memory."""
    if version:
        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.command()
@with_settings
def serve(
    given: typer.Context,
    model: opt.Model = None,
    file: opt.File = None,
    *,
    engine: StartOptions = SERVER_ENGINE,
    server: ServerSettings,
    resolved: ResolvedFlags,
) -> None:
    """Serve a model over HTTP, with the APIs of OpenAI, Anthropic and Ollama."""
    from octavo.cli.serve import run

    run(opt.with_file(model or resolved.model, file), engine, server, given.obj)


@app.command()
@with_settings
def render(
    model: opt.Model = None,
    file: opt.File = None,
    *,
    engine: Annotated[StartOptions, Only(*RENDER_ENGINE_SETTINGS)] = SERVER_ENGINE,
    server: Annotated[ServerSettings, Only(*RENDER_SERVER_SETTINGS)],
    resolved: ResolvedFlags,
) -> None:
    """Render and tokenize prompts over HTTP, without weights: for routers, next to a server."""
    from octavo.cli.serve import run_renderer

    run_renderer(opt.with_file(model or resolved.model, file), engine, server)


@app.command()
@with_settings
def chat(
    given: typer.Context,
    model: opt.Model = None,
    file: opt.File = None,
    url: OtherUrl = None,
    api_key: ApiKey = "",
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    *,
    sampling: Annotated[
        opt.Sampling, Only("max_tokens", "temperature", "top_p", "top_k", "seed")
    ] = CHAT_SAMPLING,
    engine: Annotated[StartOptions, Only(*TERMINAL_SETTINGS, "chat_template")] = TERMINAL_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Chat with a model in the terminal: one that is loaded here, or a server's (--url)."""
    from octavo.cli.answer_source import LocalEngine, choose_source
    from octavo.cli.chat import chat

    local = LocalEngine(opt.with_file(model or (None if url else resolved.model), file), engine)
    chat(choose_source(given, local, url, api_key), sampling.params, system)


@app.command()
@with_settings
def generate(
    given: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="A model, as for serve, and the text to continue (-: read from standard input).",
        ),
    ],
    file: opt.File = None,
    url: OtherUrl = None,
    api_key: ApiKey = "",
    *,
    sampling: opt.Sampling = GENERATE_SAMPLING,
    engine: Annotated[StartOptions, Only(*TERMINAL_SETTINGS)] = TERMINAL_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Continue a text with a model that is loaded here, or a server's (--url)."""
    if len(words) > 2:
        raise typer.BadParameter(f"{len(words)} arguments; allowed: [MODEL] PROMPT (quote the prompt)")
    model, prompt = words[0] if len(words) == 2 else None, words[-1]
    from octavo.cli.answer_source import LocalEngine, choose_source
    from octavo.cli.chat import generate

    local = LocalEngine(opt.with_file(model or (None if url else resolved.model), file), engine)
    source = choose_source(given, local, url, api_key)
    generate(source, sampling.params, sys.stdin.read() if prompt == "-" else prompt)


@app.command()
def replay(
    recording: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of `serve --record`.", show_default=False)
    ],
    check_every: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Check all invariants after every N-th step; 0: never. Checks take much longer than plans.",
        ),
    ] = 1,
) -> None:
    """Replay a recording through the scheduler and report the first plan that differs."""
    from octavo.cli.replay import run

    run(recording, check_every)


@app.command()
@with_settings
def plan(
    given: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|URL",
            help="A model, as for serve, or a running server's URL, for its settings, pool and tenants.",
            show_default=False,
            autocompletion=opt.complete_model,
        ),
    ] = None,
    file: opt.File = None,
    url: OtherUrl = None,
    api_key: ApiKey = "",
    as_json: opt.AsJson = False,
    *,
    options: PlanOptions,
    targets: WorkloadTargets,
    engine: Annotated[StartOptions, Only(*CALIBRATION_SETTINGS, "target_itl_s")] = CALIBRATION_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Predict a server's latencies, users and bottleneck under traffic that you describe."""
    from octavo.cli.answer_source import LocalEngine, choose_source
    from octavo.cli.plan import calibration_of_model, calibration_of_server, run_plan

    is_url = model is not None and model.startswith(("http://", "https://"))
    named = None if is_url else opt.with_file(model or (None if url else resolved.model), file)
    server_url, named_by = (model, "the argument") if is_url else (url, "")
    source = choose_source(given, LocalEngine(named, engine), server_url, api_key, named_by=named_by)
    if isinstance(source, LocalEngine):
        calibration = calibration_of_model(source.model, source.options, options.calibrate_s)
    else:
        calibration = calibration_of_server(source.url, source.api_key)
    run_plan(calibration, options, targets, as_json=as_json)


@app.command()
@with_settings
def doctor(
    model: opt.Model = None,
    file: opt.File = None,
    load: Annotated[bool, typer.Option("--load", help="Load the whole model, not only its headers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
    *,
    engine: StartOptions = TERMINAL_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Report before loading whether a model runs and fits here, and how fast. Exit status 1: no."""
    from octavo.cli.doctor import run

    named = opt.with_file(model or resolved.model, file)
    if not run(named, engine, resolved.origins, load=load, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def top(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between updates.", min=0.1, max=60)
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show once and exit.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Watch a running server's KV memory: its blocks, and which requests wait and why."""
    from octavo.cli.top import run

    run(url, api_key, interval, once=once, as_json=as_json)
