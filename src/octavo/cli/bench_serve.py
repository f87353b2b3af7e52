"""`octavo bench serve`: load an endpoint, and report as a table or JSON lines."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from octavo.bench.calibration import read as read_calibration
from octavo.bench.endpoint import Client, Endpoint
from octavo.bench.load import Arrival, LoadReport, Quantiles, apply, play
from octavo.bench.load_processes import apply_from_processes
from octavo.bench.planner import CapacityPlanner, Traffic
from octavo.bench.traces import TrafficTrace
from octavo.bench.workloads import LoadOptions, LoadProfile, WorkloadTargets
from octavo.cli.flags import SettingOrigin
from octavo.cli.terminal import print_all, print_json, show_progress, table
from octavo.errors import ConfigError, RequestFailed

_ROWS: tuple[tuple[str, Callable[[LoadReport], str]], ...] = (
    ("complete answers", lambda report: f"{report.completed} of {report.requests}"),
    ("errors", lambda report: str(sum(report.errors.values()))),
    ("output tokens/s", lambda report: f"{report.output_tokens_per_s:.1f}"),
    ("first token", lambda report: _percentiles(report.ttft_ms)),
    ("between tokens", lambda report: _percentiles(report.itl_ms)),
    ("end to end", lambda report: _percentiles(report.e2e_ms)),
    ("good answers", lambda report: str(report.good)),
    ("goodput, answers/s", lambda report: f"{report.goodput_per_s:.2f}"),
    ("seconds", lambda report: f"{report.seconds:.1f}"),
)
_REQUESTS_MIN, _REQUESTS_MAX = 4, 64
_NOT_WITH_TRACE = {"concurrency", "rate", "n", "kind", "prompt", "output", "prefix", "turns"}


def run(
    endpoint: Endpoint,
    load: LoadProfile,
    concurrencies: Sequence[int],
    options: LoadOptions,
    targets: WorkloadTargets,
    *,
    as_json: bool,
) -> None:
    """One run for each concurrency, or one at a rate. Raises RequestFailed if no answer was complete."""
    if options.rate is None:
        arrivals = [Arrival(count) for count in concurrencies]
    else:
        arrivals = [Arrival(rate_per_s=options.rate)]
    with show_progress() as progress:
        reports = asyncio.run(_run_all(endpoint, load, arrivals, options, targets, progress, as_json))
    _show(reports, as_json=as_json)


def run_trace(
    endpoint: Endpoint,
    trace: TrafficTrace,
    load: LoadProfile,
    targets: WorkloadTargets,
    plan: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """One run of a trace's requests, compared with the prediction of the calibration in `plan`. Raises as
    `run`."""
    expected = [] if plan is None else [predict(plan, trace, targets)]

    async def play_it(progress: Callable[[str], None]) -> LoadReport:
        async with Client(endpoint) as client:
            return await play(client, trace, load, targets, lambda text: progress(f"{trace.name}: {text}"))

    with show_progress() as progress:
        report = asyncio.run(play_it(progress))
    if as_json:
        for one in (*expected, report):
            print_json(one)
    _show([report, *expected], as_json=as_json)


def predict(path: Path, trace: TrafficTrace, targets: WorkloadTargets) -> LoadReport:
    """The report of one simulated run. Raises ConfigError if the file is not a calibration."""
    calibration = read_calibration(path)
    if calibration is None:
        raise ConfigError(
            f"--plan {path} is not a calibration of this version; allowed: a file of `octavo bench calibrate`"
        )
    planner = CapacityPlanner(calibration, targets, calibration.setup)
    return dataclasses.replace(planner.run_draw(Traffic(trace)).report, arrival="predicted")


def check_trace(origins: Sequence[SettingOrigin], options: LoadOptions) -> None:
    """Raise ConfigError for options that a trace determines."""
    wrong = [origin.source for origin in origins if origin.setting.field in _NOT_WITH_TRACE]
    wrong += ["--processes"] * (options.processes > 1)
    if wrong:
        raise ConfigError(
            f"--trace and {wrong[0]} are both given; allowed: one of them (a trace determines the requests "
            "and their times, and one process sends them)"
        )


def _show(reports: Sequence[LoadReport], *, as_json: bool) -> None:
    """Print the table; JSON was printed during the runs. Raises RequestFailed if no answer was complete."""
    if not as_json:
        print_all(table_of(reports), *(f"- {line}" for line in notes_of(reports)))
    if not any(report.completed for report in reports):
        errors = "; ".join(f"{kind}: {detail}" for kind, detail in reports[0].error_details.items())
        raise RequestFailed(f"no answer was complete: {errors}")


async def _run_all(
    endpoint: Endpoint,
    load: LoadProfile,
    arrivals: Sequence[Arrival],
    options: LoadOptions,
    targets: WorkloadTargets,
    progress: Callable[[str], None],
    as_json: bool,
) -> list[LoadReport]:
    reports: list[LoadReport] = []
    async with Client(endpoint) as client:
        for arrival in arrivals:
            num_requests = options.n or requests_for(arrival)

            def report_progress(text: str, name: str = f"{load.kind}, {arrival.in_words()}") -> None:
                progress(f"{name}: {text}")

            # A seed per run: the endpoint's cache may hold the prompts of earlier runs.
            own = dataclasses.replace(load, seed=load.seed + len(reports))
            if options.processes == 1:
                report = await apply(client, own, num_requests, arrival, targets, report_progress)
            else:
                named = dataclasses.replace(endpoint, model=client.model)
                report = await apply_from_processes(
                    named, own, num_requests, arrival, targets, options.processes, report_progress
                )
            reports.append(report)
            if as_json:
                print_json(report)
    return reports


def requests_for(arrival: Arrival) -> int:
    """Number of requests for a steady state: twice those in flight, within bounds; at a rate, the maximum."""
    if arrival.rate_per_s is not None:
        return _REQUESTS_MAX
    return max(arrival.concurrency, min(_REQUESTS_MAX, max(_REQUESTS_MIN, 2 * arrival.concurrency)))


def table_of(reports: Sequence[LoadReport]) -> Table:
    """A table with a column for each report, which fits a narrow terminal."""
    targets = reports[0].targets
    return table(
        f"octavo bench serve: {reports[0].workload}; times in ms, p50 / p95 / p99\n"
        f"good: first token within {targets.ttft_ms:g} ms, a mean of {targets.itl_ms:g} ms between tokens",
        ("", *(report.arrival for report in reports)),
        [(name, *map(value, reports)) for name, value in _ROWS],
    )


def notes_of(reports: Sequence[LoadReport]) -> list[str]:
    """Errors by kind, and reasons why figures are hard to compare."""
    lines = []
    for report in reports:
        for kind, count in report.errors.items():
            lines.append(f"{report.arrival}: {count} x {kind}: {report.error_details[kind]}")
        if report.short:
            lines.append(f"{report.arrival}: {report.short} answers were shorter than requested")
        if report.tokens_per_chunk > 1.05:
            lines.append(
                f"{report.arrival}: a chunk has {report.tokens_per_chunk:.2f} tokens on average, so the time "
                "between tokens is that between chunks"
            )
    return lines


def _percentiles(spread: Quantiles) -> str:
    return f"{spread.p50:.0f} / {spread.p95:.0f} / {spread.p99:.0f}"
