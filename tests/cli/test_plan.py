"""`octavo plan` over a calibration that is stored, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.bench.test_planner import calibration_of, setup_of
from tests.cli.serving import serving
from tests.doubles.fake_model import FakeModel
from typer.testing import CliRunner

from octavo.bench import calibration as calibrations
from octavo.bench.calibration import Calibration
from octavo.bench.traces import TraceRequest, TrafficTrace
from octavo.bench.workloads import PlanOptions, WorkloadTargets
from octavo.cli.bench_serve import predict
from octavo.cli.main import app
from octavo.cli.plan import calibration_of_model, calibration_of_server, path_of, run_plan
from octavo.cli.what_if import apply_change
from octavo.config import StartOptions
from octavo.engine.scheduler_setup import TierSetup
from octavo.errors import ConfigError, RequestFailed
from octavo.serving.calibration_key import calibrate_command, calibration_key

OPTIONS = StartOptions(pace=True, speculate="off")
KEY = calibration_key("some/model", OPTIONS)


@pytest.fixture(autouse=True)
def calibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    calibrations.write(calibration_of(setup_of()), path_of(KEY))


def planned(capsys: pytest.CaptureFixture[str], asked: PlanOptions) -> list[dict[str, object]]:
    run_plan(calibration_of_model("some/model", OPTIONS, 10.0), asked, WorkloadTargets(), as_json=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_rate_and_what_would_be_else_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    asked = PlanOptions(rate=2.0, seconds=20.0, what_if=("kv_memory=0.1x", "max_seqs=2"), draws=2)
    lines = planned(capsys, asked)
    assert [line["what_if"] for line in lines] == ["as it is", "kv_memory=0.1x", "max_seqs=2"]
    assert [line["blocks"] for line in lines] == [1000, 100, 1000]
    assert lines[2]["running_peak"] == 2
    assert all(float(str(line["highest"])) > 0 for line in lines)


def test_users_who_think(capsys: pytest.CaptureFixture[str]) -> None:
    line = planned(capsys, PlanOptions(users=3, seconds=30.0, draws=1, inp=32, out=16))[0]
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
        line = planned(capsys, PlanOptions(trace=trace, draws=1, replicas=2, router=router))[0]
        rates[router] = float(str(line["hit_rate"]))
    assert rates["prefix"] == pytest.approx(9 * 1024 / (12 * 1100))
    assert rates["round-robin"] == pytest.approx(6 * 1024 / (12 * 1100))
    with pytest.raises(ConfigError, match="--router is round-robin, and --replicas is 1"):
        PlanOptions(router="round-robin")
    with pytest.raises(ConfigError, match="replicas"):
        PlanOptions(replicas=65)


def test_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * i, "input_length": 600, "output_length": 8, "hash_ids": [1, 10 + i]}
        for i in range(4)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    line = planned(capsys, PlanOptions(trace=trace, draws=1))[0]
    assert float(str(line["hit_rate"])) == pytest.approx(3 * 512 / 2400)


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    calibration = calibration_of_model("some/model", OPTIONS, 10.0)
    run_plan(calibration, PlanOptions(seconds=10, draws=1), WorkloadTargets(), as_json=False)
    out = capsys.readouterr().out
    assert "highest, requests/s" in out
    assert "speculation is not simulated" in out


WRONG = [
    "kv_memory=0x",
    "kv_memory=90000x",
    "max_seqs=many",
    "max_seqs=0.5",
    "step_tokens=1e5",
    "host_cache=1GiB",
    "disk_size=1GiB",
    "pace=off",
]


@pytest.mark.parametrize("text", [*WRONG, "x", "kv_memory=1"])
def test_what_if_says_what_is_allowed(text: str) -> None:
    setup = setup_of()
    config = dataclasses.replace(setup.config, bytes_per_block=1000)
    with pytest.raises(ConfigError, match="allowed"):
        apply_change(calibration_of(msgspec.structs.replace(setup, config=config)), text)


def measured_with(**moves: float) -> Calibration:
    """A calibration that has 100 slots on disk, all of which attention reads."""
    tier = TierSetup(100, 0, None, [], num_readable=100)
    config = dataclasses.replace(setup_of().config, bytes_per_block=4096, staging_blocks=8)
    setup = msgspec.structs.replace(setup_of(), config=config)
    measured = {name.replace("_", " "): seconds for name, seconds in moves.items()}
    return msgspec.structs.replace(calibration_of(setup), tier=tier, moves=measured)


def test_tiers_change_where_the_way_to_them_was_measured() -> None:
    calibration = measured_with(load_disk=0.001, store_disk=0.001)
    for text, slots in (("disk_size=2x", 200), ("disk_size=40960", 10)):
        tier = apply_change(calibration, text).tier
        assert tier is not None
        assert (tier.num_slots, tier.num_host, tier.num_readable) == (slots, 0, slots)
    without = apply_change(calibration, "disk_size=off")
    assert without.tier is None
    assert without.setup.config.staging_blocks == 0
    with pytest.raises(ConfigError, match="no transfer times of host memory; allowed"):
        apply_change(calibration, "host_cache=1GiB")
    with pytest.raises(ConfigError, match="no transfer times of a disk; allowed"):
        apply_change(measured_with(load_disk=0.001), "disk_size=2x")


def test_tenants_of_a_file_share_as_it_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    names = "".join(
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = "{digit * 64}"\nweight = {weight}\n'
        for name, digit, weight in (("slow", "1", 1.0), ("quick", "2", 9.0))
    )
    path.write_text(names, encoding="utf-8")
    asked = PlanOptions(rate=8.0, inp=256, seconds=10.0, draws=1, what_if=(f"tenants={path}",))
    before, after = planned(capsys, asked)
    assert before["of_tenants"] == {}
    p95 = {name: figures["ttft_ms_p95"]["middle"] for name, figures in after["of_tenants"].items()}  # type: ignore[attr-defined]
    assert p95["quick"] < 0.8 * p95["slow"]


@pytest.fixture
def server() -> Iterator[str]:
    """A running server whose settings are those of the calibration; its pool has 10 blocks."""
    model = FakeModel()
    model.card = dataclasses.replace(
        model.card, calibration=KEY, calibrate_command="octavo bench calibrate m"
    )
    with serving(model) as url:
        yield url


def test_a_running_server_is_planned_as_it_is_now(server: str) -> None:
    calibration = calibration_of_server(f"{server}/v1", "")
    assert calibration.setup.num_blocks == 10
    assert calibration.setup.config.target_itl_s is None
    assert calibration.tenants == ()
    assert calibration.terms == calibration_of(setup_of()).terms


def test_without_a_calibration_the_command_that_makes_one_is_named(server: str) -> None:
    path_of(KEY).unlink()
    with pytest.raises(
        ConfigError, match=r"allowed: calibrate there .* \(octavo bench calibrate m\), or fit"
    ):
        calibration_of_server(server, "")


def test_a_url_takes_no_settings_of_an_engine() -> None:
    result = CliRunner().invoke(app, ["plan", "http://127.0.0.1:1", "--max-seqs", "8"])
    assert isinstance(result.exception, ConfigError)
    assert "--max-seqs: the server's engine has its own settings" in str(result.exception)


def test_a_key_is_that_of_settings_which_change_steps() -> None:
    assert calibration_key("m", OPTIONS) == calibration_key("m", StartOptions(served_name="other"))
    assert calibration_key("m", OPTIONS) != calibration_key("m", StartOptions(max_seqs=8))
    assert calibration_key("m", OPTIONS) != calibration_key("n", OPTIONS)
    command = calibrate_command("my model", StartOptions(max_seqs=8, disk_cache="/d"))
    assert command == "octavo bench calibrate 'my model' --max-seqs 8 --disk-cache FOLDER"


def test_what_was_expected_stands_alongside_what_a_play_measured() -> None:
    trace = TrafficTrace("two", (TraceRequest(0.0, 16, 4), TraceRequest(1.0, 16, 4)))
    report = predict(path_of(KEY), trace, WorkloadTargets())
    assert report.arrival == "predicted"
    assert report.completed == 2


def test_traffic_that_never_fits_fails_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RequestFailed, match="no request can be served"):
        planned(capsys, PlanOptions(inp=50_000, seconds=3))


def test_a_trace_and_users_are_not_both_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allowed: one of them"):
        PlanOptions(trace=tmp_path / "trace", users=2)


def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}", encoding="utf-8")
    trace = TrafficTrace("one", (TraceRequest(0.0, 16, 4),))
    with pytest.raises(ConfigError, match="allowed: a file of `octavo bench calibrate`"):
        predict(tmp_path / "no.json", trace, WorkloadTargets())
