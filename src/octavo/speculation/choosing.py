"""How many guesses a step verifies: as many as make the most tokens a second.

    goodput(k) = (tokens of the step without guesses + those expected of k guesses) / cost(positions + k)

A sequence's guesses count only up to the first wrong one, so each next guess is worth less. The guesses of
all sequences are ranked by expected gain, and the prefix with the best goodput is kept. Costs need not grow
evenly (a kernel may do 4 rows as fast as 3), so every prefix is evaluated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_GAIN_LEAST = 1.04  # estimates are uncertain: a smaller gain counts as none


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A sequence's guesses: at most `limit`; `rate(j)` is the probability that guess j is right, given that
    those before it are."""

    limit: int
    rate: Callable[[int], float]


def choose(
    candidates: Sequence[DraftCandidate],
    num_positions: int,
    num_tokens: int,
    cost: Callable[[int], float],
    budget: int,
) -> list[int]:
    """The number of guesses for each candidate, at most `budget` in all. Without guesses the step computes
    `num_positions` and yields `num_tokens` (prefill counts). O((budget + candidates) log candidates)."""
    best, chosen = _GAIN_LEAST * num_tokens / cost(num_positions), 0
    worth = [(-one.rate(0), index, 0) for index, one in enumerate(candidates) if one.limit > 0]
    heapq.heapify(worth)
    taken: list[int] = []  # the candidate of each guess, best first
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
