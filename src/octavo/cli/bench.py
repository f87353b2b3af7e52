"""`octavo bench offline`: a table for a person, or JSON lines for a program."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from octavo.bench.offline import Report, Workload, measure, warm_up
from octavo.cli.terminal import running_engine, write
from octavo.config import StartOptions
from octavo.engine.outputs import ServedModel

_COLUMNS = (
    "workload", "in flight", "requests", "output tok/s", "all tok/s", "prefill tok/s",
    "first token p50 / p95", "between tokens p50 / p95", "cached", "seconds",
)  # fmt: skip


def run(model: str | None, options: StartOptions, workloads: Sequence[Workload], *, as_json: bool) -> None:
    """Run every workload in turn on one engine and print what was measured."""
    with running_engine(model, options) as llm:
        reports = asyncio.run(_measure_all(llm, workloads, as_json=as_json))
    if not as_json:
        Console(highlight=False).print(table_of(reports))


async def _measure_all(llm: ServedModel, workloads: Sequence[Workload], *, as_json: bool) -> list[Report]:
    await warm_up(llm)
    reports = []
    for workload in workloads:
        report = await measure(llm, workload)
        reports.append(report)
        if as_json:
            write(json_line(report) + "\n")
    return reports


def json_line(report: Report) -> str:
    """One report as one line of JSON."""
    return json.dumps(dataclasses.asdict(report))


def table_of(reports: Sequence[Report]) -> Table:
    """All reports, a row each."""
    table = Table(title="octavo bench offline")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "workload" else "right")
    for report in reports:
        table.add_row(
            report.workload.name,
            str(report.workload.concurrency),
            str(report.workload.num_requests),
            f"{report.output_tokens_per_s:.1f}",
            f"{report.tokens_per_s:.1f}",
            f"{report.prefill_tokens_per_s:.1f}",
            f"{report.first_token_p50_s:.3f} / {report.first_token_p95_s:.3f} s",
            f"{report.between_p50_s * 1000:.1f} / {report.between_p95_s * 1000:.1f} ms",
            f"{report.cached_tokens:,}",
            f"{report.seconds:.1f}",
        )
    return table
