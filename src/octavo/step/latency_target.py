"""A target for the time between two tokens of a sequence (ITL), and what a step may carry under it.

    gap        from one step that decodes to the next: the step, and what is between two steps
    allowed    target * (1 - margin) - what is between steps - a step of those that decode

Prompts' positions and guesses get what is allowed, at the measured cost of one more position; a sequence is
admitted only if those that decode leave as much. The margin is steered by what gaps come to: one above the
target makes it grow, one below makes it shrink, so that `MISSES` of the gaps that it decides are above. Gaps
that decoding alone makes too long say nothing about it, and are counted apart.

A prompt always gets a position, and one sequence always runs: a target that is under their cost is missed.
"""

from __future__ import annotations

from octavo.step.step_times import StepShape, StepTimes

MISSES = 0.03
GAIN = 0.05  # of the margin, by a gap that is too long
MARGIN_FIRST, MARGIN_MAX = 0.1, 0.6
POSITIONS_MIN = 1  # of prompts in a step
MORE_ROWS_MAX = 64  # that are admitted in a plan


class LatencyTarget:
    """What the operator wants, in seconds (None: nothing), and how it is kept. Gaps are counted only where
    there is one."""

    def __init__(self, times: StepTimes, seconds: float | None) -> None:
        self.seconds = seconds
        self.margin = MARGIN_FIRST  # part of the target
        self.num_gaps = 0  # between decoding steps, since a target was set
        self.num_missed = 0  # above it, where the step carried more than decoding
        self.num_missed_alone = 0  # above it, of steps that decode alone
        self.last_predicted_s = 0.0  # of the gap that was measured last
        self._times = times
        self._decoded_at: float | None = None  # when the last step ended, if it decoded

    def set(self, seconds: float | None) -> None:
        """Another target; the margin begins anew."""
        self.seconds, self.margin = seconds, MARGIN_FIRST
        self.num_gaps = self.num_missed = self.num_missed_alone = 0

    def positions(self, num_decoding: int) -> int | None:
        """How many a step may carry beside so many that decode; None: no bound, or nothing is known."""
        left_s, position_s = self._left_s(num_decoding), self._times.position_s
        if left_s is None or position_s is None or num_decoding == 0:
            return None
        return max(0, int(left_s / position_s))

    def prompt_budget(self, num_decoding: int, most: int) -> int:
        """Prompt positions of a step, of `most`."""
        positions = self.positions(num_decoding)
        return most if positions is None else min(most, max(POSITIONS_MIN, positions))

    def more_rows(self, num_running: int) -> int | None:
        """How many more sequences may run beside so many: at least one must; None: no bound."""
        first = int(num_running == 0)
        left_s = self._left_s(num_running + first)
        if left_s is None:
            return None
        more = first
        while more < MORE_ROWS_MAX and (self._left_s(num_running + more + 1) or 0.0) > 0.0:
            more += 1
        return more

    def observe(self, shape: StepShape, seconds: float, now: float) -> None:
        """A step of this shape was committed at `now`, which took so long; 0: not measured."""
        before, self._decoded_at = self._decoded_at, now if shape.decoding else None
        if before is None or not shape.decoding or seconds <= 0.0:
            return
        gap = now - before
        if self.seconds is not None:
            self._count(shape, gap)
        self._times.observe_gap(max(0.0, gap - seconds))

    def rest(self) -> None:
        """Nothing runs: the next step's gap is a pause."""
        self._decoded_at = None

    def _count(self, shape: StepShape, gap: float) -> None:
        step_s = self._times.predicted_s(shape)
        self.last_predicted_s = 0.0 if step_s is None else self._times.between_s + step_s
        self.num_gaps += 1
        is_missed = self.seconds is not None and gap > self.seconds
        if shape.positions == shape.decoding:
            self.num_missed_alone += is_missed
            return
        self.num_missed += is_missed
        change = GAIN * (1 - MISSES) if is_missed else -GAIN * MISSES
        self.margin = min(MARGIN_MAX, max(0.0, self.margin + change))

    def _left_s(self, num_decoding: int) -> float | None:
        """Of a gap, for what is not decoding."""
        if self.seconds is None or (decode_s := self._times.decode_s(num_decoding)) is None:
            return None
        return self.seconds * (1 - self.margin) - self._times.between_s - decode_s
