"""Bugs planted in preemption: whom it takes, and what it keeps below."""

from __future__ import annotations

from collections.abc import Sequence as Many

from tests.simulator.planting import PlantedBug

from octavo.memory.holders import Holder
from octavo.retention.arena import StagingArena
from octavo.retention.offload_stager import Loss, OffloadStager
from octavo.retention.transfers import Transfers
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.victims import Victims
from octavo.step.headroom import LEAST, MOST, Headroom
from octavo.step.plan_builder import PlanBuilder
from octavo.types import BlockCopy, TransferDone


def _reused_before_it_is_stored(self: OffloadStager, members: Many[Holder]) -> Loss:
    loss = _KEEP(self, members)
    free = self._arena._free
    free += [block for block, _ in self._transfers.staged() if block not in free]
    return loss


def _never_free_again(self: StagingArena, block: int, done: TransferDone) -> None:
    return None


def _findable_while_it_is_staged(self: Transfers, block: int, name: bytes) -> bool:
    stored = _STORE_STAGED(self, block, name)
    if stored and self.tier is not None:
        self.tier._slot_of[name] = self.tier._storing[name]
    return stored


def _copied_the_wrong_way(self: PlanBuilder, copy: BlockCopy) -> None:
    self._copies.append(BlockCopy(copy.target, copy.source))


def _stored_from_the_pool(self: OffloadStager, members: Many[Holder]) -> Loss:
    """The store reads the victim's own block, which the pool gives away at once."""
    loss, name_of = self.loss_of(members), self._context.ledger.pool.name_of
    for block in loss.stored:
        name = name_of[block]
        assert name is not None
        if self._transfers.store_staged(block, name):
            self._arena.take()
    return loss


def _victims_before_the_winner(self: Victims, winner: Sequence) -> list[Sequence]:
    planned = {chunk.seq_id for chunk in self._context.plan.chunks}
    return [s for s in self._live.running if s is not winner and s.seq_id not in planned]


def _headroom_changes_between_looks(self: Headroom, num_running: int, num_blocks: int) -> int:
    self.each = LEAST if self.each == MOST else MOST
    return _BLOCKS(self, num_running, num_blocks)


_BLOCKS, _KEEP, _STORE_STAGED = Headroom.blocks, OffloadStager.keep, Transfers.store_staged

PREEMPTION_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("staged block reused before it is stored", OffloadStager, "keep", _reused_before_it_is_stored),
    PlantedBug("staged block never free again", StagingArena, "finish", _never_free_again),
    PlantedBug(
        "kept block findable before it is stored", Transfers, "store_staged", _findable_while_it_is_staged
    ),
    PlantedBug("kept block is not copied", PlanBuilder, "copy", lambda self, copy: None),
    PlantedBug("kept block is copied the wrong way", PlanBuilder, "copy", _copied_the_wrong_way),
    PlantedBug("kept block is stored after its reuse", OffloadStager, "keep", _stored_from_the_pool),
    PlantedBug("victim that ranks before the winner", Victims, "behind", _victims_before_the_winner),
    PlantedBug("headroom changes while a plan is made", Headroom, "blocks", _headroom_changes_between_looks),
)
