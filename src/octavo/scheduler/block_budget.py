"""All sums of blocks that sequences take from the pool and from their tenants' bounds.

promised    blocks that a running sequence still takes for its known tokens, in later chunks
headroom    blocks left for future tokens of running sequences (step/headroom.py)
needed      blocks that a waiting sequence takes for its known tokens, beyond its prefix hits
adopted     a hit without another holder is taken from the available blocks, as a new block is
charge      blocks charged to the sequence's tenant (`Quotas.charge_of`), and a block for each choice
            that will fork, which copies a tail
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass

from octavo.scheduler.sequence import Sequence
from octavo.step.context import Context
from octavo.step.headroom import Headroom

NOTHING_FREED: frozenset[int] = frozenset()


@dataclass(eq=False)
class BlockBudget:
    """Computes these sums. Changes nothing. `freed`: blocks that count as available."""

    _context: Context
    _headroom: Headroom

    def promised(self, running: Iterable[Sequence]) -> int:
        """Blocks that these running sequences still need for their known tokens."""
        size = self._context.ledger.block_size
        return sum(s.blocks_promised(size) for s in running)

    def promised_by_tenant(self, running: Iterable[Sequence]) -> Counter[str]:
        """As `promised`, by tenant, and a block for each choice that will fork."""
        size, promised = self._context.ledger.block_size, Counter[str]()
        for s in running:
            promised[s.request.tenant] += s.blocks_promised(size) + s.forks_left
        return promised

    def headroom(self, num_running: int) -> int:
        """Blocks that admission leaves for future tokens of so many running sequences."""
        return self._headroom.blocks(num_running, self._context.ledger.pool.num_blocks)

    def needed(self, sequence: Sequence, num_hits: int) -> int:
        """New blocks for the known tokens of a waiting sequence. For a long one: all blocks promised to it,
        its hits included, since hits in the tier may be loaded before its admission."""
        known = sequence.blocks_known(self._context.ledger.block_size)
        return min(known, sequence.request.hot_blocks) if sequence.is_long else known - num_hits

    def suffices(self, sequence: Sequence, num_hits: int, left_to_others: int, freed: Set[int]) -> bool:
        """Whether the available blocks hold a waiting sequence and `left_to_others`."""
        ledger = self._context.ledger
        left = ledger.num_available + len(freed) - left_to_others - self.needed(sequence, num_hits)
        if left < 0:
            return False
        if sequence.is_long:
            return True
        hits, holders = ledger.blocks_of(sequence.chain.names[:num_hits]), ledger.pool.holders
        return left >= sum(holders[block] == 0 or block in freed for block in hits)

    def charge_of(self, sequence: Sequence, num_hits: int, freed: Set[int] = NOTHING_FREED) -> int:
        """Blocks that its tenant would be charged for beyond its present charge."""
        ledger = self._context.ledger
        owner, hits = ledger.quotas.owner(sequence.request.tenant), sequence.chain.names[:num_hits]
        if sequence.is_long:
            return self.needed(sequence, num_hits) + sequence.forks_left
        adopted = ledger.quotas.charge_of(owner, ledger.blocks_of(hits), freed)
        return self.needed(sequence, num_hits) + adopted + sequence.forks_left

    def charge_to_come(self, own: Iterable[Sequence], owner: int) -> int:
        """Blocks that a tenant's running sequences `own` will add to its present charge."""
        quotas, pool = self._context.ledger.quotas, self._context.ledger.pool
        promised, filled = 0, set[int]()
        for s in own:
            promised += s.blocks_promised(self._context.ledger.block_size)
            if owner == quotas.shared and s.table is not None:
                filled.update(s.table.blocks)
        # Unshared blocks become its own when a pin is filled, see `Quotas.charge_of`.
        return promised + sum(pool.owner[b] == quotas.once_shared for b in filled)

    def charge_back(self, owner: int, freed: Set[int]) -> int:
        """Blocks that a tenant is charged for now, and not after `freed` are released."""
        pool = self._context.ledger.pool
        return sum(pool.owner[b] == owner and b not in pool.uncharged for b in freed)
