"""How a sequence ends otherwise than by its last token: cancelled, out of time, failed."""

from __future__ import annotations

from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.context import Context
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.pinning import Pinning
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.sessions import Sessions
from octavo.types import FinishReason, Update


class Ending:
    """Ends sequences, and what depends on them."""

    def __init__(
        self, context: Context, live: LiveSequences, beams: BeamRows, pinning: Pinning, sessions: Sessions
    ) -> None:
        self._context = context
        self._live = live
        self._beams = beams
        self._pinning = pinning
        self._sessions = sessions

    def end(self, sequence: Sequence, finish: FinishReason, error: str = "") -> list[Update]:
        """The sequence and, if it has not forked yet, the choices that it was to become: one final update
        each."""
        if sequence.group is not None:
            return self._beams.end(sequence.group, finish, error)
        if sequence.request.fills_pin:
            self._pinning.give_up(sequence.request)
        choices = sequence.choices_left
        self._live.close(sequence)
        if sequence.request.session:
            self._sessions.give_up_turn(sequence)
        request_id, usage = sequence.request.request_id, sequence.usage(self._context.now)
        return [Update(request_id, choice, (), usage, finish, error=error) for choice in choices]
