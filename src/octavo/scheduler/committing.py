"""What a step's result changes: counters move, full blocks get names, finished sequences let go of theirs.

A sample of a sequence that was preempted meanwhile is taken all the same; its old blocks are named no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.beam_rows import BeamRows, is_over
from octavo.scheduler.drafts import Drafts
from octavo.scheduler.finisher import Finisher
from octavo.scheduler.in_flight import InFlightChunk
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.scheduler.sequence_parts import GrammarState
from octavo.step.context import Context
from octavo.types import FinishReason, SampledToken, StepResult, Update


@dataclass(eq=False)
class Committer:
    """Takes what a step made."""

    _context: Context
    _live: LiveSequences
    _beams: BeamRows
    _finisher: Finisher
    _drafts: Drafts | None

    def commit(self, in_flight: list[InFlightChunk], result: StepResult) -> list[Update]:
        """Take the result of the plan whose chunks are `in_flight`."""
        ended = result.failures.keys() | result.dead_ends.keys()
        updates: list[Update] = []
        for flight in in_flight:
            sequence = flight.sequence
            sequence.pending -= flight.num_samples
            if flight.is_void:
                continue
            if sequence.state is not State.FINISHED and sequence.seq_id not in ended:
                self._commit_flight(flight, result, updates)
        # Last, so that no sibling publishes under a name that was just taken away.
        failed = [
            flight.sequence
            for flight in (in_flight if ended else ())
            if not flight.is_void
            and flight.sequence.state is not State.FINISHED
            and flight.sequence.seq_id in ended
        ]
        updates += self._finisher.fail(failed, result)
        groups = {id(f.sequence.group): f.sequence.group for f in in_flight if f.sequence.group is not None}
        if groups:
            updates += self._beams.settle(group for group in groups.values() if not is_over(group))
        return updates

    def _commit_flight(self, flight: InFlightChunk, result: StepResult, updates: list[Update]) -> None:
        """One sequence's share of a commit; appends what clients learn."""
        sequence = flight.sequence
        if flight.num_samples and sequence.phases.first_token is None:
            sequence.note_token(self._context.now)
            for told in self._live.on_first_token:
                told(sequence)
        if sequence.group is not None:
            if flight.is_current:  # else it will be computed again, with the same candidates
                self._publish(sequence, flight.stop)
                if flight.num_samples:
                    self._beams.deliver(sequence, result.samples[sequence.seq_id][0])
            return
        samples: tuple[SampledToken, ...] = ()
        computed = flight.stop
        if flight.num_samples:
            sampled = result.samples[sequence.seq_id]
            samples = self._taken(sequence, sampled)
            if self._drafts is not None:
                computed = self._drafts.settle(flight, sampled, len(samples))
            num_last, in_grammar = len(sequence.tokens) - computed, sequence.seq_id in result.in_grammar
            if sequence.grammar is not None or num_last > 1 or in_grammar:
                sequence.grammar = sequence.grammar or GrammarState()
                sequence.grammar.note_sample(num_last, is_leading=in_grammar)
            sequence.chain.extend(sequence.tokens)
        if flight.is_current:
            self._publish(sequence, computed)
        prompt_logprobs = result.prompt_logprobs.get(sequence.seq_id, ())
        if samples or prompt_logprobs:
            updates.append(self._update(sequence, samples, prompt_logprobs, result))
        if (
            sequence.unwanted
            and sequence.choice in sequence.unwanted
            and not sequence.forks_left
            and sequence.state is not State.FINISHED
        ):
            updates += self._finisher.end(sequence, FinishReason.CANCELLED)

    def _taken(self, sequence: Sequence, samples: tuple[SampledToken, ...]) -> tuple[SampledToken, ...]:
        """The new tokens, up to one that ends the sequence: drafts, or what a grammar forces, may go on."""
        for count, sampled in enumerate(samples, 1):
            sequence.tokens.append(sampled.token)
            if count < len(samples) and sequence.finish_reason(self._context.config.stop_ids)[0] is not None:
                return samples[:count]
        return samples

    def _publish(self, sequence: Sequence, num_computed: int) -> None:
        assert sequence.table is not None
        assert sequence.num_computed <= num_computed <= sequence.num_planned
        sequence.num_computed = num_computed
        before = sequence.table.num_published
        if (
            not self._context.config.prefix_caching
            or num_computed // self._context.ledger.block_size == before
        ):
            return
        sequence.describe(self._context.ledger, before, num_computed // self._context.ledger.block_size)
        for index in self._context.ledger.publish(sequence.table, sequence.chain.names, num_computed):
            self._context.plan.write_table(sequence.row, index, [sequence.table.block_at(index)])
        if self._live.names.computing:
            self._live.names.end(sequence, sequence.chain.names[before : sequence.table.num_published])

    def _update(
        self,
        sequence: Sequence,
        samples: tuple[SampledToken, ...],
        prompt_logprobs: tuple[SampledToken, ...],
        result: StepResult,
    ) -> Update:
        """What the client learns of this commit; closes the sequence when its last token is here."""
        finish, stop_token = (
            sequence.finish_reason(self._context.config.stop_ids) if samples else (None, None)
        )
        error = ""
        if finish is not None:
            for attached in sequence.attached:
                error = error or attached.on_last_token(sequence.request)
            finish = FinishReason.ERROR if error else finish
            self._finisher.close(sequence, is_well=True)
        request_id, usage = sequence.request.request_id, sequence.usage(self._context.now)
        embedding = result.pooled.get(sequence.seq_id, b"")
        if embedding:  # its sample stands for nothing
            samples, stop_token = (), None
        return Update(
            request_id,
            sequence.choice,
            samples,
            usage,
            finish,
            stop_token,
            error,
            prompt_logprobs,
            embedding,
        )
