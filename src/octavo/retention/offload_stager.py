"""The offload of a victim: the plan copies its full blocks into a small arena after the pool, and they are
stored from there. So the pool has its blocks again at once, and no request waits for the tier.

    pool  [ 0 .................... capacity ) [ capacity .... capacity + staging )
                 victim's block  --copy in the plan-->  staged block  --store-->  slot of the tier
                 free at once                           free when the store has ended

Measurements decide for each victim: a block is kept if storing and loading it takes less time than computing
its positions. The arena bounds the stores in flight; when it is full, the rest is computed again. Heads go
first: a chain without its head finds nothing. A staged block is in no table and has no name; its slot is
findable when the store has ended, as every slot.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from collections.abc import Set
from dataclasses import dataclass

from octavo.memory.holders import Holder
from octavo.retention.arena import StagingArena
from octavo.retention.transfers import Transfers
from octavo.step.context import Context
from octavo.step.headroom import Headroom
from octavo.types import BlockCopy


@dataclass(frozen=True, slots=True)
class Loss:
    """The work of sequences to reach the same state again. Positions of shared blocks count once."""

    recomputed: int  # positions
    loaded: int  # blocks: `stored` and those that are in the tier already
    stored: tuple[int, ...] = ()  # blocks that must be copied and stored first, heads before tails

    def price(self, load_price: float) -> float:
        """In positions; loading a block costs as much as computing `load_price` of them."""
        return self.recomputed + self.loaded * load_price


class OffloadStager:
    """Keeps blocks of victims, and computes their losses. Acts on the tier and on the plan in the making."""

    def __init__(
        self, context: Context, transfers: Transfers, arena: StagingArena, headroom: Headroom
    ) -> None:
        self.num_kept = 0  # preemptions after which blocks are in the tier, and others
        self.num_recomputed = 0
        self.num_staged = 0  # blocks
        self._context = context
        self._transfers = transfers
        self._arena = arena
        self._headroom = headroom

    @property
    def load_price(self) -> float:
        """Positions that could be computed while a block is loaded; 0 if unknown."""
        load_s, position_s = self._transfers.load_s, self._context.times.position_s
        return 0.0 if load_s is None or not position_s else load_s / position_s

    def is_worth_it(self) -> bool:
        """Whether storing and loading a block is expected to be cheaper than computing it, or unknown."""
        if self._transfers.tier is None or not self._transfers.is_worth_it():
            return False
        store_s, position_s = self._arena.store_s, self._context.times.position_s
        if store_s is None or not position_s:
            return True
        return store_s / position_s + self.load_price < self._context.ledger.block_size

    def loss_of(self, members: Many[Holder], freed: Set[int] | None = None) -> Loss:
        """The loss of preempting these together now, by the cheaper way. O(blocks). `freed`: the blocks that
        only they hold, if known.

        A block with other holders stays. After the first block that is neither in an offload tier nor kept,
        all positions are computed again.
        """
        ledger, transfers = self._context.ledger, self._transfers
        size, name_of, worth_it = ledger.block_size, ledger.pool.name_of, self.is_worth_it()
        room = len(self._arena.free) if worth_it else 0
        if freed is None:
            freed = ledger.without(holder.table for holder in members).freed
        seen: set[int] = set()
        recomputed = loaded = 0
        stored: list[int] = []
        for holder in members:
            assert holder.table is not None
            findable = holder.is_findable
            published = holder.table.published
            recomputed += holder.num_planned - holder.table.num_published * size
            for block in published:
                name = name_of[block]
                if block in seen or (findable and name is not None and block not in freed):
                    continue
                seen.add(block)
                is_offloaded = findable and name is not None and worth_it and transfers.is_offloaded(name)
                # A name that was forgotten while sequences still read its slot cannot be stored yet.
                can_store = findable and name is not None and not transfers.is_read_in_tier(name)
                if is_offloaded:
                    loaded += 1
                elif can_store and len(stored) < room:
                    loaded += 1
                    stored.append(block)
                else:
                    findable = False
                    recomputed += size
        return Loss(recomputed, loaded, tuple(stored))

    def keep(self, members: Many[Holder]) -> Loss:
        """Before their preemption: store the blocks that are cheaper to load than to compute, and are not in
        the tier. Returns their loss. Idempotent for each block."""
        loss = self.loss_of(members)
        name_of = self._context.ledger.pool.name_of
        for count, block in enumerate(loss.stored):
            name = name_of[block]
            assert name is not None
            target = self._arena.free[-1]
            if not self._transfers.store_staged(target, name):  # no slot is free or evictable
                left = len(loss.stored) - count
                again = loss.recomputed + left * self._context.ledger.block_size
                return Loss(again, loss.loaded - left, loss.stored[:count])
            self._arena.take()
            self.num_staged += 1
            self._context.plan.copy(BlockCopy(block, target))
        return loss

    def record(self, loss: Loss) -> str:
        """Count a preemption, and describe its cost."""
        self.num_kept += loss.loaded > 0
        self.num_recomputed += loss.loaded == 0
        text = f"at most {loss.recomputed:,} positions will be computed again"
        if loss.loaded:
            text = f"{loss.loaded:,} blocks are kept in an offload tier, {text}"
        position_s = self._context.times.position_s
        if position_s:
            cost_s = loss.price(self.load_price) * position_s
            self._headroom.record_undone(cost_s)
            otherwise_s = (loss.recomputed + loss.loaded * self._context.ledger.block_size) * position_s
            text += f" ({cost_s * 1000:,.1f} ms; {otherwise_s * 1000:,.1f} ms if nothing were kept)"
        return text
