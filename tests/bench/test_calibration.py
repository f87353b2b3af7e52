"""What is learned from a recording of a machine whose steps take known times."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from tests.bench.test_planner import setup_of

from octavo.bench import calibration as calibrations
from octavo.bench.calibration import Calibration, fit
from octavo.engine.port import Submit
from octavo.engine.recording import Recorder
from octavo.engine.virtual_loop import VirtualLoop
from octavo.errors import ConfigError
from octavo.params import SamplerParams
from octavo.step.step_times import StepWork, work_of
from octavo.types import Request, SampledToken, StepResult

BETWEEN_S, ROW_BETWEEN_S = 0.0004, 0.00002


def true_s(work: StepWork) -> float:
    rows = work.decoding
    return 0.004 + 0.0003 * rows + 0.0009 * work.prompt + 3e-7 * work.read + 2e-8 * work.prompt_read


def record(path: Path, num_requests: int, noise: float = 0.05, seed: int = 0) -> None:
    """Requests of random lengths, up to eight at once."""
    r, now, number = random.Random(seed), 0.0, 0
    setup = setup_of(blocks=4000)
    loop = VirtualLoop(setup, None)
    with Recorder.open(path) as recorder:
        recorder.begin(setup, None)
        while number < num_requests or loop.scheduler.has_work:
            while number < num_requests and len(loop.scheduler.request_ids) < 8:
                number += 1
                prompt = tuple(r.randrange(1000) for _ in range(r.choice([10, 40, 150, 600])))
                request = Request(
                    number, prompt, SamplerParams(ignore_eos=True), r.randint(5, 60), number, arrival=now
                )
                recorder.apply(Submit(request), now)
                loop.answer(Submit(request), now)
            recorder.expire(now)
            loop.scheduler.expire(now)
            plan = loop.schedule(now)
            recorder.schedule(plan)
            assert plan is not None
            work = work_of(plan.chunks)
            seconds = true_s(work) * math.exp(r.gauss(0.0, noise))
            now += seconds + BETWEEN_S + ROW_BETWEEN_S * work.decoding
            samples = {chunk.seq_id: (SampledToken(3),) for chunk in plan.chunks if chunk.num_samples}
            result = StepResult(plan.step_id, samples, seconds=seconds)
            recorder.commit(result, now)
            loop.commit(result, now)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    path = tmp_path_factory.mktemp("recording") / "recording"
    record(path, 60)
    return fit(path, first_token_s=[1000.0])


@pytest.mark.parametrize(
    "work",
    [
        StepWork(1, read=100),
        StepWork(8, read=2000),
        StepWork(7, prompt=100, read=1500, prompt_read=20_000),
        StepWork(prompt=400, prompt_read=80_000),
    ],
)
def test_steps_are_predicted(fitted: Calibration, work: StepWork) -> None:
    assert fitted.predicted_s(work) == pytest.approx(true_s(work), rel=0.12)


def test_what_is_between_steps_and_alongside_the_engine_is_reported(fitted: Calibration) -> None:
    for rows in (1, 8):
        expected = BETWEEN_S + ROW_BETWEEN_S * rows
        assert fitted.between(StepWork(rows)) == pytest.approx(expected, rel=0.5)
    assert fitted.http_s > 900, "what clients measured beyond the engine's time"


def test_errors_are_those_of_steps_that_were_not_fitted(fitted: Calibration) -> None:
    assert 0.01 < fitted.error_p50 < 0.08
    assert fitted.error_p50 < fitted.error_p95 < 0.25


def test_it_is_kept_in_a_file_and_another_version_is_made_again(fitted: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "one.json"
    assert calibrations.read(path) is None
    calibrations.write(fitted, path)
    assert calibrations.read(path) == fitted
    path.write_bytes(path.read_bytes().replace(b'"version":4', b'"version":0'))
    assert calibrations.read(path) is None


def test_too_few_steps_are_refused_in_words(tmp_path: Path) -> None:
    record(tmp_path / "short", 1)
    with pytest.raises(ConfigError, match=r"measured steps; allowed: 200 or more"):
        fit(tmp_path / "short")
