"""The commands under `octavo bench` and their options; the work is done by the `bench_*` modules beside
this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli import options as opt
from octavo.cli.flags import Only, with_settings
from octavo.cli.remote import URL_VARIABLE, address_of, is_typed
from octavo.config import StartOptions

# While a speed is measured nothing is guessed; offline, prompts are not held back for running answers either.
PLAIN = StartOptions(pace=True, speculate="off")
OFFLINE = StartOptions(pace=False, speculate="off", kv_ready_bytes=2**30)
HELD = ("weights", "packed_cache", "kv")
COMPUTED = ("backend", "device", "max_seqs", "step_tokens", "threads")

bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True)


@bench_app.command()
@with_settings
def offline(
    model: opt.Model = None,
    file: opt.File = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="W1, W2 or W3; repeatable. Default: W1 and W2.", show_default=False),
    ] = None,
    n: Annotated[
        list[int] | None,
        typer.Option(
            "--n",
            help="Requests of each run of W1 (default: twice --conc, at least 4) and W2; repeatable with W1 "
            "alone, once for each --conc.",
            min=1,
            show_default=False,
        ),
    ] = None,
    inp: Annotated[int, typer.Option(help="W1: prompt tokens.", min=1)] = 128,
    out: Annotated[int, typer.Option(help="W1: output tokens.", min=1)] = 128,
    conc: Annotated[
        list[int] | None,
        typer.Option(
            help="Requests in flight; repeatable. Default: W1 1, 8, 32; W3 1, 4.", min=1, show_default=False
        ),
    ] = None,
    prefix: Annotated[int, typer.Option(help="W2: tokens of the shared prefix; 0 skips W2.", min=0)] = 512,
    prompt: Annotated[int, typer.Option(help="W3: prompt tokens.", min=1)] = 7168,
    long_out: Annotated[int, typer.Option(help="W3: output tokens.", min=1)] = 64,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only(*HELD, *COMPUTED, "attention", "kv_memory_bytes", "pace")] = OFFLINE,
) -> None:
    """Run W1 (independent prompts), W2 (a shared prefix) and W3 (a long context) without HTTP."""
    from octavo.bench.offline import chosen
    from octavo.cli.bench import run

    workloads = chosen(
        workload or ("W1", "W2"),
        num_requests=n,
        in_flight=conc,
        w1_tokens=(inp, out),
        w2_prefix=prefix,
        w3_tokens=(prompt, long_out),
    )
    run(opt.named(model, file), engine, workloads, as_json=as_json)


@bench_app.command()
@with_settings
def latency(
    model: opt.Model = None,
    file: opt.File = None,
    streams: Annotated[int, typer.Option(help="Answers that run when the long prompt comes.", min=1)] = 8,
    prompt: Annotated[int, typer.Option(help="Tokens of the long prompt.", min=2)] = 2000,
    before: Annotated[int, typer.Option(help="Tokens of each answer before it comes.", min=16)] = 48,
    rounds: Annotated[int, typer.Option(help="Runs of each configuration, in turns.", min=1)] = 3,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only(*HELD, *COMPUTED, "attention", "kv_memory_bytes")] = PLAIN,
) -> None:
    """Measure what running answers notice of a long prompt, computed in chunks or in one step."""
    from octavo.bench.latency import Scenario
    from octavo.cli.bench import run_latency

    run_latency(
        opt.named(model, file),
        engine,
        Scenario(streams=streams, before=before, prompt=prompt),
        rounds,
        as_json=as_json,
    )


@bench_app.command()
def serve(
    given: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", envvar=URL_VARIABLE, help="Such as http://127.0.0.1:8000/v1.")
    ],
    workload: Annotated[
        str, typer.Option(help="random, shared-prefix, mixed (lengths) or multi-turn (chats).")
    ] = "random",
    concurrency: Annotated[str, typer.Option(help="Requests in flight, one run for each.")] = "1,8,32",
    rate: Annotated[
        float | None,
        typer.Option(help="Poisson arrivals for each second, in place of --concurrency.", min=0.001),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", help="Requests of each run. Default: twice those in flight, 4 to 64.", min=1),
    ] = None,
    inp: Annotated[int, typer.Option(help="Prompt tokens; mixed: 1/4 to 4 times that.", min=1)] = 128,
    out: Annotated[int, typer.Option(help="Output tokens; mixed: 1/4 to 4 times that.", min=1)] = 128,
    prefix: Annotated[int, typer.Option(help="shared-prefix: tokens that all share.", min=1)] = 512,
    turns: Annotated[int, typer.Option(help="multi-turn: questions of a chat.", min=1)] = 4,
    ttft_ms: Annotated[float, typer.Option(help="Goodput: time to first token at most.")] = 1000.0,
    itl_ms: Annotated[float, typer.Option(help="Goodput: mean time between tokens at most.")] = 100.0,
    model: Annotated[
        str | None, typer.Option(help="The model's name. Default: the first that the endpoint lists.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OCTAVO_API_KEY", help="Sent as the bearer.", show_default=False)
    ] = None,
    vocab: Annotated[int, typer.Option(help="Token ids are drawn from 100 up to this.", min=101)] = 30_000,
    seed: Annotated[int, typer.Option(help="The same seed, the same prompts and arrivals.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds without a byte before a failure.", min=0.1)] = 600,
    ignore_eos: Annotated[
        bool, typer.Option(help="Ask for answers of full length; off for endpoints that refuse the field.")
    ] = True,
    as_json: opt.AsJson = False,
) -> None:
    """Load any OpenAI-compatible endpoint and report latencies, speed, goodput and errors."""
    from octavo.bench.endpoint import Endpoint
    from octavo.bench.load import Load, Targets
    from octavo.cli.bench_serve import run

    # The variable names a server, with /v1 or without; what is typed is any endpoint, taken as it stands.
    url = url if is_typed(given, "url") else address_of(url, "/v1")
    endpoint = Endpoint(url, model or "", api_key or "", timeout, ignore_eos)
    load = Load(workload, inp, out, prefix, turns, vocab, seed)
    in_flight = opt.numbers(concurrency, "--concurrency")
    run(endpoint, load, in_flight, rate, n, Targets(ttft_ms, itl_ms), as_json=as_json)


@bench_app.command()
@with_settings
def quality(
    model: opt.Model = None,
    file: opt.File = None,
    weights: Annotated[
        str, typer.Option(help="How weights are held: choices to measure against f32.")
    ] = "f32,auto,int8",
    kv: Annotated[str, typer.Option(help="How K and V are held: likewise, each with all weights.")] = "f32",
    base: Annotated[
        str | None,
        typer.Option(help="The model whose f32 is the measure. Default: MODEL itself.", show_default=False),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="A text in UTF-8. Default: the language topics that ship with Python."),
    ] = None,
    chunks: Annotated[int, typer.Option(help="Windows of 512 tokens; 0: all of the text.", min=0)] = 16,
    write_text: Annotated[
        Path | None, typer.Option(help="Write the text that is measured to this file, and leave.")
    ] = None,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only("threads")] = PLAIN,
) -> None:
    """Measure perplexity and the divergence from float32 of every way to hold weights and KV."""
    from octavo.cli.bench_quality import run, save_text

    if write_text is not None:
        save_text(text, write_text)
        return
    run(
        opt.named(model, file),
        base,
        weights.split(","),
        kv.split(","),
        text,
        chunks,
        engine.threads,
        as_json=as_json,
    )


@bench_app.command()
@with_settings
def kernels(
    only: Annotated[str, typer.Option(help="Only kernels whose name contains this.")] = "",
    paging: Annotated[
        bool, typer.Option("--paging", help="Scattered blocks against one contiguous run, and nothing else.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Time for each kernel.", min=0.01)] = 0.3,
    device: Annotated[str, typer.Option(help="cpu, or a GPU's kernels: cuda, cuda:1.")] = "cpu",
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
def memory(
    trace: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines {"prompt": n, "output": n, "arrival": s}. Default: two synthetic ones.'
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Requests of each trace. Default: 240 and 1,600, or all.", min=1, max=100_000),
    ] = None,
    pool_tokens: Annotated[
        int, typer.Option(help="KV slots of all policies: by default those of the paper's A100.", min=1)
    ] = 15_744,
    block_size: Annotated[int, typer.Option(help="Tokens in a block.", min=1, max=1024)] = 16,
    max_length: Annotated[int, typer.Option(help="Tokens of a request at most.", min=2)] = 2048,
    step_ms: Annotated[float, typer.Option(help="Virtual time of a step, for arrivals.", min=0.001)] = 30.0,
    seed: Annotated[int, typer.Option(help="The same seed, the same figures.")] = 0,
    beams: Annotated[
        bool, typer.Option("--beams", help="Sharing among beams too, searched by the default model: minutes.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Show what KV memory is wasted under policies that reserve, and in blocks, and what sharing saves."""
    from octavo.bench.memory import Settings
    from octavo.cli.bench_memory import run

    settings = Settings(pool_tokens, block_size, max_length, step_ms / 1000, seed)
    run(settings, trace, requests, beams=beams, as_json=as_json)


@bench_app.command()
@with_settings
def embeddings(
    model: opt.Model = None,
    file: opt.File = None,
    texts: Annotated[int, typer.Option(help="Texts of a round.", min=1, max=100_000)] = 256,
    words: Annotated[int, typer.Option(help="Words of a text at most.", min=4, max=100_000)] = 300,
    pooling: Annotated[
        list[str] | None,
        typer.Option(help="last or mean; repeatable. Default: both.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds that are measured, both in each.", min=1)] = 5,
    write_texts: Annotated[
        Path | None, typer.Option(help="Write the texts as JSON lines to this file, and leave.")
    ] = None,
    as_json: opt.AsJson = False,
    *,
    engine: Annotated[StartOptions, Only(*HELD, *COMPUTED)] = OFFLINE,
) -> None:
    """Measure how many texts become embeddings in a second."""
    from octavo.bench.embeddings import fixed_texts
    from octavo.cli import bench_embeddings

    if write_texts is not None:
        bench_embeddings.write_texts(write_texts, texts, words)
        return
    given = fixed_texts(texts, words)
    bench_embeddings.run(
        opt.named(model, file), engine, given, pooling or ("last", "mean"), rounds, as_json=as_json
    )
