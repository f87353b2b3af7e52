"""Commits the result of a step: advances counters, names full blocks, ends finished sequences.

The sample of a sequence that was preempted meanwhile is still taken; its old blocks get no names.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.beam_rows import BeamRows, is_over
from octavo.scheduler.drafts import Drafts
from octavo.scheduler.finisher import Finisher
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import InFlightChunk, Sequence, State
from octavo.scheduler.sequence_parts import GrammarState
from octavo.step.context import Context
from octavo.types import FinishReason, SampledToken, StepResult, Update


@dataclass(eq=False)
class Committer:
    """Commits results of steps."""

    _context: Context
    _live: LiveSequences
    _beams: BeamRows
    _finisher: Finisher
    _drafts: Drafts | None

    def commit(self, in_flight: list[InFlightChunk], result: StepResult) -> list[Update]:
        """Commit the result of the plan whose chunks are `in_flight`."""
        ended = result.failures.keys() | result.dead_ends.keys()
        updates: list[Update] = []
        for chunk in in_flight:
            sequence = chunk.sequence
            sequence.pending -= chunk.num_samples
            if chunk.is_void:
                continue
            if sequence.state is not State.FINISHED and sequence.seq_id not in ended:
                self._commit_chunk(chunk, result, updates)
        # Last, so that no sibling publishes under a name that was just removed.
        failed = [
            chunk.sequence
            for chunk in (in_flight if ended else ())
            if not chunk.is_void
            and chunk.sequence.state is not State.FINISHED
            and chunk.sequence.seq_id in ended
        ]
        updates += self._finisher.fail(failed, result)
        groups = {id(f.sequence.group): f.sequence.group for f in in_flight if f.sequence.group is not None}
        if groups:
            updates += self._beams.settle(group for group in groups.values() if not is_over(group))
        return updates

    def _commit_chunk(self, chunk: InFlightChunk, result: StepResult, updates: list[Update]) -> None:
        """Commit one sequence's chunk; appends to its clients' updates."""
        sequence = chunk.sequence
        if chunk.num_samples and sequence.phases.first_token is None:
            sequence.note_token(self._context.now)
            for notify in self._live.on_first_token:
                notify(sequence)
        if sequence.group is not None:
            if chunk.is_current:  # else it is recomputed, with the same candidates
                self._publish(sequence, chunk.stop)
                if chunk.num_samples:
                    self._beams.deliver(sequence, result.samples[sequence.seq_id][0])
            return
        samples: tuple[SampledToken, ...] = ()
        computed = chunk.stop
        if chunk.num_samples:
            sampled = result.samples[sequence.seq_id]
            samples = self._accepted(sequence, sampled)
            if self._drafts is not None:
                computed = self._drafts.settle(chunk, sampled, len(samples))
            num_last, in_grammar = len(sequence.tokens) - computed, sequence.seq_id in result.in_grammar
            if sequence.grammar is not None or num_last > 1 or in_grammar:
                sequence.grammar = sequence.grammar or GrammarState()
                sequence.grammar.note_sample(num_last, is_leading=in_grammar)
            sequence.chain.extend(sequence.tokens)
        if chunk.is_current:
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

    def _accepted(self, sequence: Sequence, samples: tuple[SampledToken, ...]) -> tuple[SampledToken, ...]:
        """The new tokens, up to one that ends the sequence: drafts or forced tokens may extend beyond it."""
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
        """The client's update for this commit; closes the sequence after its last token."""
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
        if embedding:  # its sample is a placeholder
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
