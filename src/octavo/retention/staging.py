"""What a victim keeps below: its full blocks are copied, in the plan, into a small arena behind the pool, and
stored from there. So the pool has its blocks again at once, and nothing waits for the tier.

    pool  [ 0 .................... capacity ) [ capacity .... capacity + staging )
                 victim's block  --copy in the plan-->  staged block  --store-->  slot below
                 free at once                           free when the store has ended

Keep or recompute is decided for each victim by what was measured: a block is kept if storing and loading it
takes less time than computing its positions. The arena bounds what is on its way; where it is full the rest
is computed again. Heads go first: a chain without its head finds nothing. A staged block is in no table and
has no name; the slot that it goes to is findable when its store has ended, as every slot.
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
    """What sequences have to do again to be where they were. Positions of shared blocks count once."""

    recomputed: int  # positions
    loaded: int  # blocks, `stored` and those that are below already
    stored: tuple[int, ...] = ()  # blocks that must be copied and sent below first, heads before tails

    def price(self, load_price: float) -> float:
        """In positions, where loading a block costs as much as computing `load_price` of them."""
        return self.recomputed + self.loaded * load_price


class OffloadStager:
    """What victims keep, and what they lose. Acts on the tier and on the plan in the making."""

    def __init__(
        self, context: Context, transfers: Transfers, arena: StagingArena, headroom: Headroom
    ) -> None:
        self.num_kept = 0  # preemptions after which something is below, and others
        self.num_recomputed = 0
        self.num_staged = 0  # blocks
        self._context = context
        self._transfers = transfers
        self._arena = arena
        self._headroom = headroom

    @property
    def load_price(self) -> float:
        """Positions that could be computed while a block is loaded; 0 while that is not known."""
        load_s, position_s = self._transfers.load_s, self._context.times.position_s
        return 0.0 if load_s is None or not position_s else load_s / position_s

    def is_worth_it(self) -> bool:
        """Storing and loading a block is thought cheaper than computing it; also while that is unknown."""
        if self._transfers.tier is None or not self._transfers.is_worth_it():
            return False
        store_s, position_s = self._arena.store_s, self._context.times.position_s
        if store_s is None or not position_s:
            return True
        return store_s / position_s + self.load_price < self._context.ledger.block_size

    def loss_of(self, members: Many[Holder], freed: Set[int] | None = None) -> Loss:
        """What these would have to do again if they went together now, by the cheaper way. O(blocks).
        `freed`: the blocks that only they hold, where that is known.

        A block that others hold stays. Behind the first block that is neither in an offload tier nor kept,
        all is computed again.
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
                is_below = findable and name is not None and worth_it and transfers.is_below(name)
                # One that was forgotten below while others still read it there cannot be stored yet.
                can_store = findable and name is not None and not transfers.is_read_below(name)
                if is_below:
                    loaded += 1
                elif can_store and len(stored) < room:
                    loaded += 1
                    stored.append(block)
                else:
                    findable = False
                    recomputed += size
        return Loss(recomputed, loaded, tuple(stored))

    def keep(self, members: Many[Holder]) -> Loss:
        """They are about to go: send down what is cheaper to load than to compute, and is not there. Returns
        what they lose. Calling it again for one of them sends nothing twice."""
        loss = self.loss_of(members)
        name_of = self._context.ledger.pool.name_of
        for count, block in enumerate(loss.stored):
            name = name_of[block]
            assert name is not None
            target = self._arena.free[-1]
            if not self._transfers.store_staged(target, name):  # every slot below is on its way somewhere
                left = len(loss.stored) - count
                again = loss.recomputed + left * self._context.ledger.block_size
                return Loss(again, loss.loaded - left, loss.stored[:count])
            self._arena.take()
            self.num_staged += 1
            self._context.plan.copy(BlockCopy(block, target))
        return loss

    def record(self, loss: Loss) -> str:
        """Count a preemption, and say in words what it costs."""
        self.num_kept += loss.loaded > 0
        self.num_recomputed += loss.loaded == 0
        text = f"at most {loss.recomputed:,} positions will be computed again"
        if loss.loaded:
            text = f"{loss.loaded:,} blocks are kept below, {text}"
        position_s = self._context.times.position_s
        if position_s:
            cost_s = loss.price(self.load_price) * position_s
            self._headroom.undone(cost_s)
            otherwise_s = (loss.recomputed + loss.loaded * self._context.ledger.block_size) * position_s
            text += f" ({cost_s * 1000:,.1f} ms; {otherwise_s * 1000:,.1f} ms if nothing were kept)"
        return text
