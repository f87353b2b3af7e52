"""Prompt positions per step, bounded so that decoding sequences hardly slow down."""

from __future__ import annotations

from octavo.step.step_times import StepTimes


class PrefillBudget:
    """The rule without a target for inter-token latency.

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
