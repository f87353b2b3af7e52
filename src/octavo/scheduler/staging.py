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

import math
from collections import Counter
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

from octavo.scheduler.sequence import Sequence
from octavo.scheduler.transfers import HALF_LIFE_S, SMOOTHING
from octavo.scheduler.victims import Loss
from octavo.types import BlockCopy, TransferDone

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler


class Staging:
    """The arena: blocks [first, first + num_blocks). Acts on the tier and on the plan in the making."""

    def __init__(self, scheduler: Scheduler, num_blocks: int) -> None:
        self.first = scheduler.memory.pool.capacity
        self.num_blocks = num_blocks
        self.num_kept = 0  # preemptions after which something is below, and others
        self.num_recomputed = 0
        self.num_staged = 0  # blocks
        self.tokens_recomputed = 0  # computed a second time, because of a preemption
        self._scheduler = scheduler
        self._free = list(range(self.first + num_blocks - 1, self.first - 1, -1))
        self._store_s: float | None = None  # for a block, measured
        self._stored_at = 0.0

    @property
    def free(self) -> list[int]:
        """Blocks that nothing is in: for checks."""
        return list(self._free)

    @property
    def load_price(self) -> float:
        """Positions that could be computed while a block is loaded; 0 while that is not known."""
        scheduler = self._scheduler
        load_s, token_s = scheduler.transfers.load_s, scheduler.costs.token_s
        return 0.0 if load_s is None or not token_s else load_s / token_s

    def is_worth_it(self) -> bool:
        """Storing and loading a block is thought cheaper than computing it; also while nobody knows."""
        scheduler = self._scheduler
        if scheduler.transfers.tier is None or not scheduler.transfers.is_worth_it():
            return False
        if self._store_s is None or not scheduler.costs.token_s:
            return True
        store_s = self._store_s * math.exp2(-(scheduler.now - self._stored_at) / HALF_LIFE_S)
        return store_s / scheduler.costs.token_s + self.load_price < scheduler.memory.block_size

    def loss_of(self, members: Many[Sequence]) -> Loss:
        """What these would have to do again if they went together now, by the cheaper way. O(blocks).

        A block that others hold stays. Behind the first block that is neither below nor kept, all is
        computed again.
        """
        transfers, pool = self._scheduler.transfers, self._scheduler.memory.pool
        size, worth_it = self._scheduler.memory.block_size, self.is_worth_it()
        room = len(self._free) if worth_it else 0
        counted = Counter(b for s in members if s.table is not None for b in s.table.blocks)
        seen: set[int] = set()
        recomputed = loaded = 0
        stored: list[int] = []
        for sequence in members:
            assert sequence.table is not None
            findable = not sequence.wants_prompt_logprobs  # else it takes no hit, wherever its blocks are
            published = sequence.table.blocks[: sequence.table.num_published]
            recomputed += sequence.num_planned - len(published) * size
            for block in published:
                name = pool.name_of[block]
                if block in seen or (findable and name is not None and pool.holders[block] > counted[block]):
                    continue
                seen.add(block)
                is_below = findable and name is not None and worth_it and transfers.is_below(name)
                # One that was forgotten below while others still read it there cannot be stored yet.
                can_store = findable and name is not None and not transfers.is_loading(name)
                if is_below:
                    loaded += 1
                elif can_store and len(stored) < room:
                    loaded += 1
                    stored.append(block)
                else:
                    findable = False
                    recomputed += size
        return Loss(recomputed, loaded, tuple(stored))

    def keep(self, members: Many[Sequence]) -> Loss:
        """They are about to go: send down what is cheaper to load than to compute, and is not there. Returns
        what they lose. Calling it again for one of them sends nothing twice."""
        loss = self.loss_of(members)
        scheduler, name_of = self._scheduler, self._scheduler.memory.pool.name_of
        for count, block in enumerate(loss.stored):
            name = name_of[block]
            assert name is not None
            target = self._free[-1]
            if not scheduler.transfers.store_staged(target, name):  # every slot below is on its way somewhere
                left = len(loss.stored) - count
                again = loss.recomputed + left * scheduler.memory.block_size
                return Loss(again, loss.loaded - left, loss.stored[:count])
            self._free.pop()
            self.num_staged += 1
            scheduler.diff.copy(BlockCopy(block, target))
        return loss

    def finish(self, block: int, done: TransferDone) -> None:
        """The store from this block has ended, well or not."""
        self._free.append(block)
        if done.ok:
            self._stored_at = self._scheduler.now
            old = self._store_s
            self._store_s = done.seconds if old is None else old + SMOOTHING * (done.seconds - old)

    def note(self, loss: Loss) -> str:
        """Count a preemption, and say in words what it costs."""
        self.num_kept += loss.loaded > 0
        self.num_recomputed += loss.loaded == 0
        text = f"at most {loss.recomputed:,} positions will be computed again"
        if loss.loaded:
            text = f"{loss.loaded:,} blocks are kept below, {text}"
        token_s = self._scheduler.costs.token_s
        if token_s:
            cost_s = loss.price(self.load_price) * token_s
            self._scheduler.headroom.undone(cost_s)
            otherwise_s = (loss.recomputed + loss.loaded * self._scheduler.memory.block_size) * token_s
            text += f" ({cost_s * 1000:,.1f} ms; {otherwise_s * 1000:,.1f} ms if nothing were kept)"
        return text
