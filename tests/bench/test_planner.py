"""What a virtual server does with traffic, by a calibration whose steps take known times."""

from __future__ import annotations

import msgspec
import pytest

from octavo.bench.calibration import VERSION, Calibration
from octavo.bench.planner import CapacityPlanner, DrawResult, Traffic
from octavo.bench.traces import TraceRequest, TrafficTrace
from octavo.bench.workloads import WorkloadTargets
from octavo.engine.scheduler_setup import SchedulerSetup, TierSetup
from octavo.errors import ConfigError
from octavo.memory.quota import TenantPolicy
from octavo.step.context import SchedulerConfig

POSITION_S, BASE_S, ROW_S = 0.001, 0.005, 0.0005
BETWEEN_S, HTTP_S = 0.0005, 0.002
TARGETS = WorkloadTargets()


def setup_of(blocks: int = 1000, rows: int = 64, step_tokens: int = 512) -> SchedulerSetup:
    config = SchedulerConfig(max_rows=rows, step_tokens=step_tokens, context_length=4096)
    return SchedulerSetup(config, blocks, blocks, 16, (b"model",))


def calibration_of(setup: SchedulerSetup, noise: float = 0.0, drift: float = 0.0) -> Calibration:
    return Calibration(
        version=VERSION,
        setup=setup,
        tier=None,
        depth=0,
        terms=[POSITION_S, BASE_S, ROW_S, 0.0, 0.0],
        corrections={},
        noise={kind: [-noise, noise] for kind in ("decode", "prompt")},
        drifts=[-drift, drift],
        between_s=BETWEEN_S,
        between_row_s=0.0,
        http_s=HTTP_S,
        moves={},
        rows_max=64,
        positions_max=1024,
        num_steps=1000,
        error_p50=0.0,
        error_p95=0.0,
    )


def trace_of(*requests: TraceRequest) -> TrafficTrace:
    return TrafficTrace("few", requests)


def planner_of(setup: SchedulerSetup, **fields: float) -> CapacityPlanner:
    return CapacityPlanner(calibration_of(setup, **fields), TARGETS, setup, draws=3)


def test_one_request_takes_what_its_steps_are_said_to_take() -> None:
    served = planner_of(setup_of()).run_draw(Traffic(trace_of(TraceRequest(0.0, 100, 20))))
    report = served.report
    prompt_ms = 1000 * (BASE_S + 100 * POSITION_S + HTTP_S)
    assert report.ttft_ms.p50 == pytest.approx(prompt_ms)
    decode_ms = 1000 * (BASE_S + ROW_S + BETWEEN_S)
    assert report.itl_ms.mean == pytest.approx(decode_ms)
    assert report.e2e_ms.p50 == pytest.approx(prompt_ms + 19 * decode_ms)
    assert report.completed == 1
    assert served.steps == 20


def test_requests_at_once_share_steps() -> None:
    alone = planner_of(setup_of()).run_draw(Traffic(trace_of(TraceRequest(0.0, 16, 50))))
    eight = planner_of(setup_of()).run_draw(Traffic(trace_of(*[TraceRequest(0.0, 16, 50)] * 8)))
    assert eight.running_peak == 8
    more_ms = 1000 * 7 * ROW_S
    assert eight.report.itl_ms.p50 == pytest.approx(alone.report.itl_ms.p50 + more_ms)


def test_a_shared_prefix_is_found_as_the_ledger_finds_it() -> None:
    first, second = TraceRequest(0.0, 1100, 4, (1, 2, 3)), TraceRequest(60.0, 1100, 4, (1, 2, 9))
    served = planner_of(setup_of()).run_draw(Traffic(trace_of(first, second)))
    assert served.cached_tokens == 1024
    assert served.prompt_tokens == 2200


def test_a_small_pool_preempts_or_waits_and_says_for_what() -> None:
    many = Traffic(trace_of(*[TraceRequest(0.01 * i, 200, 200) for i in range(12)]))
    forecast = planner_of(setup_of(blocks=60)).forecast(many)
    assert forecast.limit == "blocks"
    assert forecast.blocks_peak <= 60
    rows = planner_of(setup_of(rows=2)).forecast(many)
    assert rows.limit == "rows"
    assert rows.running_peak == 2
    assert planner_of(setup_of()).forecast(many).e2e_ms["p95"].high < forecast.e2e_ms["p95"].low


def test_users_send_once_their_answer_has_ended_and_they_have_thought() -> None:
    trace = trace_of(*[TraceRequest(0.0, 16, 10)] * 6)
    served = planner_of(setup_of()).run_draw(Traffic(trace, users=2, think_s=3.0))
    assert served.running_peak <= 2
    assert served.report.completed == 6
    assert 6.0 < served.seconds < 7.0  # three rounds, two pauses


def test_ranges_are_as_wide_as_noise_and_drift() -> None:
    traffic = Traffic(trace_of(TraceRequest(0.0, 16, 200)))
    still = planner_of(setup_of()).forecast(traffic).itl_ms["mean"]
    assert still.low == still.high
    moved = planner_of(setup_of(), noise=0.05, drift=0.2).forecast(traffic).itl_ms["mean"]
    assert moved.low < still.low < moved.high


def test_what_the_calibration_does_not_cover_is_refused() -> None:
    many = Traffic(trace_of(*[TraceRequest(0.0, 8, 100)] * 100))
    with pytest.raises(
        ConfigError, match=r"sequences that decode in a step; allowed: 1.25 times the measured 64"
    ):
        planner_of(setup_of(rows=128)).run_draw(many)


def test_the_highest_rate_is_where_targets_are_just_kept() -> None:
    planner = planner_of(setup_of())

    def at(rate: float) -> Traffic:
        return Traffic(trace_of(*[TraceRequest(i / rate, 300, 20) for i in range(60)]))

    found = planner.highest(at, 0.1, 20.0)
    highest = found.number
    assert found.bound == "targets"
    assert planner.run_draw(at(highest)).good >= 0.95
    assert planner.run_draw(at(1.1 * highest)).good < 0.95
    assert 1.0 < highest < 1 / (BASE_S + 300 * POSITION_S), "more than the machine computes"


def test_a_search_says_where_it_ended() -> None:
    planner = planner_of(setup_of())

    def few(rate: float) -> Traffic:
        return Traffic(trace_of(*[TraceRequest(i / rate, 8, 2) for i in range(4)]))

    assert planner.highest(few, 0.5, 4.0).in_words() == "4 or more"

    def many(number: float) -> Traffic:
        return Traffic(trace_of(*[TraceRequest(0.0, 8, 60)] * round(number)))

    wide = planner_of(setup_of(rows=512))
    assert wide.highest(many, 10, 400).bound == "calibration"


def test_a_request_that_never_fits_is_reported() -> None:
    forecast = planner_of(setup_of(blocks=4)).forecast(Traffic(trace_of(TraceRequest(0.0, 500, 5))))
    assert sum(forecast.refused.values()) == 1


def test_plans_ahead_hide_what_is_between_steps() -> None:
    setup = setup_of()

    def end(depth: int) -> float:
        calibration = msgspec.structs.replace(calibration_of(setup), depth=depth)
        traffic = Traffic(trace_of(TraceRequest(0.0, 16, 100)))
        return CapacityPlanner(calibration, TARGETS, setup).run_draw(traffic).seconds

    assert end(1) < end(0)


def test_blocks_come_back_from_a_tier_in_the_time_that_was_measured() -> None:
    setup = setup_of(blocks=60)
    first, second = TraceRequest(0.0, 600, 2, (1, 2)), TraceRequest(30.0, 600, 2, (3, 4))
    again = TraceRequest(60.0, 600, 2, (1, 2))
    tier = TierSetup(num_slots=400, num_host=400, max_age_s=None, stored=[])

    def served(load_s: float) -> DrawResult:
        moves = {"load host": load_s, "store host": 0.0001}
        calibration = msgspec.structs.replace(calibration_of(setup), tier=tier, moves=moves)
        return CapacityPlanner(calibration, TARGETS, setup).run_draw(Traffic(trace_of(first, second, again)))

    quick = served(0.0002)
    assert quick.cached_tokens > 500, "nothing came back"
    assert quick.report.ttft_ms.p50 > quick.report.ttft_ms.mean
    assert served(1.0).report.e2e_ms.p99 > quick.report.e2e_ms.p99


def test_a_transfer_that_was_not_measured_is_refused() -> None:
    setup = setup_of(blocks=60)
    traffic = Traffic(trace_of(*[TraceRequest(30.0 * i, 600, 2, (2 * i, 2 * i + 1)) for i in range(3)]))
    tier = TierSetup(num_slots=400, num_host=0, max_age_s=None, stored=[])
    calibration = msgspec.structs.replace(calibration_of(setup), tier=tier, moves={"load disk": 0.001})
    with pytest.raises(ConfigError, match=r"\(store disk; measured: load disk\); allowed"):
        CapacityPlanner(calibration, TARGETS, setup).run_draw(traffic)


def test_requests_that_name_no_tenant_are_the_tenants_in_turn() -> None:
    few = trace_of(*[TraceRequest(1.0 * i, 16, 2) for i in range(4)], TraceRequest(5.0, 16, 2, tenant="b"))
    policies = (TenantPolicy("a"), TenantPolicy("shared"), TenantPolicy("b"))
    calibration = msgspec.structs.replace(calibration_of(setup_of()), tenants=policies)
    served = CapacityPlanner(calibration, TARGETS, setup_of()).run_draw(Traffic(few))
    assert {name: report.requests for name, report in served.of_tenants.items()} == {"a": 2, "b": 3}
