"""A drafter guesses the next tokens. Wrong guesses cost time but never change the output: a guess is kept
only where it equals the token sampled at its position.

A drafter belongs to one sequence and reads all of its tokens, in order. It knows no model, no cost and no
block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses at the tokens after the last one. `match` is the drafter's own measure of confidence: the
    longer the match, the likelier they are."""

    tokens: tuple[int, ...] = ()
    match: int = 0


NO_DRAFT = Draft()


class Drafter(Protocol):
    """The guesses of one sequence."""

    name: str  # of its kind: a label of the counters

    @property
    def num_tokens(self) -> int:
        """Tokens read so far."""

    @property
    def num_bytes(self) -> int:
        """Memory that it holds."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Read tokens that follow those read before."""

    def draft(self, limit: int) -> Draft:
        """At most `limit` guesses at what follows the tokens read so far; possibly none."""

    def copy(self) -> Drafter:
        """A copy for a fork."""


NewDrafter = Callable[[], Drafter]
