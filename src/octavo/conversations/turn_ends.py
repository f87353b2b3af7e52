"""The ends of a session's turns, in tokens: the points at which it can be forked.

    turns     1     2     3     4     5
    ends      -     -    70    95   140        num_before = 2: turn 3 was tokenised again as a whole, so the
                                               tokens of turns 1 and 2 are no prefix of the present ones
    bytes     2, 70, 95, 140                   4 each

A turn that extends the tokens adds at least one, so there are never more ends than tokens. The ends increase,
and the last is the number of all tokens. Turns without recorded ends, or with damaged ones, count as one
turn.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from octavo.errors import require_range


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """The ends of one session. `num_before` turns came before those with known ends."""

    num_before: int = 0
    ends: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.num_before + len(self.ends)

    def with_turn(self, num_tokens: int, *, goes_on: bool) -> TurnEnds:
        """The ends after another turn, at a total of `num_tokens`. `goes_on`: they extend the earlier
        tokens."""
        if goes_on:
            return TurnEnds(self.num_before, (*self.ends, num_tokens))
        return TurnEnds(len(self), (num_tokens,))

    def until(self, turn: int | None) -> TurnEnds:
        """The ends of the first `turn` turns, or of all; at least one. Raises InvalidRequest."""
        if turn is None:
            return self
        first = self.num_before + 1
        hint = f"what was said before turn {first:,} was tokenised again as a whole" if first > 1 else ""
        require_range("turn", turn, first, len(self), whole=True, hint=hint)
        return TurnEnds(self.num_before, self.ends[: turn - self.num_before])

    def to_bytes(self) -> bytes:
        """The stored form."""
        return array("I", (self.num_before, *self.ends)).tobytes()

    @classmethod
    def from_bytes(cls, stored: object, num_tokens: int) -> TurnEnds:
        """The ends of a session of so many tokens; invalid stored bytes count as one turn."""
        whole = cls(0, (num_tokens,)) if num_tokens else cls()
        if not isinstance(stored, bytes) or len(stored) % 4:
            return whole
        numbers = array("I")
        numbers.frombytes(stored)
        ends = tuple(numbers[1:])
        do_increase = all(a < b for a, b in zip((0, *ends), ends, strict=False))
        return cls(numbers[0], ends) if ends and ends[-1] == num_tokens and do_increase else whole
