"""The commands under `octavo bench`. What each sends is described in `octavo.bench.workloads`; the work is
done by the `bench_*` modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.bench.workloads import (
    Embeddings,
    Latency,
    Load,
    LoadOptions,
    LongSequence,
    Memory,
    OfflineOptions,
    TraceOptions,
    WorkloadTargets,
)
from octavo.cli import options as opt
from octavo.cli.given import Only, ResolvedFlags, with_settings
from octavo.cli.remote import URL_VARIABLE, ApiKey, address_of, is_typed
from octavo.config import MEASURED, StartOptions

# While a speed is measured nothing is guessed; offline, prompts are not held back for running answers either.
PLAIN = StartOptions(pace=True, speculate="off")
OFFLINE = StartOptions(pace=False, speculate="off", kv_ready_bytes=2**30)
LONG = StartOptions(pace=True, speculate="off", kv_memory_bytes=64 << 20)
CALIBRATING = StartOptions(pace=True, speculate="off", kv_ready_bytes=2**30)
HELD = ("weights", "packed_cache", "kv")
CALIBRATED = ("packed_cache", *MEASURED)
COMPUTED = ("backend", "device", "max_seqs", "step_tokens", "threads")

bench_app = typer.Typer(help="Measure this machine, or a server.", no_args_is_help=True)


@bench_app.command()
@with_settings
def offline(
    model: opt.Model = None,
    file: opt.File = None,
    as_json: opt.AsJson = False,
    *,
    prompts: OfflineOptions,
    engine: Annotated[StartOptions, Only(*HELD, *COMPUTED, "attention", "kv_memory_bytes", "pace")] = OFFLINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure how fast this machine computes prompts and answers, without HTTP."""
    from octavo.bench.offline import workloads_of
    from octavo.cli.bench import run

    run(opt.named(model or resolved.model, file), engine, workloads_of(prompts), as_json=as_json)


@bench_app.command()
@with_settings
def latency(
    model: opt.Model = None,
    file: opt.File = None,
    as_json: opt.AsJson = False,
    *,
    scenario: Latency,
    engine: Annotated[StartOptions, Only(*HELD, *COMPUTED, "attention", "kv_memory_bytes")] = PLAIN,
    resolved: ResolvedFlags,
) -> None:
    """Measure what running answers notice of a long prompt, computed in chunks or in one step."""
    from octavo.cli.bench import run_latency

    run_latency(opt.named(model or resolved.model, file), engine, scenario, as_json=as_json)


@bench_app.command()
@with_settings
def long(
    model: opt.Model = None,
    file: opt.File = None,
    as_json: opt.AsJson = False,
    *,
    sequence: LongSequence,
    engine: Annotated[StartOptions, Only(*HELD, *COMPUTED, "kv_memory_bytes", "disk_size_bytes")] = LONG,
    resolved: ResolvedFlags,
) -> None:
    """Measure a sequence larger than the KV memory: most of it is on disk, and attention reads it there."""
    from octavo.cli.bench_long import run

    run(opt.named(model or resolved.model, file), engine, sequence, as_json=as_json)


@bench_app.command()
@with_settings
def serve(
    given: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", envvar=URL_VARIABLE, help="Such as http://127.0.0.1:8000/v1.")
    ],
    api_key: ApiKey = "",
    as_json: opt.AsJson = False,
    *,
    options: LoadOptions,
    load: Load,
    played: TraceOptions,
    targets: WorkloadTargets,
    resolved: ResolvedFlags,
) -> None:
    """Load any OpenAI-compatible endpoint; report latencies, speed, good answers and errors."""
    from octavo.bench.endpoint import Endpoint
    from octavo.bench.traces import read_trace, scaled
    from octavo.cli.bench_serve import check_trace, run, run_trace

    # The variable names a server, with /v1 or without; what is typed is any endpoint, taken as it stands.
    url = url if is_typed(given, "url") else address_of(url, "/v1")
    endpoint = Endpoint(url, options.model or "", api_key, options.timeout_s, options.ignore_eos)
    if played.trace is not None:
        check_trace(resolved.origins, options)
        trace = scaled(read_trace(played.trace), rate=played.speed, seconds=played.seconds)
        run_trace(endpoint, trace, load, targets, played.plan, as_json=as_json)
        return
    at_once = opt.numbers(options.concurrency, "--concurrency")
    run(endpoint, load, at_once, options, targets, as_json=as_json)


@bench_app.command()
@with_settings
def quality(
    model: opt.Model = None,
    file: opt.File = None,
    weights: Annotated[
        str, typer.Option(metavar="KIND,KIND", help="Ways to hold weights that are measured against f32.")
    ] = "f32,auto,int8",
    kv: Annotated[
        str, typer.Option(metavar="KIND,KIND", help="Ways to hold K and V, each with all weights.")
    ] = "f32",
    base: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model whose f32 is the measure. Default: MODEL itself.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A text in UTF-8. Default: the language topics that ship with Python.",
            show_default=False,
        ),
    ] = None,
    chunks: Annotated[
        int, typer.Option(metavar="N", help="Windows of 512 tokens; 0: all of the text.", min=0)
    ] = 16,
    write_text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the text that is measured there, and leave.", show_default=False
        ),
    ] = None,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only("threads")] = PLAIN,
    resolved: ResolvedFlags,
) -> None:
    """Measure what each way to hold weights, K and V costs in quality, against float32."""
    from octavo.cli.bench_quality import run, save_text

    if write_text is not None:
        save_text(text, write_text)
        return
    kinds, kvs = weights.split(","), kv.split(",")
    run(
        opt.named(model or resolved.model, file),
        base,
        kinds,
        kvs,
        text,
        chunks,
        engine.threads,
        as_json=as_json,
    )


@bench_app.command()
@with_settings
def kernels(
    only: Annotated[
        str, typer.Option(metavar="TEXT", help="Only kernels whose name contains this.", show_default=False)
    ] = "",
    paging: Annotated[
        bool,
        typer.Option("--paging", help="Attention over scattered blocks beside one run, and nothing else."),
    ] = False,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for each kernel.", min=0.01, max=3600)
    ] = 0.3,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cpu, or a GPU's kernels: cuda, cuda:1.")
    ] = "cpu",
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only("threads")] = PLAIN,
) -> None:
    """Measure each kernel beside the machine's own limits."""
    from octavo.cli.bench_kernels import run, run_on_device, run_paging

    if device != "cpu":
        run_on_device(device, as_json=as_json)
    elif paging:
        run_paging(seconds, engine.threads, as_json=as_json)
    else:
        run(only, seconds, engine.threads, as_json=as_json)


@bench_app.command()
@with_settings
def memory(
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Requests, as JSON lines {"prompt": n, "output": n, "arrival": s}, or another trace '
            "(see `bench serve`). Default: two synthetic sets.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Requests of each set. Default: 240 and 1,600; of a file all.",
            min=1,
            max=100_000,
            show_default=False,
        ),
    ] = None,
    beams: Annotated[
        bool, typer.Option("--beams", help="Measure sharing among beams, too: takes minutes.")
    ] = False,
    as_json: opt.AsJson = False,
    *,
    settings: Memory,
) -> None:
    """Show what KV memory is wasted by reserving and in blocks, and what sharing saves."""
    from octavo.cli.bench_memory import run

    run(settings, trace, requests, beams=beams, as_json=as_json)


@bench_app.command()
@with_settings
def calibrate(
    model: opt.Model = None,
    file: opt.File = None,
    seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to load a server of one's own.", min=10, max=3600),
    ] = 120.0,
    recording: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Fit what `serve --record` wrote, and start no server.", show_default=False
        ),
    ] = None,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only(*CALIBRATED)] = CALIBRATING,
    resolved: ResolvedFlags,
) -> None:
    """Learn what a server's steps take here, so that `octavo plan` can tell what it would do."""
    from octavo.cli.plan import run_calibrate

    run_calibrate(opt.named(model or resolved.model, file), engine, seconds, recording, as_json=as_json)


@bench_app.command()
@with_settings
def embeddings(
    model: opt.Model = None,
    file: opt.File = None,
    write_texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the texts there as JSON lines, and leave.", show_default=False
        ),
    ] = None,
    as_json: opt.AsJson = False,
    *,
    wanted: Embeddings,
    engine: Annotated[StartOptions, Only(*HELD, *COMPUTED)] = OFFLINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure how many texts become embeddings in a second."""
    from octavo.cli import bench_embeddings

    if write_texts is not None:
        bench_embeddings.write_texts(write_texts, wanted.texts, wanted.words)
        return
    bench_embeddings.run(opt.named(model or resolved.model, file), engine, wanted, as_json=as_json)
