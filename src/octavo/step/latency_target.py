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

from octavo.averages import smoothed
from octavo.step.prefill_budget import PrefillBudget

MISSES = 0.03
GAIN = 0.05  # of the margin, by a gap that is too long
MARGIN_FIRST, MARGIN_MAX = 0.1, 0.6
POSITIONS_MIN = 1  # of prompts in a step
_SMOOTHING = 0.2


class LatencyTarget:
    """What the operator wants, in seconds (None: nothing), and how it is kept. Steps are observed only where
    there is one."""

    def __init__(self, costs: PrefillBudget, seconds: float | None) -> None:
        self.seconds = seconds
        self.margin = MARGIN_FIRST  # part of the target
        self.num_gaps = 0  # between decoding steps, since a target was set
        self.num_missed = 0  # above it, where the step carried more than decoding
        self.num_missed_alone = 0  # above it, of steps that decode alone
        self.last_predicted_s = 0.0  # of the gap that was measured last
        self._costs = costs
        self._between_s = 0.0
        self._decoded_at: float | None = None  # when the last step ended, if it decoded

    def set(self, seconds: float | None) -> None:
        """Another target; the margin begins anew."""
        self.seconds, self.margin, self._decoded_at = seconds, MARGIN_FIRST, None
        self.num_gaps = self.num_missed = self.num_missed_alone = 0

    def positions(self, num_decoding: int) -> int | None:
        """How many a step may carry beside so many that decode; None: no bound, or nothing is known."""
        left_s = self._left_s(num_decoding)
        if left_s is None or num_decoding == 0:
            return None
        assert self._costs.token_s is not None
        return max(0, int(left_s / self._costs.token_s))

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
        assert self._costs.token_s is not None
        return first + max(0, int(left_s / self._costs.token_s))

    def predicted_s(self, num_decoding: int, num_more: int) -> float | None:
        """Of the gap that such a step makes, without the margin; None: not known."""
        decode_s = self._costs.decode_seconds(num_decoding)
        if decode_s is None or self._costs.token_s is None:
            return None
        return self._between_s + decode_s + num_more * self._costs.token_s

    def observe(self, num_decoding: int, num_more: int, seconds: float, now: float) -> None:
        """A step was committed at `now`, which took so long (0: not measured), with so many sequences that
        decode, a position each, and so many positions more."""
        before, self._decoded_at = self._decoded_at, now if num_decoding else None
        if self.seconds is None or before is None or not num_decoding or seconds <= 0.0:
            return
        gap, self.last_predicted_s = now - before, self.predicted_s(num_decoding, num_more) or 0.0
        self._between_s = smoothed(self._between_s, max(0.0, gap - seconds), _SMOOTHING)
        self.num_gaps += 1
        is_missed = gap > self.seconds
        if num_more == 0:
            self.num_missed_alone += is_missed
            return
        self.num_missed += is_missed
        change = GAIN * (1 - MISSES) if is_missed else -GAIN * MISSES
        self.margin = min(MARGIN_MAX, max(0.0, self.margin + change))

    def _left_s(self, num_decoding: int) -> float | None:
        """Of a gap, for what is not decoding."""
        if self.seconds is None or (decoding_s := self.predicted_s(num_decoding, 0)) is None:
            return None
        return self.seconds * (1 - self.margin) - decoding_s
