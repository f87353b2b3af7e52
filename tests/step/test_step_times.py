"""What steps take, learned from noisy times of a known machine."""

from __future__ import annotations

import math
import random

import pytest

from octavo.step.step_times import OUTLIER, StepTimes, StepWork, work_of
from octavo.types import Chunk

BASE_S, ROW_S, READ_S, POSITION_S, PROMPT_READ_S = 0.005, 0.0004, 4e-7, 0.001, 3e-8


def true_s(work: StepWork) -> float:
    rows = work.decoding + work.guesses
    reads = READ_S * work.read + PROMPT_READ_S * work.prompt_read
    return BASE_S + ROW_S * rows + POSITION_S * work.prompt + reads


def any_work(r: random.Random) -> StepWork:
    decoding = r.choice([0, 1, 2, 4, 8, 12, 16])
    prompt = r.choice([0, 0, 8, 32, 128]) if decoding else r.choice([64, 128, 256])
    start = r.randint(0, 2000)
    read = sum(r.randint(20, 2000) for _ in range(decoding))
    return StepWork(decoding, 0, prompt, read, prompt * start + prompt * (prompt + 1) // 2)


def learned(noise: float = 0.0, steps: int = 1500, factor: float = 1.0, seed: int = 0) -> StepTimes:
    times, r = StepTimes(), random.Random(seed)
    teach(times, r, noise, steps, factor)
    return times


def teach(times: StepTimes, r: random.Random, noise: float, steps: int, factor: float = 1.0) -> None:
    for _ in range(steps):
        work = any_work(r)
        times.observe(work, factor * true_s(work) * math.exp(r.gauss(0.0, noise)))


def errors(times: StepTimes, factor: float = 1.0, seed: int = 99) -> list[float]:
    r, found = random.Random(seed), []
    for _ in range(200):
        work = any_work(r)
        predicted = times.predicted_s(work)
        assert predicted is not None
        found.append(abs(math.log(predicted / (factor * true_s(work)))))
    return sorted(found)


@pytest.mark.parametrize(("noise", "median", "p95"), [(0.0, 0.03, 0.12), (0.1, 0.06, 0.2)])
def test_steps_of_all_kinds_are_predicted(noise: float, median: float, p95: float) -> None:
    found = errors(learned(noise))
    assert found[100] < median
    assert found[190] < p95


def test_a_machine_that_becomes_half_as_fast_is_followed_within_steps() -> None:
    times = learned(0.05)
    teach(times, random.Random(5), 0.05, 40, factor=2.0)
    found = errors(times, factor=2.0)
    assert found[100] < 0.15


def test_nothing_is_known_before_it_was_measured() -> None:
    times = StepTimes()
    assert times.position_s is None
    assert times.decode_s(3) is None
    assert times.decode_s(0) == 0.0
    assert times.predicted_s(StepWork(3)) is None
    times.observe(StepWork(2), 0.0)  # not measured
    assert times.predicted_s(StepWork(2)) is None
    times.observe(StepWork(2), 0.010)
    assert times.predicted_s(StepWork(2)) == pytest.approx(0.010)
    assert times.predicted_s(StepWork(2, prompt=10)) is None


def test_where_only_prompts_were_measured_all_of_it_is_the_positions() -> None:
    times = StepTimes()
    for _ in range(5):
        times.observe(StepWork(prompt=100), 0.1)
    assert times.position_s == pytest.approx(0.001)


def test_one_step_that_took_for_ever_changes_little() -> None:
    times = learned()
    work = StepWork(8, read=4000)
    before = times.predicted_s(work)
    times.observe(work, 60.0)
    after = times.predicted_s(work)
    assert before is not None
    assert after is not None
    assert after < 2.0 * before
    assert max(times.residuals) == pytest.approx(math.log(OUTLIER))


def test_residuals_are_as_wide_as_the_machines_noise() -> None:
    times = learned(0.1, steps=3000)
    r = times.residuals
    spread = math.sqrt(sum(x * x for x in r) / len(r))
    assert 0.08 < spread < 0.16


def test_the_work_of_a_plan_counts_what_attention_reads() -> None:
    decoding = Chunk(1, 0, 40, 1, 1, 40)
    guessing = Chunk(2, 1, 10, 3, 3, 10, (7, 8))
    prompt = Chunk(3, 2, 100, 4, 0, 104)
    work = work_of([decoding, guessing, prompt])
    assert work == StepWork(2, 2, 4, 41 + 13, 4 * 100 + 1 + 2 + 3 + 4)
    assert work.positions == 8


def test_equal_steps_teach_the_same_to_the_last_bit() -> None:
    first, second = learned(0.1, steps=300), learned(0.1, steps=300)
    work = StepWork(3, 1, 17, 900, 4000)
    assert first.predicted_s(work) == second.predicted_s(work)
