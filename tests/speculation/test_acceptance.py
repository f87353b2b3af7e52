"""Rates of right guesses: what they learn, and what they never say."""

import random

import pytest

from octavo.speculation.goodput import _MOST, Acceptance, Fate

BUCKETS = [(0,), (1,), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63, 64, 100_000)]
TRUTHS = [0.05, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0]


def taught(truths, seed=0, guesses=4000):
    acceptance, r = Acceptance(), random.Random(seed)
    for _ in range(guesses):
        bucket = r.randrange(len(BUCKETS))
        acceptance.learn(r.choice(BUCKETS[bucket]), r.random() < truths[bucket])
    return acceptance


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("truths", [TRUTHS, TRUTHS[::-1]], ids=["longer is likelier", "shorter is likelier"])
def test_rates_come_near_the_truth(truths, seed):
    acceptance = taught(truths, seed)
    for matches, truth in zip(BUCKETS, truths, strict=True):
        for match in matches:
            assert acceptance.rate(match) == pytest.approx(truth, abs=0.25)
    mean_error = sum(acceptance.rate(b[0]) - t for b, t in zip(BUCKETS, truths, strict=True)) / len(BUCKETS)
    assert abs(mean_error) < 0.1


def test_at_first_a_longer_match_is_likelier():
    rates = [Acceptance().rate(matches[0]) for matches in BUCKETS]
    assert rates == sorted(rates)
    assert len(set(rates)) == len(rates)


@pytest.mark.parametrize("bucket", range(len(BUCKETS)))
@pytest.mark.parametrize("is_right", [True, False])
def test_a_guess_teaches_matches_of_its_length_and_no_others(bucket, is_right):
    before, acceptance = Acceptance(), Acceptance()
    for _ in range(50):
        acceptance.learn(BUCKETS[bucket][0], is_right)
    for other, matches in enumerate(BUCKETS):
        for match in matches:
            rate, was = acceptance.rate(match), before.rate(match)
            if other != bucket:
                assert rate == was
            else:
                assert rate > was if is_right else rate < was or was == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_rates_stay_between_none_and_the_most(seed):
    r = random.Random(seed)
    acceptance, fates = Acceptance(), [Fate() for _ in range(3)]
    for luck in (1.0, 0.0, 1.0, 0.5):
        for _ in range(300):
            fate = r.choice(fates)
            fate.learn(acceptance, r.choice([0, 1, 2, 5, 9, 20, 1000]), r.random() < luck)
            for match in (0, 1, 2, 4, 8, 16, 32, 10_000):
                assert 0.0 <= acceptance.rate(match) <= 1.0
                assert all(0.0 <= one.rate(acceptance, match) <= _MOST for one in fates)


def test_a_new_sequence_is_like_all():
    acceptance = taught(TRUTHS)
    for matches in BUCKETS:
        assert Fate().rate(acceptance, matches[0]) == min(_MOST, acceptance.rate(matches[0]))


def among_others(fate, others, acceptance, guesses, is_right):
    """All others are right three times of four; returns the sequence's rate after each of its guesses."""
    rates = []
    for index in range(guesses):
        for place, other in enumerate(others):
            other.learn(acceptance, 8, (index + place) % 4 != 0)
        fate.learn(acceptance, 8, is_right)
        rates.append(fate.rate(acceptance, 8))
    return rates


def test_a_sequence_whose_guesses_fail_is_trusted_less_and_recovers():
    acceptance, fate, others = Acceptance(), Fate(), [Fate() for _ in range(8)]
    first = fate.rate(acceptance, 8)
    falling = among_others(fate, others, acceptance, 12, False)
    assert falling == sorted(falling, reverse=True)
    assert falling[0] < first
    assert falling[-1] < 0.2
    # The others hardly notice.
    assert all(other.rate(acceptance, 8) > 0.5 for other in others)
    rising = among_others(fate, others, acceptance, 12, True)
    assert rising[0] > falling[-1]
    assert rising[-1] > 0.6


def test_a_sequence_whose_guesses_are_better_than_those_of_all_is_trusted_more():
    acceptance, fate, others = Acceptance(), Fate(), [Fate() for _ in range(8)]
    among_others(fate, others, acceptance, 30, True)
    assert fate.rate(acceptance, 8) > 0.9
    assert Fate().rate(acceptance, 8) < 0.85


def test_a_long_row_of_right_guesses_is_forgotten_as_fast_as_a_short_one():
    after = []
    for right in (40, 4000):
        acceptance, fate, others = Acceptance(), Fate(), [Fate() for _ in range(8)]
        among_others(fate, others, acceptance, right, True)
        after.append(among_others(fate, others, acceptance, 12, False)[-1])
    assert after[0] == pytest.approx(after[1], abs=0.02)
    assert after[1] < 0.4


def test_a_long_row_of_failures_is_forgotten_as_fast_as_a_short_one():
    after = []
    for failures in (40, 4000):
        acceptance, fate, others = Acceptance(), Fate(), [Fate() for _ in range(8)]
        among_others(fate, others, acceptance, failures, False)
        after.append(among_others(fate, others, acceptance, 12, True)[-1])
    assert after[0] == pytest.approx(after[1], abs=0.02)


def test_all_learn_of_a_guess_of_one():
    acceptance, before = Acceptance(), Acceptance().rate(8)
    Fate().learn(acceptance, 8, False)
    assert acceptance.rate(8) < before


def test_a_copy_has_its_original_s_fate_and_then_its_own():
    def beside_all(one):
        return one.rate(acceptance, 8) / acceptance.rate(8)

    acceptance, fate = Acceptance(), Fate()
    for _ in range(5):
        fate.learn(acceptance, 8, False)
    copy, before = fate.copy(), beside_all(fate)
    assert beside_all(copy) == before
    for _ in range(5):
        copy.learn(acceptance, 8, True)
    assert beside_all(copy) > 2.0 * before
    assert beside_all(fate) == pytest.approx(before)
