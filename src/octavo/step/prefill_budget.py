"""How many positions of prompts a step may carry, so that decoding sequences hardly notice."""

from __future__ import annotations

from octavo.step.step_times import StepTimes


class PrefillBudget:
    """The rule where no target for tokens' time is set.

    With d sequences decoding and p prompts to be computed, a mixed step may last 1 + SHARE * (1 + p / d)
    times a decoding one: one prompt beside eight streams takes four fifths of a step's time; many prompts
    beside one stream are not held up for its sake. Until the cost of a position is known (and always when
    seconds are not measured, as in traces) the whole budget is granted. Where it is known and no decoding
    step was measured, as in a server that starts under prompts, one position of a prompt is granted: such a
    step is as good as a decoding one.
    """

    SHARE = 0.7
    FLOOR = 8  # prompt tokens per mixed step at least: a prompt always advances

    def __init__(self, step_tokens: int, times: StepTimes) -> None:
        self.step_tokens = step_tokens
        self._times = times

    def prompt_budget(self, num_decoding: int, num_prompts: int) -> int:
        """Prompt tokens for a step in which `num_decoding` sequences continue and `num_prompts` want to
        begin."""
        budget = max(0, self.step_tokens - num_decoding)
        position_s = self._times.position_s
        if num_decoding == 0 or position_s is None:
            return budget
        decode_s = self._times.decode_s(num_decoding)
        if decode_s is None:
            return min(budget, 1)
        allowed_s = self.SHARE * (1.0 + num_prompts / num_decoding) * decode_s
        return min(budget, max(self.FLOOR, int(allowed_s / position_s)))
