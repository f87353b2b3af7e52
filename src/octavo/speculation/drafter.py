"""What guesses the tokens that come next. It may be slow to pay, and can never be wrong: a guess is kept only
where it equals the token that its position samples anyway.

A drafter belongs to one sequence and sees all of its tokens, in order. It knows no model, no cost and no
block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses at the tokens behind the last one. `match` says how much speaks for them, in a drafter's own
    measure: the longer the match, the likelier they are."""

    tokens: tuple[int, ...] = ()
    match: int = 0


NO_DRAFT = Draft()


class Drafter(Protocol):
    """The guesses of one sequence."""

    name: str  # of its kind, as it is counted

    @property
    def num_tokens(self) -> int:
        """Tokens that it has seen."""

    @property
    def num_bytes(self) -> int:
        """Memory that it holds."""

    def extend(self, tokens: Sequence[int]) -> None:
        """These tokens came behind those that it has seen."""

    def draft(self, limit: int) -> Draft:
        """At most `limit` guesses at what follows all that it has seen; none is an answer."""

    def copy(self) -> Drafter:
        """For a fork."""


NewDrafter = Callable[[], Drafter]
