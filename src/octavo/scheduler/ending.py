"""How a sequence ends otherwise than by its last token: cancelled, out of time, failed."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.drafts import Drafts
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence
from octavo.step.context import Context
from octavo.types import FinishReason, Update


@dataclass(eq=False)
class Ending:
    """Ends sequences, and tells what is attached to them."""

    _context: Context
    _live: LiveSequences
    _beams: BeamRows
    _drafts: Drafts | None

    def end(self, sequence: Sequence, finish: FinishReason, error: str = "") -> list[Update]:
        """The sequence and, if it has not forked yet, the choices that it was to become: one final update
        each."""
        if sequence.group is not None:
            return self._beams.end(sequence.group, finish, error)
        choices = sequence.choices_left
        self.close(sequence, is_well=False)
        request_id, usage = sequence.request.request_id, sequence.usage(self._context.now)
        return [Update(request_id, choice, (), usage, finish, error=error) for choice in choices]

    def close(self, sequence: Sequence, *, is_well: bool) -> None:
        """It holds nothing any more."""
        self._live.close(sequence)
        if self._drafts is not None:
            self._drafts.end(sequence)
        for attached in sequence.attached:
            num_computed = len(sequence.tokens) - sequence.num_last
            attached.on_end(sequence.request, num_computed, sequence.chain, is_well=is_well)
