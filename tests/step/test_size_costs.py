"""What steps cost, learned from noisy times: the curve is true, follows the machine, and is not fooled."""

import itertools
import math
import random

import pytest

from octavo.step.size_costs import SizeCosts
from octavo.units import padded_positions

SIZES = range(1, 17)


def true_cost(num_positions):
    """A step of more than 4 positions needs a second pass."""
    return 0.010 * (1.0 + 0.1 * (num_positions - 1) + (0.8 if num_positions > 4 else 0.0))


def learned(seed=0, noise=0.0, steps=2000):
    costs, r = SizeCosts(), random.Random(seed)
    for _ in range(steps):
        size = r.randint(1, 17)
        costs.observe(size, true_cost(size) * math.exp(r.gauss(0.0, noise)))
    return costs


def shape(costs):
    """What steps cost beside one of one position."""
    return [costs.of(size) / costs.of(1) for size in SIZES]


TRUE_SHAPE = [true_cost(size) / true_cost(1) for size in SIZES]


@pytest.mark.parametrize(("noise", "off_by"), [(0.0, 0.05), (0.05, 0.10), (0.10, 0.20)])
@pytest.mark.parametrize("seed", range(5))
def test_the_curve_is_true_after_noisy_times(seed, noise, off_by):
    costs = learned(seed, noise)
    assert shape(costs) == pytest.approx(TRUE_SHAPE, rel=off_by)
    seconds = dict(costs.table())
    assert [seconds[size] for size in SIZES] == pytest.approx([true_cost(n) for n in SIZES], rel=off_by)


def test_a_curve_that_never_learned_anything_grows_and_is_not_measured():
    costs = SizeCosts()
    assert costs.table() == []
    curve = [costs.of(size) for size in range(1, 200)]
    assert curve == sorted(curve)
    assert 0.0 < curve[0] < curve[-1]


def test_sizes_that_a_device_computes_alike_are_measured_as_one():
    costs, r = SizeCosts(padded_positions), random.Random(4)
    for _ in range(400):
        size = r.choice((26, 32, 33, 35, 39))
        costs.observe(size, 0.002 if size <= 32 else 0.003)
    assert costs.of(33) == costs.of(40) == pytest.approx(1.5 * costs.of(32), rel=0.05)
    assert [size for size, _ in costs.table()] == [32, 40]
    assert not costs.is_unknown(34)
    assert costs.is_unknown(41)


def test_the_first_step_sets_the_scale_and_leaves_the_shape():
    costs, before = SizeCosts(), shape(SizeCosts())
    costs.observe(1, 0.25)
    assert costs.table()
    assert shape(costs) == before
    assert dict(costs.table())[1] == 0.25


@pytest.mark.parametrize("seconds", [0.0, -1.0])
@pytest.mark.parametrize("num_positions", [3, 1000])
def test_no_seconds_teach_nothing(seconds, num_positions):
    costs = SizeCosts()
    costs.observe(num_positions, seconds)
    assert not costs.table()
    costs = learned()
    before = costs.table()
    costs.observe(num_positions, seconds)
    assert costs.table() == before


def test_a_step_without_positions_teaches_nothing():
    costs = learned()
    before = costs.table()
    costs.observe(0, 1.0)
    assert costs.table() == before


@pytest.mark.parametrize("factor", [0.3, 0.5, 2.0, 3.5, 10.0])
def test_a_slower_machine_is_followed_within_few_steps_and_the_shape_stays(factor):
    costs, r = learned(), random.Random(1)
    before = shape(costs)
    for _ in range(15):
        size = r.choice(SIZES)
        costs.observe(size, factor * true_cost(size))
    seconds = dict(costs.table())
    assert [seconds[n] for n in SIZES] == pytest.approx([factor * true_cost(n) for n in SIZES], rel=0.2)
    assert shape(costs) == pytest.approx(before, rel=0.2)


@pytest.mark.parametrize("factor", [100.0, 4.1, 0.2, 0.001])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_an_outlier_changes_no_shape(factor, size):
    costs = learned()
    before = shape(costs)
    costs.observe(size, factor * true_cost(size))
    assert shape(costs) == before


@pytest.mark.parametrize("factor", [100.0, 0.001])
def test_outliers_among_steps_of_one_size_change_no_shape(factor):
    """While no draft pays, only steps of one size are measured: what they spoil is never mended."""
    costs = learned()
    before = shape(costs)
    for _ in range(10):
        costs.observe(1, factor * true_cost(1))
        for _ in range(30):
            costs.observe(1, true_cost(1))
    assert shape(costs) == pytest.approx(before, rel=0.3)


def test_the_shape_follows_a_new_one():
    """As where another kernel is chosen, or the experts of more positions are others."""
    costs, r = learned(), random.Random(2)
    for _ in range(3000):
        size = r.choice(SIZES)
        costs.observe(size, 0.010 * size)
    assert shape(costs) == pytest.approx(list(SIZES), rel=0.1)


def test_sizes_between_measured_ones_lie_on_a_line():
    costs = SizeCosts()
    for _ in range(500):
        for size in (1, 4, 8):
            costs.observe(size, 0.010 * size)
    low, high = costs.of(4), costs.of(8)
    assert [costs.of(n) for n in (5, 6, 7)] == pytest.approx([low + (high - low) * k / 4 for k in (1, 2, 3)])


@pytest.mark.parametrize("seed", range(20))
def test_an_unmeasured_size_lies_between_its_neighbours(seed):
    costs, r = SizeCosts(), random.Random(seed)
    for size in r.sample(range(1, 400), 12):
        for _ in range(5):
            costs.observe(size, r.uniform(0.010, 0.030))
    sizes = [size for size, _ in costs.table()]
    for low, high in itertools.pairwise(sizes):
        ends = sorted((costs.of(low), costs.of(high)))
        for size in range(low, high + 1):
            assert ends[0] <= costs.of(size) <= ends[1]


def test_a_size_above_all_measured_ones_costs_no_less_than_the_largest():
    costs = SizeCosts()
    for _ in range(200):
        for size, seconds in ((1, 0.010), (32, 0.050), (64, 0.040)):
            costs.observe(size, seconds)
    assert costs.of(64) < costs.of(32)
    assert costs.of(10_000) >= costs.of(65) >= costs.of(64)


@pytest.mark.parametrize("seed", range(3))
def test_few_sizes_are_kept_of_many(seed):
    costs, r = SizeCosts(), random.Random(seed)
    told = [*range(1, 200), *(r.randint(1, 10_000) for _ in range(5000))]
    r.shuffle(told)
    for size in told:
        costs.observe(size, 0.001 * (10 + size))
    table = costs.table()
    assert len(table) < 100
    assert [size for size, _ in table] == sorted({size for size, _ in table})
    seen = {size for size in told[-2048:] if size <= 17}  # what was not measured since is forgotten
    assert seen == {size for size, _ in table if size <= 17}


@pytest.mark.parametrize("times", [50.0, 0.02])
def test_a_first_step_of_its_size_that_was_far_off_is_put_right(times):
    """A pause, or a clock that jumped: the size is tried again now and then, and believed again."""
    costs = SizeCosts()
    for _ in range(20):
        costs.observe(1, 0.010)
    costs.observe(5, 0.012 * times)
    for _ in range(12):
        for _ in range(260):
            costs.observe(1, 0.010)
        costs.observe(5, 0.012)
    assert 0.8 < costs.of(5) / costs.of(1) / 1.2 < 1.25
