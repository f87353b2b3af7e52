"""The commands of `octavo bench`; the `bench*` modules implement them, and `octavo.bench.workloads` describes
their workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.bench.workloads import (
    Embeddings,
    Latency,
    LoadOptions,
    LoadProfile,
    LongSequence,
    Memory,
    OfflineOptions,
    TraceOptions,
    WorkloadTargets,
)
from octavo.cli import options as opt
from octavo.cli.flags import Only, ResolvedFlags, with_settings
from octavo.cli.remote import URL_VARIABLE, ApiKey, address_of, is_typed
from octavo.config import MEASURED, StartOptions

# Benchmarks run without speculation; offline, also without pacing.
LATENCY_ENGINE = StartOptions(pace=True, speculate="off")
OFFLINE_ENGINE = StartOptions(pace=False, speculate="off", kv_ready_bytes=2**30)
LONG_ENGINE = StartOptions(pace=True, speculate="off", kv_memory_bytes=64 << 20)
CALIBRATION_ENGINE = StartOptions(pace=True, speculate="off", kv_ready_bytes=2**30)
STORAGE_SETTINGS = ("weights", "packed_cache", "kv")
COMPUTE_SETTINGS = ("backend", "device", "max_seqs", "step_tokens", "threads")
CALIBRATION_SETTINGS = ("packed_cache", *MEASURED)
_BENCH_SETTINGS = (*STORAGE_SETTINGS, *COMPUTE_SETTINGS)

bench_app = typer.Typer(help="Measure this machine, or a server.", no_args_is_help=True)


@bench_app.command()
@with_settings
def offline(
    model: opt.Model = None,
    file: opt.File = None,
    as_json: opt.AsJson = False,
    *,
    prompts: OfflineOptions,
    engine: Annotated[
        StartOptions, Only(*_BENCH_SETTINGS, "attention", "kv_memory_bytes", "pace")
    ] = OFFLINE_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure how fast this machine computes prompts and answers, without HTTP."""
    from octavo.bench.offline import workloads_of
    from octavo.cli.bench import run_offline

    named = opt.with_file(model or resolved.model, file)
    run_offline(named, engine, workloads_of(prompts), as_json=as_json)


@bench_app.command()
@with_settings
def latency(
    model: opt.Model = None,
    file: opt.File = None,
    as_json: opt.AsJson = False,
    *,
    scenario: Latency,
    engine: Annotated[StartOptions, Only(*_BENCH_SETTINGS, "attention", "kv_memory_bytes")] = LATENCY_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure how a long prompt delays running answers, when computed in chunks or in one step."""
    from octavo.cli.bench import run_latency

    run_latency(opt.with_file(model or resolved.model, file), engine, scenario, as_json=as_json)


@bench_app.command()
@with_settings
def long(
    model: opt.Model = None,
    file: opt.File = None,
    as_json: opt.AsJson = False,
    *,
    sequence: LongSequence,
    engine: Annotated[
        StartOptions, Only(*_BENCH_SETTINGS, "kv_memory_bytes", "disk_size_bytes")
    ] = LONG_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure a sequence larger than the KV memory: attention reads most of it from disk."""
    from octavo.cli.bench import run_long

    run_long(opt.with_file(model or resolved.model, file), engine, sequence, as_json=as_json)


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
    load: LoadProfile,
    played: TraceOptions,
    targets: WorkloadTargets,
    resolved: ResolvedFlags,
) -> None:
    """Load an OpenAI-compatible endpoint; report latencies, throughput, goodput and errors."""
    from octavo.bench.endpoint import Endpoint
    from octavo.bench.traces import read_trace, scaled
    from octavo.cli.bench_serve import check_trace, run, run_trace

    # OCTAVO_URL names an Octavo server, with or without /v1; a typed URL is used unchanged.
    url = url if is_typed(given, "url") else address_of(url, "/v1")
    endpoint = Endpoint(url, options.model or "", api_key, options.timeout_s, options.ignore_eos)
    if played.trace is not None:
        check_trace(resolved.origins, options)
        trace = scaled(read_trace(played.trace), rate=played.speed, seconds=played.seconds)
        run_trace(endpoint, trace, load, targets, played.plan, as_json=as_json)
        return
    concurrencies = opt.parse_numbers(options.concurrency, "--concurrency")
    run(endpoint, load, concurrencies, options, targets, as_json=as_json)


@bench_app.command()
@with_settings
def quality(
    model: opt.Model = None,
    file: opt.File = None,
    weights: Annotated[
        str, typer.Option(metavar="KIND,KIND", help="Types of weights to compare with f32.")
    ] = "f32,auto,int8",
    kv: Annotated[
        str, typer.Option(metavar="KIND,KIND", help="Types of K and V, each with every type of weights.")
    ] = "f32",
    base: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model whose f32 is the reference. Default: MODEL itself.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A UTF-8 text. Default: the help topics that come with Python.",
            show_default=False,
        ),
    ] = None,
    chunks: Annotated[
        int, typer.Option(metavar="N", help="Windows of 512 tokens; 0: the whole text.", min=0)
    ] = 16,
    write_text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the measured text to this file and exit.", show_default=False
        ),
    ] = None,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only("threads")] = LATENCY_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure the loss of quality of each type of weights, K and V, against float32."""
    from octavo.cli.bench_quality import run, save_text

    if write_text is not None:
        save_text(text, write_text)
        return
    kinds, kvs = weights.split(","), kv.split(",")
    run(
        opt.with_file(model or resolved.model, file),
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
        str, typer.Option(metavar="TEXT", help="Only kernels whose names contain this.", show_default=False)
    ] = "",
    paging: Annotated[
        bool,
        typer.Option("--paging", help="Only compare attention over scattered and contiguous blocks."),
    ] = False,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time per kernel.", min=0.01, max=3600)
    ] = 0.3,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cpu, or for a GPU's kernels cuda or cuda:1.")
    ] = "cpu",
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only("threads")] = LATENCY_ENGINE,
) -> None:
    """Measure each kernel, as a share of the machine's limits."""
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
            help="Requests per set. Default: 240 and 1,600; all of a file.",
            min=1,
            max=100_000,
            show_default=False,
        ),
    ] = None,
    beams: Annotated[
        bool, typer.Option("--beams", help="Also measure sharing among beams, which takes minutes.")
    ] = False,
    as_json: opt.AsJson = False,
    *,
    settings: Memory,
) -> None:
    """Measure the KV memory that reservations and blocks waste, and that sharing saves."""
    from octavo.cli.bench_memory import run

    run(settings, trace, requests, beams=beams, as_json=as_json)


@bench_app.command()
@with_settings
def calibrate(
    model: opt.Model = None,
    file: opt.File = None,
    seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to load the started server.", min=10, max=3600),
    ] = 120.0,
    recording: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Fit a file of `serve --record` instead of starting a server.",
            show_default=False,
        ),
    ] = None,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only(*CALIBRATION_SETTINGS)] = CALIBRATION_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure how long a server's steps take here, for the predictions of `octavo plan`."""
    from octavo.cli.plan import run_calibrate

    run_calibrate(opt.with_file(model or resolved.model, file), engine, seconds, recording, as_json=as_json)


@bench_app.command()
@with_settings
def embeddings(
    model: opt.Model = None,
    file: opt.File = None,
    write_texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the texts to this file as JSON lines and exit.", show_default=False
        ),
    ] = None,
    as_json: opt.AsJson = False,
    *,
    workload: Embeddings,
    engine: Annotated[StartOptions, Only(*_BENCH_SETTINGS)] = OFFLINE_ENGINE,
    resolved: ResolvedFlags,
) -> None:
    """Measure how many texts are embedded per second."""
    from octavo.cli.bench import run_embeddings, save_texts

    if write_texts is not None:
        save_texts(write_texts, workload.texts, workload.words)
        return
    run_embeddings(opt.with_file(model or resolved.model, file), engine, workload, as_json=as_json)
