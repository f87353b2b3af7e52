"""The `octavo` command: what exists and which options it takes. The work is done by the module of each
command.

Heavy modules are imported inside commands, so that `octavo --help` answers at once. An error that a person
can meet ends the process with its message and no traceback: 2 for a wrong setting, 1 for all else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo import __version__
from octavo.cli import options as opt
from octavo.cli.bench_app import bench_app
from octavo.cli.disk_app import disk_app
from octavo.cli.models_app import models_app
from octavo.cli.pins_app import pins_app
from octavo.cli.pool_app import pool_app
from octavo.cli.remote import DEFAULT_URL, ApiKey, OtherUrl, Url
from octavo.cli.sessions_app import sessions_app
from octavo.cli.streams import standard_streams
from octavo.cli.tenants_app import tenants_app
from octavo.errors import ConfigError, InvalidRequest, OctavoError, TenantsRefused

app = typer.Typer(
    name="octavo",
    help="Serve language models from paged KV memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")
app.add_typer(disk_app, name="disk")
app.add_typer(models_app, name="models")
app.add_typer(pins_app, name="pins")
app.add_typer(pool_app, name="pool")
app.add_typer(sessions_app, name="sessions")
app.add_typer(tenants_app, name="tenants")


def main() -> None:
    """The entry point of the console script."""
    with standard_streams():
        try:
            app()
        except OctavoError as error:
            typer.echo(f"octavo: {error}", err=True)
            sys.exit(2 if isinstance(error, (ConfigError, InvalidRequest, TenantsRefused)) else 1)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Serve language models from paged KV memory."""
    if version:
        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.command()
def serve(
    model: opt.Model = None,
    file: opt.File = None,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    api_key: opt.ApiKey = None,
    api_key_file: opt.ApiKeyFile = None,
    tenants: opt.Tenants = None,
    insecure: opt.Insecure = False,
    allowed_host: opt.AllowedHost = None,
    allowed_origin: opt.AllowedOrigin = None,
    log_level: opt.LogLevel = "info",
    log_format: opt.LogFormat = "text",
    chat_template: opt.ChatTemplate = None,
    tool_parser: opt.ToolParser = None,
    served_name: opt.ServedName = None,
    pooling: opt.Pooling = "last",
    drain_timeout: opt.DrainTimeout = 30.0,
    weights: opt.Weights = "auto",
    packed_cache: opt.PackedCache = False,
    kv: opt.Kv = "bf16",
    backend: opt.Backend = "auto",
    device: opt.Device = "auto",
    attention: opt.Attention = "triton",
    context_length: opt.ContextLength = None,
    kv_memory: opt.KvMemory = None,
    kv_ready: opt.KvReady = opt.KV_READY,
    pin_memory: opt.PinMemory = None,
    idle_return: opt.IdleReturn = 300,
    memory_reserve: opt.MemoryReserve = None,
    host_cache: opt.HostCache = None,
    disk_cache: opt.DiskCache = None,
    disk_size: opt.DiskSize = "20GiB",
    disk_max_age: opt.DiskMaxAge = 30,
    session_ttl: opt.SessionTtl = 86_400,
    block_size: opt.BlockSize = 16,
    max_seqs: opt.MaxSeqs = 64,
    step_tokens: opt.StepTokens = 512,
    max_queue: opt.MaxQueue = 1024,
    threads: opt.Threads = None,
    overlap: opt.Overlap = None,
    prefix_caching: opt.PrefixCaching = True,
    speculate: opt.Speculate = "auto",
    pace: opt.PrefillBudget = True,
) -> None:
    """Serve a model over HTTP, with the APIs of OpenAI, Anthropic and Ollama."""
    from octavo.cli.serve import run

    engine = opt.start_options(
        weights=weights,
        kv=kv,
        where=opt.BackendOptions(backend, device, attention, packed_cache, overlap),
        context_length=context_length,
        kv_memory=kv_memory,
        kv_ready=kv_ready,
        returned=opt.ReturnOptions(idle_return, memory_reserve),
        tiers=opt.TierOptions(host_cache, disk_cache, disk_size, disk_max_age),
        kept=opt.KeptOptions(pin_memory, session_ttl, prefix_caching, max_queue),
        block_size=block_size,
        max_seqs=max_seqs,
        step_tokens=step_tokens,
        threads=threads,
        speculate=speculate,
        pace=pace,
        served=opt.ServedOptions(tool_parser, served_name, pooling, chat_template),
    )
    access = opt.AccessOptions(api_key, api_key_file, tenants, insecure, allowed_host, allowed_origin)
    edge = opt.server_settings(host, access, drain_timeout)
    run(opt.named(model, file), engine, edge, port, log_level, log_format)


@app.command()
def chat(
    given: typer.Context,
    model: opt.Model = None,
    file: opt.File = None,
    url: OtherUrl = None,
    api_key: ApiKey = "",
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = 0.7,
    top_p: opt.TopP = 0.95,
    top_k: opt.TopK = 0,
    seed: opt.Seed = None,
    weights: opt.Weights = "auto",
    packed_cache: opt.PackedCache = False,
    kv: opt.Kv = "bf16",
    backend: opt.Backend = "auto",
    device: opt.Device = "auto",
    context_length: opt.ContextLength = None,
    kv_memory: opt.KvMemory = None,
    chat_template: opt.ChatTemplate = None,
    threads: opt.Threads = None,
) -> None:
    """Talk in the terminal to a model that is loaded here, or to a running server's (--url)."""
    from octavo.cli.chat import run
    from octavo.cli.place import Here, place_of
    from octavo.params import SamplerParams

    options = opt.start_options(
        weights=weights,
        kv=kv,
        where=opt.BackendOptions(backend, device, packed_cache=packed_cache),
        context_length=context_length,
        kv_memory=kv_memory,
        threads=threads,
        served=opt.ServedOptions(chat_template=chat_template),
    )
    params = SamplerParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed
    )
    run(place_of(given, Here(opt.named(model, file), options), url, api_key), params, system)


@app.command()
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
    max_tokens: opt.MaxTokens = 128,
    temperature: opt.Temperature = 1.0,
    top_p: opt.TopP = 1.0,
    top_k: opt.TopK = 0,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    weights: opt.Weights = "auto",
    packed_cache: opt.PackedCache = False,
    kv: opt.Kv = "bf16",
    backend: opt.Backend = "auto",
    device: opt.Device = "auto",
    context_length: opt.ContextLength = None,
    kv_memory: opt.KvMemory = None,
    threads: opt.Threads = None,
) -> None:
    """Continue a text, streamed to standard output, by a model that is loaded here or a server's (--url)."""
    if len(words) > 2:
        raise typer.BadParameter(f"{len(words)} arguments; allowed: [MODEL] PROMPT (quote the prompt)")
    model, prompt = words[0] if len(words) == 2 else None, words[-1]
    from octavo.cli.generate import run
    from octavo.cli.place import Here, place_of
    from octavo.params import SamplerParams

    options = opt.start_options(
        weights=weights,
        kv=kv,
        where=opt.BackendOptions(backend, device, packed_cache=packed_cache),
        context_length=context_length,
        kv_memory=kv_memory,
        threads=threads,
    )
    params = SamplerParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=tuple(stop or ()),
    )
    place = place_of(given, Here(opt.named(model, file), options), url, api_key)
    run(place, params, sys.stdin.read() if prompt == "-" else prompt)


@app.command()
def convert(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As for serve.", show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .gguf file to write.", show_default=False)],
    file: opt.File = None,
    weights: Annotated[
        str,
        typer.Option(help="What matrices become: q4, int8, bf16, f32; auto (safetensors): as in the file."),
    ] = "q4",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it exists.")] = False,
) -> None:
    """Write a model's weights in another kind, as a GGUF file."""
    from octavo.cli.convert import run

    run(opt.named(model, file), out, weights, overwrite=overwrite)


@app.command()
def doctor(
    model: opt.Model = None,
    file: opt.File = None,
    weights: opt.Weights = "auto",
    packed_cache: opt.PackedCache = False,
    kv: opt.Kv = "bf16",
    backend: opt.Backend = "auto",
    device: opt.Device = "auto",
    attention: opt.Attention = "triton",
    context_length: opt.ContextLength = None,
    kv_memory: opt.KvMemory = None,
    host_cache: opt.HostCache = None,
    disk_cache: opt.DiskCache = None,
    disk_size: opt.DiskSize = "20GiB",
    disk_max_age: opt.DiskMaxAge = 30,
    block_size: opt.BlockSize = 16,
    max_seqs: opt.MaxSeqs = 64,
    threads: opt.Threads = None,
    load: Annotated[
        bool, typer.Option("--load", help="Load the model, then tell; else from headers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="From headers, as JSON; not with --load.")] = False,
) -> None:
    """Say before loading whether a model runs and fits here, how fast, and what to change. Status 1: no."""
    from octavo.cli.doctor import run

    options = opt.start_options(
        weights=weights,
        kv=kv,
        where=opt.BackendOptions(backend, device, attention, packed_cache),
        context_length=context_length,
        kv_memory=kv_memory,
        tiers=opt.TierOptions(host_cache, disk_cache, disk_size, disk_max_age),
        block_size=block_size,
        max_seqs=max_seqs,
        threads=threads,
    )
    if not run(opt.named(model, file), options, load=load, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def top(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    interval: Annotated[float, typer.Option(help="Seconds between two pictures.", min=0.1, max=60)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show once and leave.")] = False,
) -> None:
    """Watch a running server's KV memory: its blocks, who waits and why, what it keeps, what happened."""
    from octavo.cli.top import run

    run(url, api_key, interval, once)
