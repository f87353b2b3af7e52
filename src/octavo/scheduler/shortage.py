"""A device had no memory for a step: its sequences wait again, and later steps are smaller.

    step of 512 positions, no memory  ->  all its sequences are requeued, 256 positions from now on
    step planned ahead of its result  ->  what it sampled for these requests stands on nothing: not taken

Nothing of such a step is known to be computed, and nothing of it was published, so a requeued sequence
computes the same again, as after a preemption. A step of one position cannot be smaller: its sequence fails.
So do, of larger ones, those whose prompt leaves something behind with each step (logprobs, a mean) and beams.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.scheduler.finisher import Finisher
from octavo.scheduler.in_flight import InFlightChunk
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.step.prefill_budget import PrefillBudget
from octavo.types import FinishReason, Update


@dataclass(eq=False)
class StepShortage:
    """Takes results of steps that found no memory."""

    _context: Context
    _live: LiveSequences
    _prefill_budget: PrefillBudget
    _finisher: Finisher

    def take(
        self, flights: list[InFlightChunk], num_positions: int, later: Iterable[list[InFlightChunk]], why: str
    ) -> list[Update]:
        """`flights` of a step of so many positions come to nothing, nor do those of `later` plans that count
        on them. Returns the ends of sequences that fail."""
        for flight in flights:
            flight.sequence.pending -= flight.num_samples
        requests = {flight.sequence.request.request_id for flight in flights if not flight.is_void}
        for planned in later:
            _void(planned, requests)
        if requests:
            self._shrink(num_positions, why)
        updates: list[Update] = []
        for request_id in sorted(requests):
            for sequence in self._live.sequences_of(request_id):
                if sequence.state is not State.RUNNING:
                    continue
                if num_positions > 1 and _can_begin_again(sequence):
                    self._live.requeue(sequence)
                else:
                    updates += self._finisher.end(sequence, FinishReason.ERROR, why)
        return updates

    def _shrink(self, num_positions: int, why: str) -> None:
        """Half of what was too much; a step that was planned before may have had more."""
        limit = min(self._context.step_tokens, max(1, num_positions // 2))
        self._context.step_tokens = limit
        self._context.costs.step_tokens = self._prefill_budget.step_tokens = limit
        text = f"a step of {num_positions:,} positions: {why}; steps compute up to {limit:,} from now on"
        self._context.events.record(Event(self._context.now, EventKind.STEP_SHRUNK, text))


def _void(flights: list[InFlightChunk], requests: set[int]) -> None:
    """Nothing of these requests is taken of a plan."""
    for flight in flights:
        flight.is_void = flight.is_void or flight.sequence.request.request_id in requests


def _can_begin_again(sequence: Sequence) -> bool:
    params = sequence.request.params
    return sequence.group is None and params.pooling is None and params.prompt_logprobs is None
