"""The benchmarks with an engine in this process: `octavo bench offline`, `latency`, `long` and `embeddings`.
They print tables or JSON lines."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table

from octavo.api.llm import LLM
from octavo.bench import latency, long
from octavo.bench.embeddings import EmbeddingsResult, fixed_texts, measure_embeddings
from octavo.bench.offline import Report, Workload, measure, warm_up
from octavo.bench.workloads import WORDS, Embeddings, Latency, LongSequence
from octavo.cli.terminal import (
    print_all,
    print_json,
    probe_machine,
    running_engine,
    show_progress,
    table,
    write,
)
from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.params import Pooling
from octavo.serving.client import EngineClient
from octavo.serving.start import StartedEngine, build_engine, client_of, engine_over
from octavo.units import format_bytes

_OFFLINE_ROWS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("requests", lambda report: f"{report.workload.num_requests:,}"),
    ("output tok/s", lambda report: f"{report.output_tokens_per_s:.1f}"),
    ("prefill tok/s", lambda report: f"{report.prefill_tokens_per_s:.1f}"),
    ("decode tok/s", lambda report: f"{report.decode_tokens_per_s:.1f}"),
    (
        "first token, ms",
        lambda report: f"{report.first_token_p50_s * 1000:.0f} / {report.first_token_p95_s * 1000:.0f}",
    ),
    (
        "between tokens, ms",
        lambda report: f"{report.between_p50_s * 1000:.1f} / {report.between_p95_s * 1000:.1f}",
    ),
    (
        "planning, ms a step (share)",
        lambda report: (
            f"{1000 * report.plan_seconds / max(1, report.steps):.2f} ({100 * report.plan_share:.1f} %)"
        ),
    ),
    ("cached tokens", lambda report: f"{report.cached_tokens:,}"),
    ("seconds", lambda report: f"{report.seconds:.1f}"),
)
_LATENCY_COLUMNS = (
    "long prompt", "before it", "meanwhile", "meanwhile / before", "longest gap", "its first token",
)  # fmt: skip
_NONE = "-"
_LONG_ROWS: tuple[tuple[str, Callable[[long.LongRun], str]], ...] = (
    ("blocks of the pool", lambda run: f"{run.pool_blocks:,}"),
    ("cold blocks", lambda run: f"{run.cold_blocks:,}"),
    ("prefill tok/s", lambda run: f"{run.prompt_tokens_per_s:,.0f}"),
    ("decode tok/s", lambda run: f"{run.tokens_per_s:.1f}"),
    ("offloaded KV read per token", lambda run: format_bytes(run.bytes_offloaded)),
    (
        "share of the file's read rate",
        lambda run: _NONE if run.share_of_medium is None else f"{run.share_of_medium:.0%}",
    ),
    ("chats: longest gap before, ms", lambda run: _ms(run.chat_gap_before_s)),
    ("chats: longest gap meanwhile, ms", lambda run: _ms(run.chat_gap_beside_s)),
)
CHUNKED, WHOLE = "chunked, paced", "in one step"
WHOLE_STEP_TOKENS = 4096


# -- offline -------------------------------------------------------------------------------------------------


def run_offline(
    model: str | None, options: StartOptions, workloads: Sequence[Workload], *, as_json: bool
) -> None:
    """Run the workloads one after another on one engine and print the results."""
    probe_machine()
    with show_progress() as progress:
        llm = LLM(model, options, progress)
        try:
            resolved = resolved_settings(llm.started, options)
            print_json(resolved, under="engine") if as_json else write(_describe_settings(resolved))
            llm.started.runner.wait_ready()
            reports = _measure_all(llm, workloads, progress, as_json=as_json)
        finally:
            llm.close()
    if not as_json:
        print_all(offline_table(reports))


def resolved_settings(started: StartedEngine, options: StartOptions) -> dict[str, str | int]:
    """The engine's resolved settings, to report with the figures. Memory is in bytes."""
    return {
        "model": started.facts.name,
        "backend": started.backend.name,
        "device": started.backend.device,
        "arithmetic": started.backend.arithmetic_id,
        "weights": options.weights,
        "weight_bytes": started.loaded.model.weights.num_bytes,
        "kv": options.kv,
        "kv_bytes_per_token": started.budget.bytes_per_block // started.budget.block_size,
        "kv_pool_bytes": started.budget.num_bytes,
        "threads": probe_machine().threads,
        "step_tokens": options.step_tokens,
        "pace": started.engine.scheduler.config.pace,
        "overlap": started.engine.depth,
    }


def _describe_settings(resolved: Mapping[str, str | int]) -> str:
    """The settings for people, with units of bytes."""
    parts = [
        f"{name.removesuffix('_bytes').replace('_', ' ')}"
        f" {format_bytes(value) if 'bytes' in name and not isinstance(value, str) else value}"
        for name, value in resolved.items()
    ]
    return ", ".join(parts) + "\n"


def _measure_all(
    llm: LLM, workloads: Sequence[Workload], progress: Callable[[str], None], *, as_json: bool
) -> list[Report]:
    warm_up(llm)
    reports = []
    for index, workload in enumerate(workloads):
        progress(f"{describe_workload(workload)} ({index + 1} of {len(workloads)}) ...")
        report = measure(llm, workload)
        reports.append(report)
        if as_json:
            print_json(report)
    return reports


def describe_workload(workload: Workload) -> str:
    """ "independent prompts, 8 at once"."""
    return f"{WORDS[workload.name]} prompts, {workload.concurrency} at once"


def offline_table(reports: Sequence[Report]) -> Table:
    """A table with a column for each report, which fits a narrow terminal."""
    heads = [describe_workload(report.workload).replace(" prompts, ", "\n") for report in reports]
    rows = [(name, *map(value, reports)) for name, value in _OFFLINE_ROWS]
    return table("octavo bench offline; times p50 / p95", ("", *heads), rows)


# -- latency -------------------------------------------------------------------------------------------------
def run_latency(model: str | None, options: StartOptions, scenario: Latency, *, as_json: bool) -> None:
    """Measure `options` and, alternately, the same with whole prompts in one step; print medians and
    ratios."""
    whole = dataclasses.replace(
        options, step_tokens=max(WHOLE_STEP_TOKENS, scenario.prompt + scenario.streams), pace=False
    )
    with _engines(model, {CHUNKED: options, WHOLE: whole}) as models:
        runs = asyncio.run(_latency_runs(models, scenario, as_json=as_json))
    summaries = [latency.summarise(own) for own in runs.values()]
    if as_json:
        print_json(*summaries, under="summary")
    else:
        print_all(latency_table(summaries, scenario))


async def _latency_runs(
    models: Mapping[str, EngineClient], scenario: Latency, *, as_json: bool
) -> dict[str, list[latency.Run]]:
    """Runs by configuration, measured alternately."""
    for model in models.values():
        await latency.warm_up(model)
    runs: dict[str, list[latency.Run]] = {name: [] for name in models}
    for round_index in range(scenario.rounds):
        for name, model in models.items():
            measured = await latency.measure(model, scenario, name, round_index)
            runs[name].append(measured)
            if as_json:
                print_json(measured, under="run")
    return runs


@contextmanager
def _engines(
    model: str | None, configurations: Mapping[str, StartOptions]
) -> Iterator[dict[str, EngineClient]]:
    """An engine for each configuration, with shared weights."""
    probe_machine()
    first, *others = configurations.items()
    with show_progress() as progress:
        started = build_engine(model, first[1], progress)
    clients = {first[0]: client_of(started, first[1])}
    try:
        for name, options in others:
            clients[name] = client_of(engine_over(started.loaded, started.backend, options), options)
        yield dict(clients)
    finally:
        for client in clients.values():
            client.close()


def latency_table(summaries: Sequence[latency.Summary], scenario: Latency) -> Table:
    """A table with a row for each configuration."""
    title = (
        f"octavo bench latency: {scenario.streams} streams, then a prompt of {scenario.prompt:,} tokens\n"
        f"between tokens: p50 / p95, median of {summaries[0].rounds} rounds"
    )
    rows = [
        (
            summary.configuration,
            f"{summary.before_p50_s * 1000:.1f} / {summary.before_p95_s * 1000:.1f} ms",
            f"{summary.while_p50_s * 1000:.1f} / {summary.while_p95_s * 1000:.1f} ms",
            f"{summary.p50_ratio:.2f} / {summary.p95_ratio:.2f}",
            f"{summary.while_max_s * 1000:.0f} ms",
            f"{summary.first_token_s:.2f} s",
        )
        for summary in summaries
    ]
    return table(title, _LATENCY_COLUMNS, rows)


# -- a sequence larger than the pool -------------------------------------------------------------------------
def run_long(model: str | None, options: StartOptions, sequence: LongSequence, *, as_json: bool) -> None:
    """Measure a sequence that is larger than the pool, and print. Raises ConfigError."""
    probe_machine()
    runs: list[long.LongRun] = []
    with show_progress() as progress:
        for one in long.measure(model, options, sequence, progress):
            runs.append(one)
            if as_json:
                print_json(one, under="run")
    if not as_json:
        print_all(long_table(runs, sequence))


def long_table(runs: list[long.LongRun], sequence: LongSequence) -> Table:
    """A table with a column for each configuration."""
    title = f"a prompt of {sequence.tokens:,} tokens"
    rows = [(name, *(cell(one) for one in runs)) for name, cell in _LONG_ROWS]
    return table(title, ("", *(one.configuration for one in runs)), rows)


def _ms(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds * 1000:.1f}"


# -- embeddings ----------------------------------------------------------------------------------------------
def save_texts(path: Path, count: int, words_max: int) -> None:
    """Write the texts as JSON lines, for another engine's benchmark. Raises ConfigError."""
    lines = [json.dumps({"text": text}) + "\n" for text in fixed_texts(count, words_max)]
    try:
        path.write_text("".join(lines))
    except OSError as error:
        raise ConfigError(f"--write-texts {path} cannot be written: {error}") from None


def run_embeddings(model: str | None, options: StartOptions, workload: Embeddings, *, as_json: bool) -> None:
    """Measure texts per second, and print. Raises ConfigError."""
    texts = fixed_texts(workload.texts, workload.words)
    poolings = [Pooling(name) for name in dict.fromkeys(workload.pooling)]
    uncached = dataclasses.replace(options, prefix_caching=False)
    with running_engine(model, uncached) as llm, show_progress() as progress:
        results = measure_embeddings(llm, texts, poolings, workload.rounds, progress)
    if as_json:
        print_json(*results)
    else:
        print_all(embeddings_table(results))


def embeddings_table(results: Sequence[EmbeddingsResult]) -> Table:
    """A table with a row for each pooling."""
    first = results[0]
    title = (
        f"{first.num_texts:,} texts of {first.num_tokens:,} tokens, the longest "
        f"{first.longest_tokens:,}; medians of {len(first.seconds)} rounds"
    )
    rows = [
        (
            each.pooling,
            f"{each.texts_per_s:,.1f}",
            f"{each.tokens_per_s:,.0f}",
            f"{each.num_texts / max(each.seconds):,.1f}",
            f"{each.num_texts / min(each.seconds):,.1f}",
        )
        for each in results
    ]
    return table(title, ("pooling", "texts/s", "tokens/s", "lowest texts/s", "highest"), rows)
