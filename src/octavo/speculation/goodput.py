"""How many guesses a step verifies: as many as make the most tokens a second.

    goodput(k) = (tokens of the step without guesses + those expected of k guesses) / cost(positions + k)

A sequence's guesses count only up to the first wrong one, so each next guess is worth less. The guesses of
all sequences are ranked by expected gain, and the prefix with the best goodput is kept. Costs need not grow
evenly (a kernel may do 4 rows as fast as 3), so every prefix is evaluated.

How likely a guess is right depends on the length of its match, and on the sequence's recent guesses. A guess
is compared with the sampled token whether or not it was computed. Both rates are therefore learned at no
cost, also while no guess is worth computing: drafting is never off for good.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.averages import smoothed

_GAIN_LEAST = 1.04  # estimates are uncertain: a smaller gain counts as none
# By bit length of the match, until more is known: 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, more.
_FIRST_RATES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.85)
_SMOOTHING = 0.03  # of a rate by one guess
_MEMORY = 0.9  # decay of a sequence's counts, from one guess to the next
_DOUBT = 1.0  # guesses' worth of trust in the rates of all sequences, against a sequence's own
_MOST = 0.98


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


class Acceptance:
    """Rates of all sequences, by length of match."""

    def __init__(self) -> None:
        self._rates = list(_FIRST_RATES)

    def rate(self, match: int) -> float:
        """The share of guesses with such a match that were right."""
        return self._rates[min(match.bit_length(), len(self._rates) - 1)]

    def learn(self, match: int, is_right: bool) -> None:
        """Count a compared guess."""
        bucket = min(match.bit_length(), len(self._rates) - 1)
        self._rates[bucket] = smoothed(self._rates[bucket], is_right, _SMOOTHING)


class Fate:
    """How one sequence's guesses do, relative to those of all sequences."""

    __slots__ = ("_expected", "_right")

    def __init__(self, right: float = 0.0, expected: float = 0.0) -> None:
        self._right, self._expected = right, expected

    def copy(self) -> Fate:
        """A copy for a fork."""
        return Fate(self._right, self._expected)

    def rate(self, acceptance: Acceptance, match: int) -> float:
        """The probability that this sequence's next guess with such a match is right."""
        factor = (self._right + _DOUBT) / (self._expected + _DOUBT)
        return min(_MOST, acceptance.rate(match) * factor)

    def learn(self, acceptance: Acceptance, match: int, is_right: bool) -> None:
        """One more guess of the sequence was compared; it also updates the shared rates."""
        self._right = _MEMORY * self._right + is_right
        self._expected = _MEMORY * self._expected + acceptance.rate(match)
        acceptance.learn(match, is_right)
