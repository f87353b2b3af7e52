"""What a step costs by the positions that it computes: measured, and measured again with every step.

    cost(n) = scale * shape(n)

The scale follows the last steps quickly: contexts grow, other programs want the machine. The shape, which is
all that matters for whether more positions pay, follows slowly, and only where a step's size differs from
that of the step before: what slows down steps of one size says nothing about others. Between sizes that were
measured it is a line. Until a size is measured it is taken from the first shape: that of a machine on which a
step of 16 positions costs as much as 2.5 of one.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

_FIRST_SHAPE = {1: 1.0, 16: 2.5, 64: 8.5}
_SCALE_GAIN, _SHAPE_GAIN = 0.3, 0.1
_STALE_GAIN = 0.5  # of a shape that was not measured for long
_OUTLIER = 4.0  # a step that took so many times as long says nothing about steps
_EXACT_TO = 17  # above, sizes are rounded to an eighth
_FRESH_STEPS = 256  # for which a measured size is believed


class StepCosts:
    """The curve. `observe` is told steps without prompts; an unmeasured one (0 seconds) teaches nothing."""

    def __init__(self) -> None:
        self._shape = dict(_FIRST_SHAPE)
        self._sizes = sorted(self._shape)
        self._scale: float | None = None
        self._size_before = 0  # of the last step; 0: it says nothing
        self._num_steps = 0
        self._seen_at: dict[int, int] = {}  # by size: the step that showed it last

    @property
    def is_measured(self) -> bool:
        """Whether any step was."""
        return self._scale is not None

    def is_stale(self, num_positions: int) -> bool:
        """True where no step of that size was measured for long, though others were."""
        return self._num_steps - self._seen_at.get(_rounded(num_positions), 0) > _FRESH_STEPS

    def of(self, num_positions: int) -> float:
        """Of a step of one position or more, relative to others of this curve. O(log sizes)."""
        if num_positions in self._shape:
            return self._shape[num_positions]
        return _between(self._shape, self._sizes, num_positions)

    def at_first(self, num_positions: int) -> float:
        """By the first shape, whatever was measured."""
        return _between(_FIRST_SHAPE, sorted(_FIRST_SHAPE), num_positions)

    def observe(self, num_positions: int, seconds: float) -> None:
        """A step of so many positions took so long."""
        if seconds <= 0.0 or num_positions < 1:
            return
        size = _rounded(num_positions)
        expected = self.of(size)
        if self._scale is None:
            self._scale = seconds / expected
        ratio = seconds / (self._scale * expected)
        before, self._size_before = self._size_before, size
        self._num_steps += 1
        if not 1 / _OUTLIER < ratio < _OUTLIER:
            self._scale *= 1.0 + _SCALE_GAIN * (min(ratio, _OUTLIER) - 1.0)
            self._size_before = 0
            return
        self._scale *= ratio**_SCALE_GAIN
        gain = _STALE_GAIN if self.is_stale(size) else _SHAPE_GAIN
        self._seen_at[size] = self._num_steps
        if before in (0, size):
            return
        if size not in self._shape:
            bisect.insort(self._sizes, size)
        self._shape[size] = expected * ratio**gain

    def table(self) -> list[tuple[int, float]]:
        """Sizes and what their steps cost, in seconds; empty until one is measured."""
        return [] if self._scale is None else [(n, self._scale * self._shape[n]) for n in self._sizes]


def _between(shape: Mapping[int, float], sizes: Sequence[int], num_positions: int) -> float:
    """On the line through the two measured sizes around it, or the two largest ones."""
    place = min(max(1, bisect.bisect_left(sizes, num_positions)), len(sizes) - 1)
    low, high = sizes[place - 1], sizes[place]
    slope = (shape[high] - shape[low]) / (high - low)
    return shape[low] + max(0.0, slope) * (num_positions - low)


def _rounded(size: int) -> int:
    """Few sizes are kept apart."""
    if size <= _EXACT_TO:
        return size
    step = 1 << (size.bit_length() - 4)
    return size // step * step
