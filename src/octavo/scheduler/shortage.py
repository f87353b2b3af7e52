"""Steps for which the device had no memory: their sequences wait again, and later steps are smaller.

    step of 512 positions, no memory  ->  all its sequences are requeued, 256 positions from now on
    step planned ahead of its result  ->  its samples for these requests are invalid: discarded
    1,024 steps without a shortage    ->  512 positions again; after each further shortage twice as many steps

No position of such a step counts as computed, and none was published, so a requeued sequence computes it
again, as after a preemption. A step of one position cannot shrink: its sequence fails. So do, in larger
steps, requests whose prompt logprobs come with each step, and beams.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.scheduler.finisher import Finisher
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import InFlightChunk, Sequence, State
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.step.latency_target import PrefillBudget
from octavo.types import FinishReason, Update

UNREADABLE = "blocks in the offload tier cannot be read"
GROW_AFTER, GROW_AFTER_MAX = 1024, 65_536  # steps


@dataclass(eq=False)
class StepShortage:
    """Handles steps that failed for lack of memory."""

    _context: Context
    _live: LiveSequences
    _prefill_budget: PrefillBudget
    _finisher: Finisher
    _num_good: int = field(default=0, init=False)  # steps since the last shortage or growth of the limit
    _grow_after: int = field(default=0, init=False)  # so many good steps until the limit grows

    def take(
        self,
        in_flight: list[InFlightChunk],
        num_positions: int,
        later: Iterable[list[InFlightChunk]],
        why: str,
    ) -> list[Update]:
        """Discard the chunks of a step of so many positions, and those of `later` plans that depend on them.
        Returns the ends of sequences that fail."""
        for flight in in_flight:
            flight.sequence.pending -= flight.num_samples
        hit = {flight.sequence.seq_id for flight in in_flight if not flight.is_void}
        requests = {flight.sequence.request.request_id for flight in in_flight if not flight.is_void}
        if requests and num_positions > 1:
            self._shrink(num_positions, why)
        return self.begin_again(requests, later, why, hit if num_positions == 1 else set())

    def take_unreadable(
        self,
        in_flight: list[InFlightChunk],
        seq_ids: Iterable[int],
        later: Iterable[list[InFlightChunk]],
        *,
        is_final: bool,
    ) -> list[Update]:
        """Cold blocks of these sequences could not be read: restart their requests with the blocks left in
        the tier, or end them. Also returns the ends of those that cannot restart."""
        wanted = set(seq_ids)
        hit = (flight.sequence for flight in in_flight if not flight.is_void)
        requests = {s.request.request_id for s in hit if s.seq_id in wanted}
        failing = wanted if is_final else set[int]()
        return self.begin_again(requests, [in_flight, *later], UNREADABLE, failing)

    def begin_again(
        self, requests: set[int], later: Iterable[list[InFlightChunk]], why: str, failing: set[int]
    ) -> list[Update]:
        """Discard these requests' results in plans already made; end those `failing`."""
        for planned in later:
            _void(planned, requests)
        updates: list[Update] = []
        for request_id in sorted(requests):
            for sequence in self._live.sequences_of(request_id):
                if sequence.state is State.FINISHED:
                    continue  # ended with the beam before it
                is_running = sequence.state is State.RUNNING
                if (is_running and sequence.seq_id in failing) or not _can_begin_again(sequence):
                    updates += self._fail(sequence, why)
                elif is_running:
                    self._live.requeue(sequence)
        return updates

    def note_step(self) -> None:
        """A step succeeded under a reduced limit, which may grow again."""
        self._num_good += 1
        if self._num_good >= self._grow_after:
            self._num_good = 0
            self._limit(min(2 * self._context.step_tokens, self._context.config.step_tokens))

    def _shrink(self, num_positions: int, why: str) -> None:
        """Halve the failed size; a step planned before may have been larger than the limit."""
        self._num_good = 0
        self._grow_after = min(2 * self._grow_after, GROW_AFTER_MAX) or GROW_AFTER
        self._limit(min(self._context.step_tokens, num_positions // 2))
        limit = self._context.step_tokens
        text = f"a step of {num_positions:,} positions: {why}; steps compute up to {limit:,} from now on"
        self._context.events.record(Event(self._context.now, EventKind.STEP_SHRUNK, text))

    def _limit(self, num_positions: int) -> None:
        self._context.step_tokens = num_positions
        self._prefill_budget.step_tokens = num_positions

    def _fail(self, sequence: Sequence, why: str) -> list[Update]:
        request = sequence.request
        text = f"request {request.request_id} failed: {why}"
        self._context.events.record(
            Event(self._context.now, EventKind.FAILED, text, request.request_id, request.tenant)
        )
        return self._finisher.end(sequence, FinishReason.ERROR, why)


def _void(in_flight: list[InFlightChunk], requests: set[int]) -> None:
    """Discard these requests' chunks of a plan."""
    for flight in in_flight:
        flight.is_void = flight.is_void or flight.sequence.request.request_id in requests


def _can_begin_again(sequence: Sequence) -> bool:
    return sequence.group is None and sequence.request.params.prompt_logprobs is None
