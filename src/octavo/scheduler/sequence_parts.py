"""What features and accounts add to a sequence. A sequence that does not use a feature has no part for it.

They stand apart from their features because `Sequence` names them, and the features name `Sequence`.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.speculation.speculator import Drafting


@dataclass(slots=True, eq=False)
class DraftState:
    """The guesses at a sequence's next tokens, and those of them that are in flight (drafts.py)."""

    drafting: Drafting
    num_guessed: int = 0  # of the planned positions, those of drafts in flight
    blocks_guessed: int = 0  # of the blocks, those that nothing but drafts in flight needs
    is_awaited: bool = False  # nothing is planned while a sample is in flight: guesses will be

    def clear_in_flight(self) -> None:
        """No drafts are in flight any more."""
        self.num_guessed = self.blocks_guessed = 0


@dataclass(slots=True, eq=False)
class GrammarState:
    """What a grammar, or the end of thinking, does to a sequence's output (committing.py)."""

    is_leading: bool = False  # the executor has told that a grammar leads the output now
    num_forced: int = 0  # output tokens that it forced
    num_last: int = 1  # tokens at the end that are not computed when the sequence ends there

    def note_sample(self, num_last: int, *, is_leading: bool) -> None:
        """Tokens came, of which the last `num_last` are not computed: one, and those that it forced."""
        self.num_last = num_last
        self.num_forced += num_last - 1
        self.is_leading = self.is_leading or is_leading


@dataclass(slots=True, eq=False)
class BlockUse:
    """How many blocks a sequence held, and for how long."""

    peak: int = 0
    block_seconds: float = 0.0  # up to `_counted_at`
    _num_blocks: int = 0  # held since then
    _counted_at: float = 0.0

    def count(self, num_blocks: int, now: float) -> None:
        """It holds so many now: add what was held until now."""
        self.block_seconds += self._num_blocks * (now - self._counted_at)
        self._counted_at = now
        self._num_blocks = num_blocks
        if num_blocks > self.peak:
            self.peak = num_blocks
