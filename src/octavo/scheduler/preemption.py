"""Preemption: the victim's table is dropped, blocks that are cheaper to load than to compute are offloaded,
and it waits again."""

from __future__ import annotations

from collections.abc import Sequence as Many
from collections.abc import Set
from dataclasses import dataclass

from octavo.memory.holders import Holder
from octavo.retention.offload_stager import OffloadStager
from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.step.context import Context
from octavo.step.events import Event, EventKind


@dataclass(eq=False)
class Preemption:
    """Preempts running sequences."""

    _context: Context
    _live: LiveSequences
    _beams: BeamRows
    _staging: OffloadStager

    def price_of(self, members: Many[Holder], freed: Set[int]) -> float:
        """The loss of preempting these sequences together, in positions. `freed`: the blocks that only they
        hold."""
        return self._staging.loss_of(members, freed).price(self._staging.load_price)

    def preempt_holders(self, holders: Many[Holder], winner: Sequence | None) -> None:
        """Preempt the running sequences of these records. O(running)."""
        by_holder = {s.holder: s for s in self._live.running}
        self.preempt_all([by_holder[holder] for holder in holders], winner)

    def preempt_all(self, members: Many[Sequence], winner: Sequence | None) -> None:
        """Preempt them, and offload what is worth it: together, so that heads are stored first."""
        self._staging.keep([member.as_holder() for member in members])
        for member in members:
            if member.state is State.RUNNING:
                self.preempt(member, winner)

    def preempt(self, sequence: Sequence, winner: Sequence | None) -> None:
        """Running -> waiting, for `winner` or for a smaller pool. The table is dropped; blocks that are
        cheaper to load than to compute are offloaded. It resumes by an ordinary admission that finds its own
        blocks."""
        if sequence.group is not None:
            sequence = self._beams.gather(sequence.group)
        assert sequence.table is not None
        blocks, loser = len(sequence.table.blocks), sequence.request
        text = f"request {loser.request_id} gave up {blocks:,} blocks for a smaller pool"
        if winner is not None:
            text = (
                f"request {loser.request_id} gave up {blocks:,} blocks for request "
                f"{winner.request.request_id}, which ranks before it (priority {winner.priority} and "
                f"{loser.priority})"
            )
        text += f"; {self._staging.record(self._staging.keep([sequence.as_holder()]))}"
        self._context.events.record(
            Event(self._context.now, EventKind.PREEMPTED, text, loser.request_id, loser.tenant, blocks)
        )
        self._live.requeue(sequence)
