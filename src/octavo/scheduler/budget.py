"""How the tokens of one step are shared: pure functions from lengths to grants, and the pace that measures
them.

Sequences that continue (one position each) come first. What is left of the step's budget goes to prompts:

    half of it   to the oldest prompt                       so a long one is never starved
    the rest     to the shortest remaining first            so a short one is never stuck behind a long one
    what is over to the oldest again, then by age

A herd of equal prompts is thus served one after the other, which is what makes the mean time to first token
least. Source: chunked prefill is Sarathi (Agrawal et al. 2023); shortest remaining first is Schrage 1968.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_budget(remaining: Sequence[int], budget: int) -> list[int]:
    """Grants for prompts given oldest first: sum <= budget, 0 <= grant <= remaining. O(n log n)."""
    grants = [0] * len(remaining)
    if not remaining or budget <= 0:
        return grants
    # 1. The oldest prompt's guaranteed half.
    grants[0] = min(remaining[0], -(-budget // 2))
    left = budget - grants[0]
    # 2. Shortest remaining first; ties go to the older.
    for i in sorted(range(1, len(remaining)), key=lambda i: remaining[i]):
        grants[i] = min(remaining[i], left)
        left -= grants[i]
    # 3. What is over.
    grants[0] += min(remaining[0] - grants[0], left)
    return grants


def share_by_priority(prompts: Sequence[tuple[int, int]], budget: int) -> list[int]:
    """Grants for (priority, remaining) pairs in order of rank: a higher priority is served before a lower
    one."""
    grants: list[int] = []
    while len(grants) < len(prompts):
        first = len(grants)
        priority = prompts[first][0]
        end = first
        while end < len(prompts) and prompts[end][0] == priority:
            end += 1
        granted = share_budget([remaining for _, remaining in prompts[first:end]], budget)
        grants += granted
        budget -= sum(granted)
    return grants


class Pace:
    """How many prompt tokens a step may carry beside decoding sequences, so that these do not notice.

    It learns from measured steps: `decode_s`, the time of a step that only decodes (by power of two of its
    size), and `token_s`, what one more prompt token costs. A mixed step may last `SLOWDOWN` times a
    decoding one. Until both are known (and always when seconds are not measured, as in traces) the whole
    budget is granted.
    """

    SLOWDOWN = 1.8
    FLOOR = 8  # prompt tokens per mixed step at least: a prompt always advances
    SMOOTHING = 0.3

    def __init__(self, step_tokens: int) -> None:
        self.step_tokens = step_tokens
        self.decode_s: dict[int, float] = {}
        self.token_s: float | None = None

    def prompt_budget(self, num_decoding: int) -> int:
        """Prompt tokens for a step in which `num_decoding` sequences continue."""
        budget = max(0, self.step_tokens - num_decoding)
        decode_s = self._decode_s(num_decoding)
        if num_decoding == 0 or decode_s is None or not self.token_s:
            return budget
        return min(budget, max(self.FLOOR, int((self.SLOWDOWN - 1.0) * decode_s / self.token_s)))

    def observe(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step took `seconds`; 0 means that it was not measured."""
        if seconds <= 0.0 or num_decoding + num_prompt_tokens == 0:
            return
        if num_prompt_tokens == 0:
            bucket = num_decoding.bit_length()
            self.decode_s[bucket] = self._blend(self.decode_s.get(bucket), seconds)
            return
        base = self._decode_s(num_decoding) if num_decoding else 0.0
        if base is not None and seconds > base:
            self.token_s = self._blend(self.token_s, (seconds - base) / num_prompt_tokens)

    def _decode_s(self, num_decoding: int) -> float | None:
        """The time of a decoding step of that size, or of the nearest size that was measured."""
        bucket = num_decoding.bit_length()
        if not self.decode_s or bucket in self.decode_s:
            return self.decode_s.get(bucket)
        return self.decode_s[min(self.decode_s, key=lambda known: abs(known - bucket))]

    def _blend(self, old: float | None, new: float) -> float:
        return new if old is None else old + self.SMOOTHING * (new - old)
