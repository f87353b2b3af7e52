"""`octavo bench calibrate` and `octavo plan`: measure a server's steps once, and predict its latencies."""

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
from octavo.bench.planner import Balancer, CapacityPlanner, Traffic, VirtualServer
from octavo.bench.replicas import RoutingPolicy, balancer_of
from octavo.bench.traces import TraceRequest, TrafficTrace, read_trace, scaled
from octavo.bench.workloads import PlanOptions, WorkloadTargets
from octavo.cli.remote import require_operator, send
from octavo.cli.terminal import print_all, print_json, running_engine, show_progress, table
from octavo.cli.what_if import apply_change
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
    """Measure, store, and print the error of the model of the machine. Raises ConfigError, RequestFailed."""
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
        f"{made.num_steps:,} steps of up to {made.rows_max} sequences; half of the held-out steps are "
        f"predicted within {made.error_p50:.1%}, 95 % within {made.error_p95:.1%}",
        f"stored in {path}",
    )


def make(
    model: str | None, options: StartOptions, seconds: float, recording: Path | None = None
) -> Calibration:
    """Make a calibration from a recording, or from a server that is started and loaded."""

    def serve(own: StartOptions, port: int) -> None:
        settings = ServerSettings(port=port, log_level="warning")
        configure_logging(settings.log_level, settings.log_format)
        with open_listener(settings) as listener, running_engine(model, own) as llm:
            run_server(llm, listener, settings, lambda url: None)

    with show_progress() as report:
        if recording is not None:
            report(f"reading {recording}")
            return calibrations.fit(recording)
        return calibrate(serve, options, seconds, report)


def path_of(key: str) -> Path:
    """The file of the calibration with this key."""
    return cache_folder() / FOLDER / f"{key}.json"


def calibration_of_model(model: str | None, options: StartOptions, seconds: float) -> Calibration:
    """The stored calibration of this model and these settings on this machine, with their target; made if
    there is none."""
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
    """The fields of /v1/kv that a planner needs."""

    calibration: _Key
    counts: _Counts
    capacity: int
    tenants: list[dict[str, object]]
    target: _Target | None = None


def calibration_of_server(url: str, api_key: str) -> Calibration:
    """The stored calibration of a running server's model, settings and machine, with the server's current
    pool, target and tenants. Raises OctavoError if the server does not answer, ConfigError if there is no
    calibration: steps can only be measured under load."""
    answer = require_operator(send(url, api_key, "GET", "/v1/kv"))
    try:
        server = msgspec.convert(answer, _Server)
        listed = [row for row in server.tenants if "weight" in row]  # the others left the tenants file
        tenants = tuple(msgspec.convert(row, TenantPolicy) for row in listed)
    except msgspec.ValidationError as error:
        raise RequestFailed(
            f"the answer of {url}/v1/kv is malformed: {error}; is the server of this version?"
        ) from None
    path, command = path_of(server.calibration.key), server.calibration.command
    if (calibration := calibrations.read(path)) is None:
        raise ConfigError(
            f"there is no calibration of the model, settings and machine of {url}, and steps can only be "
            f"measured under load; allowed: calibrate there while it is idle ({command}), or fit a recording "
            f"of its work (octavo serve --record FILE, then {command} --recording FILE); copy a calibration "
            f"from another machine to {path}"
        )
    setup = calibration.setup
    target_s = None if server.target is None else server.target.seconds
    config = dataclasses.replace(setup.config, target_itl_s=target_s)
    blocks, capacity = server.counts.total, server.capacity
    setup = replace(setup, config=config, num_blocks=blocks, capacity=capacity)
    return replace(calibration, setup=setup, tenants=tenants)


def run_plan(
    calibration: Calibration, options: PlanOptions, targets: WorkloadTargets, *, as_json: bool
) -> None:
    """Print the forecasts of the calibrated server and of each what-if in columns. Raises ConfigError for
    changes that the calibration does not cover."""
    columns = [("as it is", calibration)]
    columns += [(text, apply_change(calibration, text)) for text in options.what_if]
    forecasts: list[Column] = []
    with show_progress() as report:
        traffic = traffic_of(options, calibration.setup)
        for name, own in columns:
            planner = CapacityPlanner(
                own, targets, own.setup, draws=options.draws, show=_with_name(report, name)
            )
            if options.replicas > 1:
                planner.replicas, planner.balancer = options.replicas, _balancer_of(options, own.setup)
            forecast = planner.forecast(traffic)
            forecasts.append((name, forecast, _highest(planner, options, traffic)))
    first = forecasts[0][1]
    if sum(first.refused.values()) == len(traffic.trace.requests):
        raise RequestFailed(f"no request can be served ({', '.join(first.refused)}): {first.why_refused}")
    if as_json:
        for name, forecast, highest in forecasts:
            figures = msgspec.to_builtins(forecast)
            found = {"highest": highest.number, "highest_bound": highest.bound, "of": unit_of(options)}
            print_json({"what_if": name, **figures, **found})
        return
    print_all(_table(forecasts, options, targets), *_notes(forecasts, calibration))


def _with_name(report: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda text: report(f"planning, {name}: {text}")


def _balancer_of(
    options: PlanOptions, setup: SchedulerSetup
) -> Callable[[Sequence[VirtualServer]], Balancer]:
    routing, delay_s, seed = RoutingPolicy(options.router), options.report_delay_s, options.seed
    return lambda servers: balancer_of(routing, servers, setup, delay_s, seed)


def traffic_of(options: PlanOptions, setup: SchedulerSetup) -> Traffic:
    """The traffic that the options describe."""
    if options.trace is not None:
        trace = read_trace(options.trace)
        longest = setup.config.context_length - 1
        return Traffic(
            scaled(trace, rate=options.speed, seconds=options.seconds * options.speed, longest=longest)
        )
    if options.users:
        each = max(1, round(options.seconds / max(options.think_s, 1.0)))
        count = min(100_000, options.users * each)
        return Traffic(_uniform_trace(options, [0.0] * count), options.users, options.think_s)
    return Traffic(_uniform_trace(options, _arrivals(options, options.rate)))


def _arrivals(options: PlanOptions, rate: float) -> list[float]:
    """Random arrival times with that mean rate."""
    r, times, now = random.Random(f"arrivals {options.seed}"), list[float](), 0.0
    while (now := now + r.expovariate(rate)) < options.seconds:
        times.append(now)
    return times or [0.0]


def _uniform_trace(options: PlanOptions, arrivals: Sequence[float]) -> TrafficTrace:
    requests = tuple(TraceRequest(at, options.inp, options.out) for at in arrivals)
    return TrafficTrace(f"{options.inp} tokens in, {options.out} out", requests)


def unit_of(options: PlanOptions) -> str:
    """The unit of `highest`."""
    return "times the trace's speed" if options.trace else "users" if options.users else "requests/s"


def _highest(planner: CapacityPlanner, options: PlanOptions, traffic: Traffic) -> HighestLoad:
    """The highest rate, number of users or speed within the targets."""
    if options.trace is not None:

        def at_speed(speed: float) -> Traffic:
            return Traffic(scaled(traffic.trace, rate=speed))

        found = planner.highest(at_speed, 0.125, 8.0)
        return HighestLoad(found.number * options.speed, found.bound)
    if options.users:

        def with_users(users: float) -> Traffic:
            own = dataclasses.replace(options, users=max(1, round(users)))
            return traffic_of(own, planner.setup)

        found = planner.highest(with_users, 1.0, 256.0)
        return HighestLoad(float(round(found.number)), found.bound)

    def at_rate(rate: float) -> Traffic:
        return Traffic(_uniform_trace(options, _arrivals(options, rate)))

    return planner.highest(at_rate, RATE_MIN, 64.0)


def _table(forecasts: Sequence[Column], options: PlanOptions, targets: WorkloadTargets) -> Table:
    def row(name: str, value: Callable[[Forecast], str]) -> tuple[str, ...]:
        return (name, *(value(forecast) for _, forecast, _ in forecasts))

    rows = [
        row("first token, p50", lambda f: _format_range(f.ttft_ms["p50"])),
        row("first token, p95", lambda f: _format_range(f.ttft_ms["p95"])),
        row("between tokens, mean", lambda f: _format_range(f.itl_ms["mean"], 1)),
        row("between tokens, p95", lambda f: _format_range(f.itl_ms["p95"], 1)),
        row("end to end, p50", lambda f: _format_range(f.e2e_ms["p50"])),
        row("output tokens/s", lambda f: _format_range(f.output_tokens_per_s, 1)),
        row("good answers", lambda f: _format_share(f.good)),
        row("prefix cache hits, tokens", lambda f: f"{f.hit_rate:.0%}"),
        row("blocks per server, peak", lambda f: f"{f.blocks_peak:,} of {f.blocks:,}"),
        row("sequences per server, peak", lambda f: f"{f.running_peak:,}"),
        row("preemptions", lambda f: f"{f.preemptions:,}"),
        row("requests wait for", lambda f: f.limit or "nothing"),
        (f"highest, {unit_of(options)}", *(highest.in_words() for _, _, highest in forecasts)),
    ]
    for name in dict.fromkeys(name for _, forecast, _ in forecasts for name in forecast.of_tenants):
        own = [forecast.of_tenants.get(name) for _, forecast, _ in forecasts]
        first = ["" if one is None else _format_range(one["ttft_ms_p95"]) for one in own]
        good = ["" if one is None else _format_share(one["good"]) for one in own]
        rows += [(f"{name}: first token, p95", *first), (f"{name}: good answers", *good)]
    several = f"{options.replicas} replicas, router {options.router}; " if options.replicas > 1 else ""
    title = (
        f"octavo plan; {several}times in ms, lowest to highest of several simulations\n"
        f"good: first token within {targets.ttft_ms:g} ms, a mean of {targets.itl_ms:g} ms between tokens"
    )
    return table(title, ("", *(name for name, _, _ in forecasts)), rows)


def _format_range(found: Range, digits: int = 0) -> str:
    return f"{found.low:,.{digits}f} to {found.high:,.{digits}f}"


def _format_share(found: Range) -> str:
    return f"{100 * found.low:.0f} to {100 * found.high:.0f} %"


def _notes(forecasts: Sequence[Column], calibration: Calibration) -> list[str]:
    notes = [
        f"- the calibration predicts half of its steps within {calibration.error_p50:.1%}, 95 % within "
        f"{calibration.error_p95:.1%}; speculation is not simulated"
    ]
    for name, forecast, _ in forecasts:
        notes += [f"- {name}: {count} requests refused: {kind}" for kind, count in forecast.refused.items()]
    return notes
