"""What a preemption is: the victim's table is dropped, what is cheaper to load than to compute is kept below,
and it waits again."""

from __future__ import annotations

from collections.abc import Sequence as Many
from collections.abc import Set
from dataclasses import dataclass

from octavo.memory.holders import Holder
from octavo.retention.staging import OffloadStager
from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence, State
from octavo.step.context import Context
from octavo.step.events import Event, EventKind


@dataclass(eq=False)
class Preemption:
    """Acts on running sequences."""

    _context: Context
    _live: LiveSequences
    _beams: BeamRows
    _staging: OffloadStager

    def price_of(self, members: Many[Holder], freed: Set[int]) -> float:
        """What these sequences would lose if they went together, in positions. `freed`: the blocks that only
        they hold."""
        return self._staging.loss_of(members, freed).price(self._staging.load_price)

    def preempt_holders(self, holders: Many[Holder], winner: Sequence | None) -> None:
        """The running sequences of these records go. O(running)."""
        by_holder = {s.holder: s for s in self._live.running}
        self.preempt_all([by_holder[holder] for holder in holders], winner)

    def preempt_all(self, members: Many[Sequence], winner: Sequence | None) -> None:
        """They go, and what is worth it is kept below: together, so that heads have the first turn."""
        self._staging.keep([member.as_holder() for member in members])
        for member in members:
            if member.state is State.RUNNING:
                self.preempt(member, winner)

    def preempt(self, sequence: Sequence, winner: Sequence | None) -> None:
        """Running -> waiting, for the sake of `winner`, or of a smaller pool: the table is dropped, what is
        cheaper to load than to compute is kept below. Resuming is an ordinary admission that finds its own
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
