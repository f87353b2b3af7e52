"""The `octavo` command: what exists and which options it takes. The work is done by the module of each
command.

Heavy modules are imported inside commands, so that `octavo --help` answers at once. An error that a person
can meet ends the process with its message and no traceback: 2 for a wrong setting, 1 for all else.
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
from octavo.cli.bench_app import CALIBRATED, CALIBRATING, bench_app
from octavo.cli.cluster_app import cluster_app
from octavo.cli.disk_app import disk_app
from octavo.cli.given import Only, ResolvedFlags, with_settings
from octavo.cli.models_app import models_app
from octavo.cli.remote import DEFAULT_URL, ApiKey, OtherUrl, Url
from octavo.cli.server_apps import pins_app, pool_app, sessions_app
from octavo.cli.streams import standard_streams
from octavo.cli.tenants_app import tenants_app
from octavo.config import StartOptions
from octavo.errors import ConfigError, InvalidRequest, OctavoError, TenantsRefused
from octavo.server.settings import ServerSettings

# What a server's defaults are, where they are not those of a script; `doctor` and the terminal have them too.
TALKING = StartOptions(pace=True)
SERVING = StartOptions(pace=True, kv_ready_bytes=2**30)
CHATTING = opt.Sampling(temperature=0.7, top_p=0.95)
CONTINUING = opt.Sampling(max_tokens=128)
# What an engine in a terminal is asked for; a server's other settings have no use there.
HERE = (
    "weights",
    "packed_cache",
    "context_length",
    "backend",
    "device",
    "threads",
    "kv",
    "kv_memory_bytes",
)

# What prompts depend on, and what a server has that generates nothing.
RENDERED = ("context_length", "chat_template", "tool_parser", "reasoning_parser", "served_name")
ASKED = (
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
    # By this name also as `python -m octavo`: completion asks by it.
    run_command(lambda: whole_command()(prog_name="octavo"))


def run_command(command: Callable[[], object]) -> None:
    """Run a command to its end. An error that a person can meet is a sentence, and the exit status."""
    with standard_streams():
        try:
            command()
        except OctavoError as error:
            typer.echo(f"octavo: {error}", err=True)
            sys.exit(2 if isinstance(error, (ConfigError, InvalidRequest, TenantsRefused)) else 1)
        except (MemoryError, OSError, RuntimeError) as error:
            if not _is_shortage(error):
                raise
            typer.echo(f"octavo: {_shortage_in_words(error)}", err=True)
            sys.exit(1)


def _is_shortage(error: Exception) -> bool:
    """Whether the system has refused memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


def _shortage_in_words(error: Exception) -> str:
    """What was refused, and what to change. It imports nothing: there may be no room."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_bounded = most != resource.RLIM_INFINITY
    allowed = f"; allowed: {most >> 20:,} MiB of addresses (ulimit -v)" if is_bounded else ""
    return (
        f"the system refuses memory ({str(error) or type(error).__name__}){allowed}; give the process more, "
        "or a smaller --kv-memory, --context-length or model"
    )


def whole_command() -> TyperGroup:
    """All commands, as typer makes them, but for the <bool> and <str> that it writes in --help behind flags
    and arguments."""
    whole = cast(TyperGroup, typer.main.get_command(app))
    _leave_out_types(whole)
    return whole


def _leave_out_types(command: TyperGroup | TyperCommand) -> None:
    for each in command.get_params(typer.Context(command)):
        if each.param_type_name == "argument":  # whose metavar is its name
            vars(each)["display_type_rich"] = lambda ctx: None
        elif getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _leave_out_types(inner)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and leave.")] = False,
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
    engine: StartOptions = SERVING,
    server: ServerSettings,
    resolved: ResolvedFlags,
) -> None:
    """Serve a model over HTTP, with the APIs of OpenAI, Anthropic and Ollama."""
    from octavo.cli.serve import run

    run(opt.named(model or resolved.model, file), engine, server, given.obj)


@app.command()
@with_settings
def render(
    model: opt.Model = None,
    file: opt.File = None,
    *,
    engine: Annotated[StartOptions, Only(*RENDERED)] = SERVING,
    server: Annotated[ServerSettings, Only(*ASKED)],
    resolved: ResolvedFlags,
) -> None:
    """Serve the tokens of prompts without loading weights: for routers, next to a server of the model."""
    from octavo.cli.render import run

    run(opt.named(model or resolved.model, file), engine, server)


@app.command()
@with_settings
def chat(
    given: typer.Context,
    model: opt.Model = None,
    file: opt.File = None,
    url: OtherUrl = None,
    api_key: ApiKey = "",
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")
    ] = None,
    *,
    sampling: Annotated[opt.Sampling, Only("max_tokens", "temperature", "top_p", "top_k", "seed")] = CHATTING,
    engine: Annotated[StartOptions, Only(*HERE, "chat_template")] = TALKING,
    resolved: ResolvedFlags,
) -> None:
    """Talk to a model in the terminal: one that is loaded here, or a server's (--url)."""
    from octavo.cli.chat import run
    from octavo.cli.place import Here, place_of

    here = Here(opt.named(model or (None if url else resolved.model), file), engine)
    run(place_of(given, here, url, api_key), sampling.params, system)


@app.command()
@with_settings
def generate(
    given: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="A model, as for serve, and the text to continue (- reads standard input).",
        ),
    ],
    file: opt.File = None,
    url: OtherUrl = None,
    api_key: ApiKey = "",
    *,
    sampling: opt.Sampling = CONTINUING,
    engine: Annotated[StartOptions, Only(*HERE)] = TALKING,
    resolved: ResolvedFlags,
) -> None:
    """Continue a text by a model that is loaded here, or a server's (--url)."""
    if len(words) > 2:
        raise typer.BadParameter(f"{len(words)} arguments; allowed: [MODEL] PROMPT (quote the prompt)")
    model, prompt = words[0] if len(words) == 2 else None, words[-1]
    from octavo.cli.generate import run
    from octavo.cli.place import Here, place_of

    here = Here(opt.named(model or (None if url else resolved.model), file), engine)
    place = place_of(given, here, url, api_key)
    run(place, sampling.params, sys.stdin.read() if prompt == "-" else prompt)


@app.command()
def replay(
    recording: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `serve --record` wrote.", show_default=False)
    ],
    check_every: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Check all invariants after each N-th step; 0: never. They cost far more than the plans.",
        ),
    ] = 1,
) -> None:
    """Run a recording through the scheduler again: the first plan that differs, if any."""
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
            help="A model, as for serve, or the address of a running server: its settings, pool and tenants.",
            show_default=False,
            autocompletion=opt.complete_model,
        ),
    ] = None,
    file: opt.File = None,
    url: OtherUrl = None,
    api_key: ApiKey = "",
    as_json: opt.AsJson = False,
    *,
    asked: PlanOptions,
    targets: WorkloadTargets,
    engine: Annotated[StartOptions, Only(*CALIBRATED, "target_itl_s")] = CALIBRATING,
    resolved: ResolvedFlags,
) -> None:
    """Tell how a server would do under traffic that is not there yet: latencies, users, what limits it."""
    from octavo.cli.place import Here, place_of
    from octavo.cli.plan import of_server, run_plan, stored

    is_url = model is not None and model.startswith(("http://", "https://"))
    here = Here(None if is_url else opt.named(model or (None if url else resolved.model), file), engine)
    asks = (model, "the argument") if is_url else (url, "")
    place = place_of(given, here, asks[0], api_key, named_by=asks[1])
    if isinstance(place, Here):
        calibration = stored(place.model, place.options, asked.calibrate_s)
    else:
        calibration = of_server(place.url, place.api_key)
    run_plan(calibration, asked, targets, as_json=as_json)


@app.command()
@with_settings
def doctor(
    model: opt.Model = None,
    file: opt.File = None,
    load: Annotated[
        bool, typer.Option("--load", help="Load the model to tell, and not its headers alone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
    *,
    engine: StartOptions = TALKING,
    resolved: ResolvedFlags,
) -> None:
    """Say before loading whether a model runs and fits here, and how fast. Status 1: no."""
    from octavo.cli.doctor import run

    if not run(
        opt.named(model or resolved.model, file), engine, resolved.origins, load=load, as_json=as_json
    ):
        raise typer.Exit(1)


@app.command()
def top(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between two pictures.", min=0.1, max=60)
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show once and leave.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Watch a running server's KV memory: its blocks, and who waits and why."""
    from octavo.cli.top import run

    run(url, api_key, interval, once=once, as_json=as_json)
