"""How many positions of a prompt a step may carry: learned from measured steps."""

from __future__ import annotations

from octavo.averages import smoothed


class PrefillBudget:
    """How many prompt tokens a step may carry beside decoding sequences, so that these hardly notice.

    It learns from measured steps: the time of steps that only decode (by power of two of their size), and
    `token_s`, what one more position costs, of a prompt or of another decoding sequence. With d sequences
    decoding and p prompts to be computed, a mixed step may last 1 + SHARE * (1 + p / d) times a decoding one:
    one prompt beside eight streams takes four fifths of a step's time; many prompts beside one stream are not
    held up for its sake. Until `token_s` is known (and always when seconds are not measured, as in traces)
    the whole budget is granted. Where it is known and no decoding step was measured, as in a server that
    starts under prompts, one position of a prompt is granted: such a step is as good as a decoding one.
    """

    SHARE = 0.7
    FLOOR = 8  # prompt tokens per mixed step at least: a prompt always advances
    SMOOTHING = 0.3

    def __init__(self, step_tokens: int) -> None:
        self.step_tokens = step_tokens
        self.decode_steps: dict[int, tuple[int, float]] = {}  # by bit length of the size: (size, seconds)
        self.token_s: float | None = None

    def prompt_budget(self, num_decoding: int, num_prompts: int) -> int:
        """Prompt tokens for a step in which `num_decoding` sequences continue and `num_prompts` want to
        begin."""
        budget = max(0, self.step_tokens - num_decoding)
        if num_decoding == 0 or not self.token_s:
            return budget
        if not self.decode_steps:
            return min(budget, 1)
        decode_s = self.decode_seconds(num_decoding)
        assert decode_s is not None
        allowed_s = self.SHARE * (1.0 + num_prompts / num_decoding) * decode_s
        return min(budget, max(self.FLOOR, int(allowed_s / self.token_s)))

    def decode_seconds(self, num_decoding: int) -> float | None:
        """Of a step that only decodes; None: not known. Of none: nothing."""
        if num_decoding == 0:
            return 0.0
        if not self.decode_steps or self.token_s is None:
            return None
        size, seconds = self._nearest(num_decoding)
        return max(seconds + self.token_s * (num_decoding - size), 0.5 * seconds)

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step took `seconds`; 0 means that it was not measured. A prompt's single position is one of a
        decoding sequence here."""
        if seconds <= 0.0 or num_decoding + num_prompt_tokens == 0:
            return
        if num_prompt_tokens == 0:
            bucket = num_decoding.bit_length()
            _, old = self.decode_steps.get(bucket, (0, None))
            self.decode_steps[bucket] = (num_decoding, smoothed(old, seconds, self.SMOOTHING))
            return
        size, base = self._nearest(num_decoding) if self.decode_steps else (0, 0.0)
        more = num_decoding + num_prompt_tokens - size  # positions beyond those of the step we compare with
        if more > 0 and seconds > base:
            self.token_s = smoothed(self.token_s, (seconds - base) / more, self.SMOOTHING)

    def _nearest(self, num_decoding: int) -> tuple[int, float]:
        """The measured decoding step, as (size, seconds), whose size is nearest."""
        bucket = num_decoding.bit_length()
        return self.decode_steps[min(self.decode_steps, key=lambda known: abs(known - bucket))]
