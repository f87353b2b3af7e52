"""Ends of sequences without a last token: cancelled, out of time, failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.drafts import Drafts
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.types import FinishReason, StepResult, Update


@dataclass(eq=False)
class Finisher:
    """Ends sequences, and notifies their attachments."""

    _context: Context
    _live: LiveSequences
    _beams: BeamRows
    _drafts: Drafts | None
    _forget: Callable[[list[bytes]], None]  # names of poisoned blocks

    def end(self, sequence: Sequence, finish: FinishReason, error: str = "") -> list[Update]:
        """End the sequence and, before its fork, the choices that it was to become: one final update each."""
        if sequence.group is not None:
            return self._beams.end(sequence.group, finish, error)
        choices = sequence.choices_left
        self.close(sequence, is_well=False)
        request_id, usage = sequence.request.request_id, sequence.usage(self._context.now)
        return [Update(request_id, choice, (), usage, finish, error=error) for choice in choices]

    def fail(self, sequences: list[Sequence], result: StepResult) -> list[Update]:
        """End sequences that failed in a step, or cannot continue."""
        for sequence in sequences:  # first all of them: the end of one beam ends its group
            if sequence.seq_id in result.dead_ends:
                continue  # the model is not at fault: others may continue with the same prefix
            self._forget(sequence.chain.names)
        updates: list[Update] = []
        for sequence in sequences:
            if sequence.state is State.FINISHED:
                continue
            is_dead_end, request = sequence.seq_id in result.dead_ends, sequence.request
            reason = (result.dead_ends if is_dead_end else result.failures)[sequence.seq_id]
            text = f"request {request.request_id} failed: {reason}"
            self._context.events.record(
                Event(self._context.now, EventKind.FAILED, text, request.request_id, request.tenant)
            )
            finish = FinishReason.DEAD_END if is_dead_end else FinishReason.ERROR
            updates += self.end(sequence, finish, reason)
        return updates

    def close(self, sequence: Sequence, *, is_well: bool) -> None:
        """Release all that the sequence holds."""
        self._live.close(sequence)
        if self._drafts is not None:
            self._drafts.end(sequence)
        for attached in sequence.attached:
            num_computed = len(sequence.tokens) - sequence.num_last
            attached.on_end(sequence.request, num_computed, sequence.chain, is_well=is_well)
