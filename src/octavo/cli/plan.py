"""`octavo bench calibrate` and `octavo plan`: measure a server once, and ask what it would do."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.table import Table

from octavo.bench import calibration as calibrations
from octavo.bench.calibrate import calibrate
from octavo.bench.calibration import Calibration
from octavo.bench.forecast import Forecast, HighestLoad, Range
from octavo.bench.planner import Balancer, Planner, Server, Traffic
from octavo.bench.replicas import Routing, balancer_of
from octavo.bench.traces import RequestTrace, TraceRequest, read_trace, scaled
from octavo.bench.workloads import PlanOptions, WorkloadTargets
from octavo.cli.remote import ask, require_operator
from octavo.cli.tables import print_all, print_json, table
from octavo.cli.terminal import phases, running_engine
from octavo.cli.what_if import changed
from octavo.config import StartOptions
from octavo.engine.scheduler_setup import SchedulerSetup
from octavo.errors import ConfigError, RequestFailed
from octavo.memory.quota import TenantPolicy
from octavo.model.hub.paths import cache_folder
from octavo.server.logs import configure_logging
from octavo.server.run import open_listener
from octavo.server.run import serve as run_server
from octavo.server.settings import ServerSettings
from octavo.serving.calibration_key import calibration_key

FOLDER = "calibrations"
RATE_MIN = 0.05

Column = tuple[str, Forecast, HighestLoad]


def run_calibrate(
    model: str | None,
    options: StartOptions,
    seconds: float,
    recording: Path | None,
    *,
    as_json: bool,
) -> None:
    """Measure, store, and say how far the model of the machine is off. Raises ConfigError, RequestFailed."""
    made = make(model, options, seconds, recording)
    path = path_of(calibration_key(model, options))
    calibrations.write(made, path)
    if as_json:
        summary = {
            "file": str(path),
            "steps": made.num_steps,
            "error_p50": made.error_p50,
            "error_p95": made.error_p95,
            "rows_max": made.rows_max,
            "http_ms": made.http_s * 1000,
        }
        print_json(summary)
        return
    print_all(
        f"{made.num_steps:,} steps of up to {made.rows_max} sequences; of those that were held out, half are "
        f"predicted within {made.error_p50:.1%}, 95 % within {made.error_p95:.1%}",
        f"stored in {path}",
    )


def make(
    model: str | None, options: StartOptions, seconds: float, recording: Path | None = None
) -> Calibration:
    """From a recording that is there, or from a server that is started and loaded."""

    def serve(own: StartOptions, port: int) -> None:
        settings = ServerSettings(port=port, log_level="warning")
        configure_logging(settings.log_level, settings.log_format)
        with open_listener(settings) as listener, running_engine(model, own) as llm:
            run_server(llm, listener, settings, lambda url: None)

    with phases() as tell:
        if recording is not None:
            tell(f"reading {recording}")
            return calibrations.fit(recording)
        return calibrate(serve, options, seconds, tell)


def path_of(key: str) -> Path:
    """Where the calibration of a key is kept."""
    return cache_folder() / FOLDER / f"{key}.json"


def stored(model: str | None, options: StartOptions, seconds: float) -> Calibration:
    """Of this model and these settings on this machine, with their target; it is made where there is none."""
    path = path_of(calibration_key(model, options))
    if (calibration := calibrations.read(path)) is None:
        calibration = make(model, options, seconds)
        calibrations.write(calibration, path)
    config = dataclasses.replace(calibration.setup.config, target_itl_s=options.target_itl_s)
    return replace(calibration, setup=replace(calibration.setup, config=config))


class _Key(msgspec.Struct):
    key: str
    command: str


class _Counts(msgspec.Struct):
    total: int


class _Target(msgspec.Struct):
    seconds: float


class _Server(msgspec.Struct):
    """What a planner reads of /v1/kv."""

    calibration: _Key
    counts: _Counts
    capacity: int
    tenants: list[dict[str, object]]
    target: _Target | None = None


def of_server(url: str, api_key: str) -> Calibration:
    """Of a running server: its pool, target and tenants as they are now, over the calibration that is stored
    for its model, settings and machine. Raises OctavoError where it does not answer, and ConfigError where
    there is no calibration: its steps can only be measured under load."""
    shown = require_operator(ask(url, api_key, "GET", "/v1/kv"))
    try:
        server = msgspec.convert(shown, _Server)
        named = [row for row in server.tenants if "weight" in row]  # the others are not in its file any more
        tenants = tuple(msgspec.convert(row, TenantPolicy) for row in named)
    except msgspec.ValidationError as error:
        raise RequestFailed(f"{url}: /v1/kv says not what it must: {error}; is it this version?") from None
    path, command = path_of(server.calibration.key), server.calibration.command
    if (calibration := calibrations.read(path)) is None:
        raise ConfigError(
            f"there is no calibration of the model, settings and machine of {url}, and steps are measured "
            f"under load alone; allowed: make one there while it serves no one ({command}), or fit one to "
            f"what it records at work (octavo serve --record FILE, then {command} --recording FILE); from "
            f"another machine copy it to {path}"
        )
    setup = calibration.setup
    target_s = None if server.target is None else server.target.seconds
    config = dataclasses.replace(setup.config, target_itl_s=target_s)
    blocks, capacity = server.counts.total, server.capacity
    setup = replace(setup, config=config, num_blocks=blocks, capacity=capacity)
    return replace(calibration, setup=setup, tenants=tenants)


def run_plan(
    calibration: Calibration, asked: PlanOptions, targets: WorkloadTargets, *, as_json: bool
) -> None:
    """Forecast, as it is and for each what-if, side by side. Raises ConfigError for what the calibration does
    not cover."""
    columns = [("as it is", calibration)]
    columns += [(text, changed(calibration, text)) for text in asked.what_if]
    forecasts: list[Column] = []
    with phases() as tell:
        traffic = traffic_of(asked, calibration.setup)
        for name, own in columns:
            planner = Planner(own, targets, own.setup, draws=asked.draws, tell=_telling(tell, name))
            if asked.replicas > 1:
                planner.replicas, planner.balancer = asked.replicas, _balancer_of(asked, own.setup)
            forecast = planner.forecast(traffic)
            forecasts.append((name, forecast, _highest(planner, asked, traffic)))
    first = forecasts[0][1]
    if sum(first.refused.values()) == len(traffic.trace.requests):
        raise RequestFailed(f"no request could be served ({', '.join(first.refused)}): {first.why_refused}")
    if as_json:
        for name, forecast, highest in forecasts:
            figures = msgspec.to_builtins(forecast)
            found = {"highest": highest.number, "highest_bound": highest.bound, "of": unit_of(asked)}
            print_json({"what_if": name, **figures, **found})
        return
    print_all(_table(forecasts, asked, targets), *_notes(forecasts, calibration))


def _telling(tell: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda text: tell(f"planning, {name}: {text}")


def _balancer_of(asked: PlanOptions, setup: SchedulerSetup) -> Callable[[Sequence[Server]], Balancer]:
    routing, delay_s, seed = Routing(asked.router), asked.report_delay_s, asked.seed
    return lambda servers: balancer_of(routing, servers, setup, delay_s, seed)


def traffic_of(asked: PlanOptions, setup: SchedulerSetup) -> Traffic:
    """What was asked about."""
    if asked.trace is not None:
        trace = read_trace(asked.trace)
        longest = setup.config.context_length - 1
        return Traffic(scaled(trace, rate=asked.speed, seconds=asked.seconds * asked.speed, longest=longest))
    if asked.users:
        each = max(1, round(asked.seconds / max(asked.think_s, 1.0)))
        count = min(100_000, asked.users * each)
        return Traffic(_alike(asked, [0.0] * count), asked.users, asked.think_s)
    return Traffic(_alike(asked, _arrivals(asked, asked.rate)))


def _arrivals(asked: PlanOptions, rate: float) -> list[float]:
    """Random times of that mean rate."""
    r, times, now = random.Random(f"arrivals {asked.seed}"), list[float](), 0.0
    while (now := now + r.expovariate(rate)) < asked.seconds:
        times.append(now)
    return times or [0.0]


def _alike(asked: PlanOptions, arrivals: Sequence[float]) -> RequestTrace:
    requests = tuple(TraceRequest(at, asked.inp, asked.out) for at in arrivals)
    return RequestTrace(f"{asked.inp} tokens in, {asked.out} out", requests)


def unit_of(asked: PlanOptions) -> str:
    """What `highest` counts."""
    return "times the trace's speed" if asked.trace else "users" if asked.users else "requests/s"


def _highest(planner: Planner, asked: PlanOptions, traffic: Traffic) -> HighestLoad:
    """The highest rate, number of users or speed that keeps the targets."""
    if asked.trace is not None:

        def faster(speed: float) -> Traffic:
            return Traffic(scaled(traffic.trace, rate=speed))

        found = planner.highest(faster, 0.125, 8.0)
        return HighestLoad(found.number * asked.speed, found.bound)
    if asked.users:

        def more(users: float) -> Traffic:
            own = dataclasses.replace(asked, users=max(1, round(users)))
            return traffic_of(own, planner.setup)

        found = planner.highest(more, 1.0, 256.0)
        return HighestLoad(float(round(found.number)), found.bound)

    def oftener(rate: float) -> Traffic:
        return Traffic(_alike(asked, _arrivals(asked, rate)))

    return planner.highest(oftener, RATE_MIN, 64.0)


def _table(forecasts: Sequence[Column], asked: PlanOptions, targets: WorkloadTargets) -> Table:
    def row(name: str, value: Callable[[Forecast], str]) -> tuple[str, ...]:
        return (name, *(value(forecast) for _, forecast, _ in forecasts))

    rows = [
        row("first token, p50", lambda f: _in_words(f.ttft_ms["p50"])),
        row("first token, p95", lambda f: _in_words(f.ttft_ms["p95"])),
        row("between tokens, mean", lambda f: _in_words(f.itl_ms["mean"], 1)),
        row("between tokens, p95", lambda f: _in_words(f.itl_ms["p95"], 1)),
        row("end to end, p50", lambda f: _in_words(f.e2e_ms["p50"])),
        row("output tokens/s", lambda f: _in_words(f.output_tokens_per_s, 1)),
        row("good answers", lambda f: _part_in_words(f.good)),
        row("prompt tokens found", lambda f: f"{f.hit_rate:.0%}"),
        row("blocks of a server, peak", lambda f: f"{f.blocks_peak:,} of {f.blocks:,}"),
        row("sequences of a server, peak", lambda f: f"{f.running_peak:,}"),
        row("preemptions", lambda f: f"{f.preemptions:,}"),
        row("waits are for", lambda f: f.limit or "nothing"),
        (f"highest, {unit_of(asked)}", *(highest.in_words() for _, _, highest in forecasts)),
    ]
    for name in dict.fromkeys(name for _, forecast, _ in forecasts for name in forecast.of_tenants):
        own = [forecast.of_tenants.get(name) for _, forecast, _ in forecasts]
        first = ["" if one is None else _in_words(one["ttft_ms_p95"]) for one in own]
        good = ["" if one is None else _part_in_words(one["good"]) for one in own]
        rows += [(f"{name}: first token, p95", *first), (f"{name}: good answers", *good)]
    several = f"{asked.replicas} replicas, router {asked.router}; " if asked.replicas > 1 else ""
    title = (
        f"octavo plan; {several}times in ms, the least to the most of several draws\n"
        f"good: first token within {targets.ttft_ms:g} ms, {targets.itl_ms:g} ms between tokens in the mean"
    )
    return table(title, ("", *(name for name, _, _ in forecasts)), rows)


def _in_words(found: Range, digits: int = 0) -> str:
    return f"{found.low:,.{digits}f} to {found.high:,.{digits}f}"


def _part_in_words(found: Range) -> str:
    return f"{100 * found.low:.0f} to {100 * found.high:.0f} %"


def _notes(forecasts: Sequence[Column], calibration: Calibration) -> list[str]:
    notes = [
        f"- the calibration predicts half of its steps within {calibration.error_p50:.1%}, 95 % within "
        f"{calibration.error_p95:.1%}; guessed tokens are left out"
    ]
    for name, forecast, _ in forecasts:
        notes += [f"- {name}: {count} requests refused: {kind}" for kind, count in forecast.refused.items()]
    return notes
