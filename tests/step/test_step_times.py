"""What steps take, learned from noisy times of a known machine."""

from __future__ import annotations

import math
import random

import pytest

from octavo.step.step_times import OUTLIER, StepShape, StepTimes, shape_of
from octavo.types import Chunk

BASE_S, ROW_S, READ_S, POSITION_S, PROMPT_READ_S = 0.005, 0.0004, 4e-7, 0.001, 3e-8


def true_s(shape: StepShape) -> float:
    rows = shape.decoding + shape.guesses
    reads = READ_S * shape.read + PROMPT_READ_S * shape.prompt_read
    return BASE_S + ROW_S * rows + POSITION_S * shape.prompt + reads


def any_shape(r: random.Random) -> StepShape:
    decoding = r.choice([0, 1, 2, 4, 8, 12, 16])
    prompt = r.choice([0, 0, 8, 32, 128]) if decoding else r.choice([64, 128, 256])
    start = r.randint(0, 2000)
    read = sum(r.randint(20, 2000) for _ in range(decoding))
    return StepShape(decoding, 0, prompt, read, prompt * start + prompt * (prompt + 1) // 2)


def learned(noise: float = 0.0, steps: int = 1500, factor: float = 1.0, seed: int = 0) -> StepTimes:
    times, r = StepTimes(), random.Random(seed)
    teach(times, r, noise, steps, factor)
    return times


def teach(times: StepTimes, r: random.Random, noise: float, steps: int, factor: float = 1.0) -> None:
    for _ in range(steps):
        shape = any_shape(r)
        times.observe(shape, factor * true_s(shape) * math.exp(r.gauss(0.0, noise)))


def errors(times: StepTimes, factor: float = 1.0, seed: int = 99) -> list[float]:
    r, found = random.Random(seed), []
    for _ in range(200):
        shape = any_shape(r)
        predicted = times.predicted_s(shape)
        assert predicted is not None
        found.append(abs(math.log(predicted / (factor * true_s(shape)))))
    return sorted(found)


@pytest.mark.parametrize(("noise", "median", "p95"), [(0.0, 0.03, 0.12), (0.1, 0.06, 0.2)])
def test_steps_of_every_shape_are_predicted(noise: float, median: float, p95: float) -> None:
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
    assert times.predicted_s(StepShape(3)) is None
    times.observe(StepShape(2), 0.0)  # not measured
    assert times.predicted_s(StepShape(2)) is None
    times.observe(StepShape(2), 0.010)
    assert times.predicted_s(StepShape(2)) == pytest.approx(0.010)
    assert times.predicted_s(StepShape(2, prompt=10)) is None


def test_where_only_prompts_were_measured_all_of_it_is_the_positions() -> None:
    times = StepTimes()
    for _ in range(5):
        times.observe(StepShape(prompt=100), 0.1)
    assert times.position_s == pytest.approx(0.001)


def test_one_step_that_took_for_ever_changes_little() -> None:
    times = learned()
    shape = StepShape(8, read=4000)
    before = times.predicted_s(shape)
    times.observe(shape, 60.0)
    after = times.predicted_s(shape)
    assert before is not None
    assert after is not None
    assert after < 2.0 * before
    assert max(times.residuals) == pytest.approx(math.log(OUTLIER))


def test_residuals_are_as_wide_as_the_machines_noise() -> None:
    times = learned(0.1, steps=3000)
    r = times.residuals
    spread = math.sqrt(sum(x * x for x in r) / len(r))
    assert 0.08 < spread < 0.16


def test_the_shape_of_a_plan_counts_what_attention_reads() -> None:
    decoding = Chunk(1, 0, 40, 1, 1, 40)
    guessing = Chunk(2, 1, 10, 3, 3, 10, (7, 8))
    prompt = Chunk(3, 2, 100, 4, 0, 104)
    shape = shape_of([decoding, guessing, prompt])
    assert shape == StepShape(2, 2, 4, 41 + 13, 4 * 100 + 1 + 2 + 3 + 4)
    assert shape.positions == 8


def test_equal_steps_teach_the_same_to_the_last_bit() -> None:
    first, second = learned(0.1, steps=300), learned(0.1, steps=300)
    shape = StepShape(3, 1, 17, 900, 4000)
    assert first.predicted_s(shape) == second.predicted_s(shape)
