"""The rows and blocks of beam groups: executes the decisions of `beams` by forks of block tables.

    admitted      the leader computes its known tokens        rows for all beams are promised to it
    spread        the other beams fork the leader's table, cut to what they share, and compute their tails
                                                              (after a preemption)
    advanced      a first child continues in its parent's row, others fork the parent's table; a beam
                  without a child ends                        (when all have delivered)
    gathered      all but the leader end, and it is requeued as any preempted sequence is

Bytes move only by copy-on-write: a shared block is copied when the first beam writes to it. A group is one
unit for rows, admission and preemption, so two groups never wait for each other's blocks. Source: Kwon et al.
2023, section 4.4.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.params import BeamParams
from octavo.scheduler.beams import Beam, BeamGroup, Child, Hypothesis, PathStep, shared_length, steps_of
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.step.context import Context
from octavo.types import FinishReason, SampledToken, Update, Usage


@dataclass(eq=False)
class BeamRows:
    """Forks, advances and ends the beams of live sequences."""

    _context: Context
    _live: LiveSequences

    def begin(self, sequence: Sequence, params: BeamParams) -> None:
        """A new sequence becomes the leader of its request's group."""
        ends = sequence.request.params.end_ids(self._context.config.stop_ids)
        group: BeamGroup[Sequence] = BeamGroup(sequence.request, params, ends)
        group.beams[0].sequence = sequence
        sequence.group = group
        sequence.forks_left = group.params.width - 1

    def deliver(self, sequence: Sequence, sampled: SampledToken) -> None:
        """The candidates of one beam have arrived."""
        assert sequence.group is not None
        sequence.group.beam_of(sequence).candidates = sampled.top

    def settle(self, groups: Iterable[BeamGroup[Sequence]]) -> list[Update]:
        """After a commit: advance each of these groups that can continue, and end each that is over."""
        updates: list[Update] = []
        for group in groups:
            if any(beam.sequence is None for beam in group.beams):
                if group.beams[0].candidates is not None:
                    self._spread(group)
            elif group.has_delivered:
                updates += self._advance(group)
        return updates

    def end(self, group: BeamGroup[Sequence], finish: FinishReason, error: str = "") -> list[Update]:
        """End all beams. After a deadline, the best hypotheses so far are the answer."""
        best = group.best() if finish is FinishReason.TIMEOUT else []
        return self._close(group, best, finish, error)

    def cancel_choice(self, group: BeamGroup[Sequence], choice: int) -> list[Update]:
        """The client no longer waits for this choice; after the last one all beams end."""
        if choice not in group.choices:
            return []
        if len(group.choices) == 1:
            return self.end(group, FinishReason.CANCELLED)
        group.cancelled.add(choice)
        usage = Usage(len(group.request.prompt), 0, 0, 0)
        return [Update(group.request.request_id, choice, (), usage, FinishReason.CANCELLED)]

    def gather(self, group: BeamGroup[Sequence]) -> Sequence:
        """Preempt the group: all beams but the leader, which is returned, leave their rows and blocks, and
        delivered candidates are dropped."""
        self._count_blocks(group)
        group.preemptions += 1
        for beam in group.beams[1:]:
            self._drop(group, beam)
        for beam in group.beams:
            beam.candidates = None
        self._promise_rows(group)
        return group.leader

    def _advance(self, group: BeamGroup[Sequence]) -> list[Update]:
        """Advance the group by one token; every beam has delivered its candidates.

        A beam without a child ends. A beam's first child takes over its sequence; other children fork it.
        """
        children = group.advance()
        if not children:
            return self._close(group, group.ended, FinishReason.LENGTH, "")
        self._count_blocks(group)
        parents = {id(child.parent) for child in children}
        for beam in group.beams:
            if id(beam) not in parents:
                self._drop(group, beam)
        first_children: dict[int, Child[Sequence]] = {}  # by `id` of their parent
        beams: list[Beam[Sequence]] = []
        for child in children:
            parent = child.parent.sequence
            assert parent is not None
            beam = Beam(child.score, child.path)
            if first_children.setdefault(id(child.parent), child) is child:
                beam.sequence = parent
            else:
                beam.sequence = self._fork(parent, len(parent.tokens), [child.path])
            beams.append(beam)
        for child in first_children.values():  # after the forks, which copy the parent's tokens
            self._continue(child)
        group.beams = beams
        self._promise_rows(group)
        return []

    def _continue(self, child: Child[Sequence]) -> None:
        """The child takes over its parent's sequence, row and table."""
        sequence = child.parent.sequence
        assert sequence is not None
        self._context.plan.write_token(sequence.row, len(sequence.tokens), child.path.token)
        sequence.tokens.append(child.path.token)
        sequence.chain.extend(sequence.tokens)

    def _spread(self, group: BeamGroup[Sequence]) -> None:
        """After a preemption, the leader has computed its known tokens: the others fork its table."""
        leader = group.leader
        for beam in group.beams[1:]:
            shared = shared_length(group.beams[0].path, beam.path)
            tail = steps_of(beam.path)[shared:]
            beam.sequence = self._fork(leader, leader.num_prompt + shared, tail)
        self._promise_rows(group)

    def _fork(self, parent: Sequence, num_shared: int, tail: list[PathStep]) -> Sequence:
        """A beam in its own row: the parent's first `num_shared` positions, which are computed, then its own
        tokens, which are not."""
        assert parent.table is not None
        assert num_shared <= parent.num_computed
        tokens = parent.tokens[:num_shared] + array("I", [step.token for step in tail])
        chain = parent.chain.copy()
        del chain.names[num_shared // self._context.ledger.block_size :]
        chain.extend(tokens)
        beam = Sequence(
            seq_id=self._live.new_seq_id(),
            request=parent.request,
            choice=0,
            tokens=tokens,
            chain=chain,
            num_computed=num_shared,
            num_planned=num_shared,
            split=parent.split,
            num_served=len(tokens) - 1,  # the tail was computed before, except the newest token
            group=parent.group,
        )
        beam.phases = parent.phases
        beam.table = self._context.ledger.fork(parent.table, beam.holder)
        self._context.ledger.truncate(beam.table, num_shared)
        self._live.enter_row(beam)
        return beam

    def _drop(self, group: BeamGroup[Sequence], beam: Beam[Sequence]) -> None:
        """Release the beam's sequence."""
        sequence = beam.sequence
        if sequence is None:
            return
        self._live.close(sequence)
        group.block_seconds += sequence.block_use.block_seconds
        beam.sequence = None

    def _promise_rows(self, group: BeamGroup[Sequence]) -> None:
        """Promise the group's unused rows to the leader, so it never waits for one."""
        sequences = group.sequences()
        for sequence in sequences:
            self._live.promise_rows(sequence, 0)
        self._live.promise_rows(group.leader, group.params.width - len(sequences))
        for index, sequence in enumerate(sequences):
            sequence.become_choice(index)

    def _close(
        self, group: BeamGroup[Sequence], best: list[Hypothesis], finish: FinishReason, error: str
    ) -> list[Update]:
        """One final update for each choice, best first. If the search finished (`finish` is LENGTH), a
        hypothesis that ends with a stop token has reason STOP."""
        request = group.request
        self._count_blocks(group)
        num_cached, phases = group.leader.num_cached, group.leader.phases
        for beam in group.beams:
            self._drop(group, beam)
        updates = []
        for choice in group.choices:
            found = best[choice] if choice < len(best) else Hypothesis(0.0, None)
            whole = Usage(
                len(request.prompt),
                0 if found.path is None else found.path.length,
                num_cached,
                group.preemptions,
                group.blocks_peak,
                group.block_seconds,
                phases=phases,
            )
            has_stopped = finish is FinishReason.LENGTH and found.stop_token is not None
            updates.append(
                Update(
                    request.request_id,
                    choice,
                    found.tokens,
                    whole if choice == group.choices[0] else _of_another(whole),
                    FinishReason.STOP if has_stopped else finish,
                    found.stop_token,
                    error,
                )
            )
        return updates

    def _count_blocks(self, group: BeamGroup[Sequence]) -> None:
        """Update the group's peak of distinct blocks. O(table entries)."""
        held: set[int] = set()
        for sequence in group.sequences():
            held.update(sequence.table.blocks if sequence.table is not None else ())
        group.blocks_peak = max(group.blocks_peak, len(held))


def _of_another(usage: Usage) -> Usage:
    """Usage without cost: the cost of the group is reported once, with its best choice."""
    return Usage(usage.num_prompt, usage.num_output, usage.num_cached, 0, phases=usage.phases)


def is_over(group: BeamGroup[Sequence]) -> bool:
    """True when all its beams have ended."""
    return group.beams[0].sequence is None or group.leader.state is State.FINISHED
