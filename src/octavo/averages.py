"""Exponential averages of measurements: each new one moves the average by a fixed part of the difference."""

from __future__ import annotations

import math


def smoothed(average: float | None, measured: float, weight: float) -> float:
    """The average after adding `measured` with `weight`, between 0 and 1. The first value is the average."""
    return measured if average is None else average + weight * (measured - average)


class FadingAverage:
    """An average whose value halves in each `half_life_s` without a measurement, so that a choice that was
    slow once is tried again."""

    def __init__(self, weight: float, half_life_s: float) -> None:
        self._weight = weight
        self._half_life_s = half_life_s
        self._average: float | None = None
        self._measured_at = 0.0

    def add(self, measured: float, now: float) -> None:
        """Add a measurement, made at `now` seconds."""
        self._average = smoothed(self._average, measured, self._weight)
        self._measured_at = now

    def at(self, now: float) -> float | None:
        """The average at `now` seconds; None: nothing was measured."""
        if self._average is None:
            return None
        return self._average * math.exp2(-(now - self._measured_at) / self._half_life_s)
