"""How many guesses a step takes, against all ways to take any."""

import itertools
import math
import random

import pytest

from octavo.speculation.goodput import _GAIN_LEAST, DraftCandidate, choose


def candidate(rates, limit=None):
    """Rates may end before the limit: no guess behind them is asked for."""
    return DraftCandidate(len(rates) if limit is None else limit, rates.__getitem__)


def evenly(num_positions):
    return 10.0 + num_positions


def free(num_positions):
    return 1.0


def expected(rates, count):
    """Tokens that come of the first `count` guesses."""
    return sum(math.prod(rates[: place + 1]) for place in range(count))


def goodput(all_rates, counts, num_positions, num_tokens, cost):
    tokens = num_tokens + sum(expected(rates, count) for rates, count in zip(all_rates, counts, strict=True))
    return tokens / cost(num_positions + sum(counts))


def curve(r, kind, longest):
    """Costs of steps; bumpy ones may fall as they grow."""
    costs, sum_ = [], 1.0
    for _ in range(longest + 1):
        sum_ += r.choice([0.0, 0.02, 0.2, 1.0])
        costs.append(sum_ if kind == "monotone" else sum_ * r.uniform(0.7, 1.4))
    return costs.__getitem__


@pytest.mark.parametrize("kind", ["monotone", "bumpy"])
@pytest.mark.parametrize("seed", range(150))
def test_no_other_counts_make_more_tokens_a_second(seed, kind):
    r = random.Random(seed)
    rate = r.choice([r.random, lambda: r.uniform(0.7, 0.98), lambda: r.choice([0.0, 0.5, 0.98, 1.0])])
    limits = [r.randrange(5) for _ in range(r.randrange(1, 4))]
    all_rates = [[rate() for _ in range(limit)] for limit in limits]
    num_positions, num_tokens, budget = r.randrange(1, 6), r.randrange(1, 6), r.randrange(13)
    cost = curve(r, kind, num_positions + sum(limits))
    counts = choose([candidate(rates) for rates in all_rates], num_positions, num_tokens, cost, budget)

    assert all(0 <= count <= limit for count, limit in zip(counts, limits, strict=True))
    assert sum(counts) <= budget
    ways = [way for way in itertools.product(*(range(limit + 1) for limit in limits)) if sum(way) <= budget]
    best = max(goodput(all_rates, way, num_positions, num_tokens, cost) for way in ways)
    without = goodput(all_rates, [0] * len(limits), num_positions, num_tokens, cost)
    if best > _GAIN_LEAST * without:
        assert abs(goodput(all_rates, counts, num_positions, num_tokens, cost) - best) < 1e-9
    else:
        assert counts == [0] * len(limits)


def test_nothing_offered_takes_nothing():
    assert choose([], 1, 1, evenly, 9) == []
    assert choose([candidate([]), candidate([])], 2, 2, evenly, 9) == [0, 0]


def test_a_candidate_without_guesses_is_never_asked_for_a_rate():
    assert choose([candidate([]), candidate([0.9])], 2, 2, free, 9) == [0, 1]


def test_a_limit_holds_where_more_would_pay():
    assert choose([candidate([0.9] * 4, limit=2)], 1, 1, free, 9) == [2]


@pytest.mark.parametrize("budget", range(8))
def test_a_budget_holds_where_more_would_pay(budget):
    counts = choose([candidate([0.9] * 4), candidate([0.8] * 3)], 2, 2, free, budget)
    assert sum(counts) == min(budget, 7)


@pytest.mark.parametrize("budget", [0, -3])
def test_no_budget_takes_nothing(budget):
    assert choose([candidate([0.9])], 1, 1, free, budget) == [0]


def test_the_likelier_guess_goes_first():
    assert choose([candidate([0.5]), candidate([0.9, 0.9]), candidate([0.7])], 3, 3, free, 1) == [0, 1, 0]


def test_a_second_guess_is_worth_what_the_first_leaves_of_it():
    # 0.8 * 0.8 is worth less than 0.7, and more than 0.6.
    assert choose([candidate([0.8, 0.8]), candidate([0.7])], 2, 2, free, 2) == [1, 1]
    assert choose([candidate([0.8, 0.8]), candidate([0.6])], 2, 2, free, 2) == [2, 0]


def test_guesses_behind_one_that_is_never_right_are_not_taken():
    assert choose([candidate([0.9, 0.0, 0.9])], 1, 1, lambda n: 1.0 + 0.1 * n, 9) == [1]


def test_a_cost_step_is_filled_and_not_climbed():
    def four_as_cheap_as_three(num_positions):
        return {1: 1.0, 2: 1.3, 3: 1.8, 4: 1.8}.get(num_positions, 4.0)

    assert choose([candidate([0.8] * 8)], 1, 1, four_as_cheap_as_three, 8) == [3]


def test_a_guess_that_does_not_pay_is_taken_with_those_that_do():
    def eight_as_cheap_as_two(num_positions):
        return 1.0 if num_positions == 1 else 2.0

    # 1.9 / 2 is worse than 1 / 1, and 1.9 + 0.81 + ... of 7 guesses is better.
    assert choose([candidate([0.9])], 1, 1, eight_as_cheap_as_two, 8) == [0]
    assert choose([candidate([0.9] * 7)], 1, 1, eight_as_cheap_as_two, 8) == [7]


@pytest.mark.parametrize(("rate", "taken"), [(0.039, 0), (0.041, 1)])
def test_a_gain_of_less_than_a_twenty_fifth_is_none(rate, taken):
    assert choose([candidate([rate])], 1, 1, free, 1) == [taken]


def test_a_step_that_makes_no_tokens_gains_by_any_guess():
    assert choose([candidate([0.1])], 1, 0, evenly, 1) == [1]
