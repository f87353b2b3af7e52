"""A target for the inter-token latency (ITL) of a sequence, and the step size that it allows.

    gap        from one decoding step to the next: the step, and the time between two steps
    allowed    target * (1 - margin) - time between steps - a step of the decoding sequences

Prompt positions and drafts get the allowed time, at the measured cost of one more position. A sequence is
admitted only if the decoding ones leave time for it. Measured gaps steer the margin: one above the target
grows it, a shorter one shrinks it, so that `MISSES` of the gaps that it decides are above. Gaps that decoding
alone makes too long do not change it, and are counted apart.

A prompt always gets a position, and one sequence always runs: a target under their cost is missed. Without a
target `PrefillBudget` bounds the prompt positions of a step.
"""

from __future__ import annotations

from octavo.step.step_times import StepTimes, StepWork

MISSES = 0.03
GAIN = 0.05  # of the margin, for a gap that is too long
MARGIN_FIRST, MARGIN_MAX = 0.1, 0.6
POSITIONS_MIN = 1  # of prompts, per step
MORE_ROWS_MAX = 64  # admitted per plan


class LatencyTarget:
    """The operator's target in seconds (None: none), and its observance. Gaps are counted only with a
    target."""

    def __init__(self, times: StepTimes, seconds: float | None) -> None:
        self.seconds = seconds
        self.margin = MARGIN_FIRST  # part of the target
        self.num_gaps = 0  # between decoding steps, since a target was set
        self.num_missed = 0  # above the target, in steps with more than decoding
        self.num_missed_alone = 0  # above the target, in steps that only decode
        self.last_predicted_s = 0.0  # of the gap measured last
        self._times = times
        self._decoded_at: float | None = None  # end of the last step, if it decoded

    def set(self, seconds: float | None) -> None:
        """Set a target and reset the margin."""
        self.seconds, self.margin = seconds, MARGIN_FIRST
        self.num_gaps = self.num_missed = self.num_missed_alone = 0

    def positions(self, num_decoding: int) -> int | None:
        """Positions that a step may have besides so many decoding ones; None: no bound, or unknown."""
        left_s, position_s = self._left_s(num_decoding), self._times.position_s
        if left_s is None or position_s is None or num_decoding == 0:
            return None
        return max(0, int(left_s / position_s))

    def prompt_budget(self, num_decoding: int, most: int) -> int:
        """Prompt positions of a step, at most `most`."""
        positions = self.positions(num_decoding)
        return most if positions is None else min(most, max(POSITIONS_MIN, positions))

    def more_rows(self, num_running: int) -> int | None:
        """How many more sequences may run, given `num_running`: at least one must; None: no bound."""
        first = int(num_running == 0)
        left_s = self._left_s(num_running + first)
        if left_s is None:
            return None
        more = first
        while more < MORE_ROWS_MAX and (self._left_s(num_running + more + 1) or 0.0) > 0.0:
            more += 1
        return more

    def observe(self, work: StepWork, seconds: float, now: float) -> None:
        """A step with this work was committed at `now` and took so long; 0: not measured."""
        before, self._decoded_at = self._decoded_at, now if work.decoding else None
        if before is None or not work.decoding or seconds <= 0.0:
            return
        gap = now - before
        if self.seconds is not None:
            self._count(work, gap)
        self._times.observe_gap(max(0.0, gap - seconds))

    def note_idle(self) -> None:
        """Record that nothing runs: the next gap is a pause, and is not counted."""
        self._decoded_at = None

    def _count(self, work: StepWork, gap: float) -> None:
        step_s = self._times.predicted_s(work)
        self.last_predicted_s = 0.0 if step_s is None else self._times.between_s + step_s
        self.num_gaps += 1
        is_missed = self.seconds is not None and gap > self.seconds
        if work.positions == work.decoding:
            self.num_missed_alone += is_missed
            return
        self.num_missed += is_missed
        change = GAIN * (1 - MISSES) if is_missed else -GAIN * MISSES
        self.margin = min(MARGIN_MAX, max(0.0, self.margin + change))

    def _left_s(self, num_decoding: int) -> float | None:
        """The part of a gap left for other work than decoding."""
        if self.seconds is None or (decode_s := self._times.decode_s(num_decoding)) is None:
            return None
        return self.seconds * (1 - self.margin) - self._times.between_s - decode_s


class PrefillBudget:
    """Prompt positions per step without a target, bounded so that decoding sequences hardly slow down.

    With d decoding sequences and p prompts to compute, a mixed step may last 1 + SHARE * (1 + p / d) times a
    decoding one: one prompt with eight streams gets four fifths of a step's time; many prompts are not held
    up for one stream. While the cost of a position is unknown (always when seconds are not measured, as in
    traces) the whole budget is granted. If it is known but no decoding step was measured, as in a server that
    starts with prompts, one prompt position is granted: such a step serves as a decoding one.
    """

    SHARE = 0.7
    FLOOR = 8  # least prompt tokens per mixed step: a prompt always advances

    def __init__(self, step_tokens: int, times: StepTimes) -> None:
        self.step_tokens = step_tokens
        self._times = times

    def prompt_budget(self, num_decoding: int, num_prompts: int) -> int:
        """Prompt tokens for a step in which `num_decoding` sequences continue and `num_prompts` wait for
        prefill."""
        budget = max(0, self.step_tokens - num_decoding)
        position_s = self._times.position_s
        if num_decoding == 0 or position_s is None:
            return budget
        decode_s = self._times.decode_s(num_decoding)
        if decode_s is None:
            return min(budget, 1)
        allowed_s = self.SHARE * (1.0 + num_prompts / num_decoding) * decode_s
        return min(budget, max(self.FLOOR, int(allowed_s / position_s)))
