"""Exponential averages of measurements."""

from __future__ import annotations

from octavo.averages import FadingAverage, smoothed


def test_the_first_measurement_is_the_average_and_others_move_it_by_their_weight() -> None:
    assert smoothed(None, 4.0, 0.25) == 4.0
    assert smoothed(4.0, 8.0, 0.25) == 5.0
    assert smoothed(0.5, True, 0.5) == 0.75


def test_an_average_halves_in_each_half_life_without_a_measurement() -> None:
    average = FadingAverage(weight=0.5, half_life_s=10.0)
    assert average.at(5.0) is None
    average.add(8.0, now=100.0)
    assert [average.at(now) for now in (100.0, 110.0, 120.0)] == [8.0, 4.0, 2.0]
    average.add(4.0, now=120.0)  # moves the average itself, not what it has faded to
    assert average.at(120.0) == 6.0
