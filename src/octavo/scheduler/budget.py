"""The division of a step's tokens: pure functions from lengths to grants.

Sequences that continue (one position each) come first. The rest of the step's budget goes to prompts:

    half of it   to the oldest prompt                       so a long one is never starved
    the rest     to the shortest remaining first            so a short one is never stuck behind a long one
    a remainder  to the oldest again, then by age

This holds among prompts of one turn: all prompts of a higher priority, and of a tenant that was served less,
come first.

Many equal prompts are thus served one after the other, which minimises the mean time to first token.
least. Source: chunked prefill is Sarathi (Agrawal et al. 2023); shortest remaining first is Schrage 1968.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import groupby, islice
from operator import itemgetter

# The rank of a prompt in a step: (-priority, service of its tenant, arrival, choice). The first two are its
# turn.
Place = tuple[int, float, int, int]


def share_budget(remaining: Sequence[int], budget: int) -> list[int]:
    """Grants for prompts given oldest first: sum <= budget, 0 <= grant <= remaining. O(n log n)."""
    grants = [0] * len(remaining)
    if not remaining or budget <= 0:
        return grants
    # 1. Half of the budget goes to the oldest prompt.
    grants[0] = min(remaining[0], -(-budget // 2))
    left = budget - grants[0]
    # 2. Shortest remaining first; ties go to the older.
    for i in sorted(range(1, len(remaining)), key=lambda i: remaining[i]):
        grants[i] = min(remaining[i], left)
        left -= grants[i]
    # 3. The remainder.
    grants[0] += min(remaining[0] - grants[0], left)
    return grants


def share_in_turn(prompts: Sequence[tuple[object, int]], budget: int) -> list[int]:
    """Grants for (turn, remaining) pairs, sorted by turn: an earlier turn is served before a later one."""
    grants: list[int] = []
    for _, of_one_turn in groupby(prompts, key=itemgetter(0)):
        granted = share_budget([remaining for _, remaining in of_one_turn], budget)
        grants += granted
        budget -= sum(granted)
    return grants


def gets_some(prompts: Sequence[tuple[Place, int]], prompt: tuple[Place, int], budget: int) -> bool:
    """Whether `share_in_turn` would grant this prompt anything if it were one of `prompts`, which are sorted
    as (place, remaining). O(prompts), without copying."""
    turn, remaining = prompt[0][:2], prompt[1]
    index = bisect(prompts, prompt)
    first = index
    while first and prompts[first - 1][0][:2] == turn:
        first -= 1
    left = budget - sum(other for _, other in islice(prompts, first))
    if first == index or left <= 0:  # the oldest of its turn gets half of what is left
        return left > 0
    left -= min(prompts[first][1], -(-left // 2))
    for at in range(first + 1, len(prompts)):
        place, other = prompts[at]
        if place[:2] != turn or left <= 0:
            break
        if other < remaining or (other == remaining and at < index):
            left -= other
    return left > 0
