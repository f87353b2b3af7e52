"""The cost of a step by its number of positions, measured continuously.

    cost(n) = scale * first(n) * correction(n)

The scale follows the last steps quickly: contexts grow, other programs use the machine. The shape alone
decides whether more positions pay. It follows slowly, and only when a step's size differs from that of the
step before: a slowdown of steps of one size does not affect others. The first shape is that of a machine on
which a step of 16 positions costs 3.5 times a step of one. Each measured size has its own correction. Sizes
between two of them are interpolated, those beyond take the nearest. A size without recent measurement is
forgotten, and so tried again.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_FIRST_SIZES, _FIRST_COSTS = (1, 4, 16, 64), (1.0, 1.2, 3.5, 13.0)
_SCALE_GAIN, _SHAPE_GAIN = 0.3, 0.1
_OUTLIER = 4.0  # a step that took so many times as long is not representative
_EXACT_TO = 17  # larger sizes are rounded to an eighth
_FRESH_STEPS, _KEPT_STEPS = 256, 2048  # so long a measured size is trusted, and kept


@dataclass(slots=True)
class _SizeCost:
    """One size: its correction, a logarithm; its number of measurements, and the step of the last one."""

    correction: float
    count: int = 0
    seen_at: int = 0


class SizeCosts:
    """The curve. `observe` gets steps without prompts, and ignores unmeasured ones (0 seconds)."""

    def __init__(self, padded: Callable[[int], int] | None = None) -> None:
        """`padded`: the positions that a device computes for a step of so many."""
        self._padded = padded
        self._measured: dict[int, _SizeCost] = {}
        self._sizes: list[int] = []  # measured ones, ascending
        self._scale: float | None = None
        self._size_before = 0  # of the last step; 0: not usable
        self._num_steps = 0

    def is_stale(self, num_positions: int) -> bool:
        """True if that size was not measured for long, though others were."""
        measured = self._measured.get(self._size_of(num_positions))
        return self._num_steps - (0 if measured is None else measured.seen_at) > _FRESH_STEPS

    def is_unknown(self, num_positions: int) -> bool:
        """True if that size was never measured, or not recently."""
        return self._size_of(num_positions) not in self._measured or self.is_stale(num_positions)

    def of(self, num_positions: int) -> float:
        """The cost of a step with one position or more, relative to others of this curve. O(log sizes)."""
        num_positions = self._computed(num_positions)
        sizes = self._sizes
        place = bisect.bisect_left(sizes, num_positions)
        if 0 < place < len(sizes):
            low, high = sizes[place - 1], sizes[place]
            at_low, at_high = self._corrected(low, low), self._corrected(high, high)
            return at_low + (at_high - at_low) * (num_positions - low) / (high - low)
        return self._corrected(num_positions, sizes[place and -1]) if sizes else self.at_first(num_positions)

    def at_first(self, num_positions: int) -> float:
        """The cost by the first shape."""
        return _on_lines(_FIRST_SIZES, _FIRST_COSTS, num_positions)

    def at_best(self, num_positions: int) -> float:
        """The cost on a machine where more positions are almost free: decides which sizes to measure."""
        return math.sqrt(self.at_first(num_positions))

    def observe(self, num_positions: int, seconds: float) -> None:
        """A step of so many positions took so long."""
        if seconds <= 0.0 or num_positions < 1:
            return
        size, expected = self._size_of(num_positions), self.of(num_positions)
        if self._scale is None:
            self._scale = seconds / expected
        ratio = seconds / (self._scale * expected)
        before, self._size_before = self._size_before, size
        self._num_steps += 1
        if self._num_steps % _FRESH_STEPS == 0:
            self._forget()
        is_news = self.is_unknown(size) and before not in (0, size)
        if is_news:  # trusted, within bounds: as an outlier it would be one again at each later try
            ratio = min(_OUTLIER, max(1 / _OUTLIER, ratio))
        elif not 1 / _OUTLIER < ratio < _OUTLIER:
            self._scale *= 1.0 + _SCALE_GAIN * (min(ratio, _OUTLIER) - 1.0)
            self._size_before = 0
            return
        self._correct(size, before, ratio)

    def _correct(self, size: int, before: int, ratio: float) -> None:
        """The step took `ratio` times the expected time."""
        assert self._scale is not None
        is_stale = self.is_stale(size)
        measured = self._measured.get(size)
        if measured is None:
            measured = _SizeCost(math.log(self.of(size) / self.at_first(size)))
            self._measured[size] = measured
            bisect.insort(self._sizes, size)
        measured.seen_at = self._num_steps
        if before in (0, size):
            self._scale *= ratio**_SCALE_GAIN
            return
        # The first few are averaged; a size not seen for long is averaged as if seen once.
        measured.count = 1 if is_stale and measured.count else measured.count
        gain = max(_SHAPE_GAIN, 1.0 / (measured.count + 1))
        measured.count += 1
        measured.correction += gain * math.log(ratio)
        self._scale *= ratio ** (_SCALE_GAIN * (1.0 - gain))

    @property
    def is_measured(self) -> bool:
        """Whether any step was measured."""
        return self._scale is not None

    def seconds(self, num_positions: int) -> float:
        """The time of a step with one position or more, after a first measurement."""
        assert self._scale is not None
        return self._scale * self.of(num_positions)

    def table(self) -> list[tuple[int, float]]:
        """Measured sizes and the seconds of their steps."""
        return [] if self._scale is None else [(size, self._scale * self.of(size)) for size in self._sizes]

    def _computed(self, num_positions: int) -> int:
        """Positions including padding."""
        return num_positions if self._padded is None else self._padded(num_positions)

    def _size_of(self, num_positions: int) -> int:
        """The size under which such a step is measured."""
        return _rounded(self._computed(num_positions))

    def _corrected(self, num_positions: int, nearest: int) -> float:
        """The first shape, corrected as at a measured size."""
        return self.at_first(num_positions) * math.exp(self._measured[nearest].correction)

    def _forget(self) -> None:
        """Drop sizes without recent measurement."""
        self._sizes = [s for s in self._sizes if self._num_steps - self._measured[s].seen_at < _KEPT_STEPS]
        self._measured = {size: self._measured[size] for size in self._sizes}


def _on_lines(sizes: Sequence[int], costs: Sequence[float], num_positions: int) -> float:
    """Interpolate between the two points around it, or extrapolate from the last two."""
    place = min(max(1, bisect.bisect_left(sizes, num_positions)), len(sizes) - 1)
    low, high = sizes[place - 1], sizes[place]
    return costs[place - 1] + (costs[place] - costs[place - 1]) * (num_positions - low) / (high - low)


def _rounded(size: int) -> int:
    """Round to one of few sizes."""
    if size <= _EXACT_TO:
        return size
    step = 1 << (size.bit_length() - 4)
    return size // step * step
