"""What a step's result changes: counters move, full blocks get names, finished sequences let go of theirs.

A sample of a sequence that was preempted meanwhile is taken all the same; its old blocks are named no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.scheduler.beam_rows import is_over
from octavo.scheduler.events import Event, EventKind
from octavo.scheduler.planner import Flight
from octavo.scheduler.sequence import Sequence, State
from octavo.types import FinishReason, SampledToken, StepResult, Update

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler


class Committer:
    """Acts on the scheduler's sequences; called on its thread, through it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def commit(self, flights: list[Flight], result: StepResult) -> list[Update]:
        """Take the result of the plan whose stakes `flights` are."""
        scheduler = self._scheduler
        ended = {**result.failures, **result.dead_ends}
        updates: list[Update] = []
        for flight in flights:
            flight.sequence.pending -= flight.num_samples
            if flight.sequence.state is not State.FINISHED and flight.sequence.seq_id not in ended:
                updates += self._commit_flight(flight, result)
        # Last, so that no sibling publishes under a name that was just taken away.
        failed = [
            flight.sequence
            for flight in (flights if ended else ())
            if flight.sequence.state is not State.FINISHED and flight.sequence.seq_id in ended
        ]
        for sequence in failed:  # all of them first: the end of one beam is the end of its group
            if sequence.seq_id in result.dead_ends:
                continue  # the model is not to blame: others may go on with the same prefix
            scheduler.memory.forget(sequence.chain.names)
            scheduler.transfers.forget(sequence.chain.names)
            scheduler.pinning.drop_nameless()
        for sequence in failed:
            if sequence.state is not State.FINISHED:
                reason, request = ended[sequence.seq_id], sequence.request
                text = f"request {request.request_id} failed: {reason}"
                scheduler.events.note(
                    Event(scheduler.now, EventKind.FAILED, text, request.request_id, request.tenant)
                )
                updates += scheduler.end(sequence, FinishReason.ERROR, reason)
        groups = {id(f.sequence.group): f.sequence.group for f in flights if f.sequence.group is not None}
        return updates + scheduler.beams.settle(group for group in groups.values() if not is_over(group))

    def _commit_flight(self, flight: Flight, result: StepResult) -> list[Update]:
        """One sequence's share of a commit."""
        scheduler = self._scheduler
        sequence = flight.sequence
        if sequence.group is not None:
            if flight.epoch == sequence.epoch:  # else it will be computed again, with the same candidates
                self._publish(sequence, flight.stop)
                if flight.num_samples:
                    scheduler.beams.deliver(sequence, result.samples[sequence.seq_id][0])
            return []
        samples: tuple[SampledToken, ...] = ()
        if flight.num_samples:
            samples = result.samples[sequence.seq_id]
            for sampled in samples:
                sequence.tokens.append(sampled.token)
            sequence.chain.extend(sequence.tokens)
        if flight.epoch == sequence.epoch:
            self._publish(sequence, flight.stop)
        updates = self._update(sequence, samples, result.prompt_logprobs.get(sequence.seq_id, ()))
        if (
            sequence.choice in sequence.unwanted
            and not sequence.forks_left
            and sequence.state is not State.FINISHED
        ):
            updates += scheduler.end(sequence, FinishReason.CANCELLED)
        return updates

    def _publish(self, sequence: Sequence, num_computed: int) -> None:
        scheduler = self._scheduler
        assert sequence.table is not None
        assert sequence.num_computed <= num_computed <= sequence.num_planned
        sequence.num_computed = num_computed
        before = sequence.table.num_published
        if not scheduler.config.prefix_caching or num_computed // scheduler.memory.block_size == before:
            return
        for index in scheduler.memory.publish(sequence.table, sequence.chain.names, num_computed):
            scheduler.diff.write_table(sequence.row, index, [sequence.table.blocks[index]])
        scheduler.names.end(sequence, sequence.chain.names[before : sequence.table.num_published])

    def _update(
        self, sequence: Sequence, samples: tuple[SampledToken, ...], prompt_logprobs: tuple[SampledToken, ...]
    ) -> list[Update]:
        """What the client learns of this commit; closes the sequence when its last token is here."""
        scheduler = self._scheduler
        if not samples and not prompt_logprobs:
            return []
        finish, stop_token = sequence.finish_reason(scheduler.config.stop_ids) if samples else (None, None)
        error = ""
        if finish is not None:
            if sequence.request.fills_pin:
                error = scheduler.pinning.fill(sequence.request)
                finish = FinishReason.ERROR if error else finish
            scheduler.close(sequence)
            if sequence.request.session:
                scheduler.sessions.end_turn(sequence)
        request_id, usage = sequence.request.request_id, sequence.usage(scheduler.now)
        return [
            Update(request_id, sequence.choice, samples, usage, finish, stop_token, error, prompt_logprobs)
        ]
