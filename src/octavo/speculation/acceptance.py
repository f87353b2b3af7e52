"""How likely a guess is right: by the length of its match, and by a sequence's recent fate.

A guess is compared with the sampled token whether or not it was computed. Both rates are therefore learned at
no cost, also while no guess is worth computing: drafting is never off for good.
"""

from __future__ import annotations

from octavo.averages import smoothed

# By bit length of the match, until more is known: 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, more.
_FIRST_RATES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.85)
_SMOOTHING = 0.03  # of a rate by one guess
_MEMORY = 0.9  # decay of a sequence's counts, from one guess to the next
_DOUBT = 1.0  # guesses' worth of trust in the rates of all sequences, against a sequence's own
_MOST = 0.98


class Acceptance:
    """Rates of all sequences, by length of match."""

    def __init__(self) -> None:
        self._rates = list(_FIRST_RATES)

    def rate(self, match: int) -> float:
        """The share of guesses with such a match that were right."""
        return self._rates[min(match.bit_length(), len(self._rates) - 1)]

    def learn(self, match: int, is_right: bool) -> None:
        """One more guess was compared."""
        bucket = min(match.bit_length(), len(self._rates) - 1)
        self._rates[bucket] = smoothed(self._rates[bucket], is_right, _SMOOTHING)


class Fate:
    """How one sequence's guesses do, relative to those of all sequences."""

    __slots__ = ("_expected", "_right")

    def __init__(self, right: float = 0.0, expected: float = 0.0) -> None:
        self._right, self._expected = right, expected

    def copy(self) -> Fate:
        """For a fork."""
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
