"""`octavo bench offline` and `octavo bench latency`: tables for a person, or JSON lines for a program."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.table import Table

from octavo.api.llm import LLM
from octavo.bench import latency
from octavo.bench.offline import Report, Workload, measure, warm_up
from octavo.bench.workloads import WORDS, Latency
from octavo.cli.tables import print_all, print_json, table
from octavo.cli.terminal import look_at_machine, phases, write
from octavo.config import StartOptions
from octavo.serving.client import EngineClient
from octavo.serving.start import StartedEngine, build_engine, client_of, engine_over
from octavo.units import format_bytes

_ROWS: tuple[tuple[str, Callable[[Report], str]], ...] = (
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
CHUNKED, WHOLE = "chunked, paced", "in one step"
WHOLE_STEP_TOKENS = 4096


def run(model: str | None, options: StartOptions, workloads: Sequence[Workload], *, as_json: bool) -> None:
    """Run every workload in turn on one engine and print what was measured."""
    look_at_machine()
    with phases() as tell:
        llm = LLM(model, options, tell)
        try:
            resolved = resolved_settings(llm.started, options)
            print_json(resolved, under="engine") if as_json else write(_in_words(resolved))
            llm.started.runner.wait_ready()
            reports = _measure_all(llm, workloads, tell, as_json=as_json)
        finally:
            llm.close()
    if not as_json:
        print_all(table_of(reports))


def resolved_settings(started: StartedEngine, options: StartOptions) -> dict[str, str | int]:
    """What the engine came to: what figures must be told with. Memory is in bytes."""
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
        "threads": look_at_machine().threads,
        "step_tokens": options.step_tokens,
        "pace": started.engine.scheduler.config.pace,
        "overlap": started.engine.depth,
    }


def _in_words(resolved: Mapping[str, str | int]) -> str:
    """The same for a person: bytes with their units."""
    told = [
        f"{name.removesuffix('_bytes').replace('_', ' ')}"
        f" {format_bytes(value) if 'bytes' in name and not isinstance(value, str) else value}"
        for name, value in resolved.items()
    ]
    return ", ".join(told) + "\n"


def _measure_all(
    llm: LLM, workloads: Sequence[Workload], tell: Callable[[str], None], *, as_json: bool
) -> list[Report]:
    warm_up(llm)
    reports = []
    for index, workload in enumerate(workloads):
        tell(f"{in_words(workload)} ({index + 1} of {len(workloads)}) ...")
        report = measure(llm, workload)
        reports.append(report)
        if as_json:
            print_json(report)
    return reports


def in_words(workload: Workload) -> str:
    """ "independent prompts, 8 at once"."""
    return f"{WORDS[workload.name]} prompts, {workload.concurrency} at once"


def table_of(reports: Sequence[Report]) -> Table:
    """A column for each report: what was measured reads downwards, and fits a narrow terminal."""
    heads = [in_words(report.workload).replace(" prompts, ", "\n") for report in reports]
    rows = [(name, *map(value, reports)) for name, value in _ROWS]
    return table("octavo bench offline; times p50 / p95", ("", *heads), rows)


def run_latency(model: str | None, options: StartOptions, scenario: Latency, *, as_json: bool) -> None:
    """Measure `options` and, in turns, the same with whole prompts in one step; print medians and ratios."""
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
    """Runs by configuration, measured in turns."""
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
    """An engine for each configuration, over weights that are loaded once."""
    look_at_machine()
    first, *others = configurations.items()
    with phases() as tell:
        started = build_engine(model, first[1], tell)
    clients = {first[0]: client_of(started, first[1])}
    try:
        for name, options in others:
            clients[name] = client_of(engine_over(started.loaded, started.backend, options), options)
        yield dict(clients)
    finally:
        for client in clients.values():
            client.close()


def latency_table(summaries: Sequence[latency.Summary], scenario: Latency) -> Table:
    """A row for each configuration."""
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
