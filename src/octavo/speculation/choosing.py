"""How many guesses a step takes along: as many as make the most tokens a second.

    goodput(k) = (tokens of the step without guesses + those expected of k guesses) / cost(positions + k)

A sequence's guesses are right up to the first that is wrong, so each next one is worth less; all sequences'
guesses are taken in order of their worth, and the best number of them all is kept. Costs need not grow
evenly (a kernel may do 4 rows as fast as 3), so every number is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_GAIN_LEAST = 1.04  # what is expected is not what comes: a smaller gain is none


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A sequence's guesses: at most `limit`; `rate(j)` is how likely its guess j is right, if those before it
    are."""

    limit: int
    rate: Callable[[int], float]


def choose(
    candidates: Sequence[DraftCandidate],
    num_positions: int,
    num_tokens: int,
    cost: Callable[[int], float],
    budget: int,
) -> list[int]:
    """How many guesses of each; `budget` of all. The step without them computes `num_positions` and makes, or
    takes of prompts, `num_tokens`. O((budget + candidates) log candidates)."""
    best, chosen = _GAIN_LEAST * num_tokens / cost(num_positions), 0
    worth = [(-one.rate(0), index, 0) for index, one in enumerate(candidates) if one.limit > 0]
    heapq.heapify(worth)
    taken: list[int] = []  # candidates, in the order in which their guesses are taken
    expected = float(num_tokens)
    while worth and len(taken) < budget:
        gain, index, place = heapq.heappop(worth)
        taken.append(index)
        expected -= gain
        goodput = expected / cost(num_positions + len(taken))
        if goodput > best:
            best, chosen = goodput, len(taken)
        if place + 1 < candidates[index].limit:
            more = gain * candidates[index].rate(place + 1)
            heapq.heappush(worth, (more, index, place + 1))
    counts = [0] * len(candidates)
    for index in taken[:chosen]:
        counts[index] += 1
    return counts
