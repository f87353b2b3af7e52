"""`octavo plan` over a calibration that is stored, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from tests.bench.test_planner import calibration_of, setup_of

from octavo.bench import calibration as calibrations
from octavo.bench.traces import RequestTrace, TraceRequest
from octavo.bench.workloads import Planned, WorkloadTargets
from octavo.cli.bench_serve import predicted
from octavo.cli.plan import changed, path_of, run_plan
from octavo.config import StartOptions
from octavo.errors import ConfigError, RequestFailed

OPTIONS = StartOptions(pace=True, speculate="off")


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    calibrations.write(calibration_of(setup_of()), path_of("some/model", OPTIONS))


def planned(capsys: pytest.CaptureFixture[str], asked: Planned) -> list[dict[str, object]]:
    run_plan("some/model", OPTIONS, asked, WorkloadTargets(), as_json=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_rate_and_what_would_be_else_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    asked = Planned(rate=2.0, seconds=20.0, what_if=("kv_memory=0.1x", "max_seqs=2"), draws=2)
    lines = planned(capsys, asked)
    assert [line["what_if"] for line in lines] == ["as it is", "kv_memory=0.1x", "max_seqs=2"]
    assert [line["blocks"] for line in lines] == [1000, 100, 1000]
    assert lines[2]["running_peak"] == 2
    assert all(float(str(line["highest"])) > 0 for line in lines)


def test_users_who_think(capsys: pytest.CaptureFixture[str]) -> None:
    line = planned(capsys, Planned(users=3, seconds=30.0, draws=1, inp=32, out=16))[0]
    assert line["of"] == "users"
    assert float(str(line["highest"])) >= 3


def test_several_replicas_behind_each_router(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 3000 * i, "input_length": 1100, "output_length": 2, "hash_ids": [10 * (i % 3), i % 3]}
        for i in range(12)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    rates = {}
    for router in ("prefix", "round-robin", "two-choices"):
        line = planned(capsys, Planned(trace=trace, draws=1, replicas=2, router=router))[0]
        rates[router] = float(str(line["hit_rate"]))
    assert rates["prefix"] == pytest.approx(9 * 1024 / (12 * 1100))
    assert rates["round-robin"] == pytest.approx(6 * 1024 / (12 * 1100))
    with pytest.raises(ConfigError, match="--router is round-robin, and --replicas is 1"):
        Planned(router="round-robin")
    with pytest.raises(ConfigError, match="replicas"):
        Planned(replicas=65)


def test_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * i, "input_length": 600, "output_length": 8, "hash_ids": [1, 10 + i]}
        for i in range(4)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    line = planned(capsys, Planned(trace=trace, draws=1))[0]
    assert float(str(line["hit_rate"])) == pytest.approx(3 * 512 / 2400)


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    run_plan("some/model", OPTIONS, Planned(seconds=10, draws=1), WorkloadTargets(), as_json=False)
    out = capsys.readouterr().out
    assert "highest, requests/s" in out
    assert "guessed tokens are left out" in out


WRONG = [
    "kv_memory=0x",
    "kv_memory=90000x",
    "max_seqs=many",
    "max_seqs=0.5",
    "step_tokens=1e5",
    "host_cache=1GiB",
]


@pytest.mark.parametrize("text", [*WRONG, "x", "kv_memory=1"])
def test_what_if_says_what_is_allowed(text: str) -> None:
    setup = setup_of()
    config = dataclasses.replace(setup.config, bytes_per_block=1000)
    with pytest.raises(ConfigError, match="allowed"):
        changed(msgspec.structs.replace(setup, config=config), text)


def test_what_was_expected_stands_beside_what_a_play_measured() -> None:
    trace = RequestTrace("two", (TraceRequest(0.0, 16, 4), TraceRequest(1.0, 16, 4)))
    report = predicted(path_of("some/model", OPTIONS), trace, WorkloadTargets())
    assert report.arrival == "predicted"
    assert report.completed == 2


def test_traffic_that_never_fits_fails_in_words() -> None:
    with pytest.raises(RequestFailed, match="no request could be served"):
        run_plan("some/model", OPTIONS, Planned(inp=50_000, seconds=3), WorkloadTargets(), as_json=True)


def test_a_trace_and_users_are_not_both_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allowed: one of them"):
        Planned(trace=tmp_path / "trace", users=2)


def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}", encoding="utf-8")
    trace = RequestTrace("one", (TraceRequest(0.0, 16, 4),))
    with pytest.raises(ConfigError, match="allowed: what `octavo bench calibrate` wrote"):
        predicted(tmp_path / "no.json", trace, WorkloadTargets())
