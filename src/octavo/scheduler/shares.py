"""Each tenant's use of the pool against its guarantee: charges, borrowers, and protection.

    protected  a tenant within its guarantee loses no block to another tenant, whatever the priorities
    claim      a waiting sequence that its tenant's guarantee covers preempts borrowers and is admitted

Borrowers can be preempted down to their guarantee, a tenant's own sequences by rank: so the best-ranked of a
tenant, or of all borrowers, always advances.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from collections.abc import Set

from octavo.memory.holders import HypotheticalRelease
from octavo.memory.quota import SHARED
from octavo.scheduler.block_budget import BlockBudget
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waits import Wait, WaitReason
from octavo.step.context import Context


class TenantShares:
    """Computes use and protection. Changes nothing."""

    def __init__(self, context: Context, live: LiveSequences, budget: BlockBudget) -> None:
        self._context = context
        self._quotas = context.ledger.quotas
        self._live = live
        self._budget = budget

    def allows(self, sequence: Sequence, num_hits: int, running: Many[Sequence], freed: Set[int]) -> bool:
        """Whether its tenant's own bounds admit it with `running`, once `freed` are available."""
        tenant = sequence.request.tenant
        policy = self._quotas.policy(tenant)
        if policy.max_running is not None:
            ids = {s.request.request_id for s in running if s.request.tenant == tenant}
            if len(ids - {sequence.request.request_id}) >= policy.max_running:
                return False
        if policy.maximum is None:
            return True
        budget, owner = self._budget, self._quotas.owner(tenant)
        own = [s for s in running if s.request.tenant == tenant]
        charged = self._quotas.charged(tenant) - budget.charge_back(owner, freed)
        needed = budget.charge_to_come(own, owner) + budget.charge_of(sequence, num_hits, freed)
        needed -= 0 if own else sequence.forks_left  # one choice can always preempt the others
        return charged + needed <= policy.maximum

    def why_not(self, sequence: Sequence, num_hits: int) -> Wait:
        """The reason that `allows` is false."""
        policy = self._quotas.policy(sequence.request.tenant)
        room = self._quotas.room(self._quotas.owner(policy.name))
        needed = self._budget.charge_of(sequence, num_hits)
        if policy.maximum is not None and needed > room:
            return Wait(WaitReason.QUOTA, needed, max(0, room))
        running = {s.request.request_id for s in self._live.running if s.request.tenant == policy.name}
        if policy.max_running is not None and len(running) >= policy.max_running:
            return Wait(WaitReason.TENANT_RUNNING, 1, len(running))
        return Wait(WaitReason.QUOTA, needed, max(0, room))

    def is_protected(self, victim: Sequence, winner: Sequence) -> bool:
        """True if the victim's tenant is within its guarantee and the winner's is another."""
        if not self._quotas.has_guarantees:
            return False
        tenant = victim.request.tenant
        return tenant != winner.request.tenant and not self.is_borrower(tenant)

    def is_borrower(self, tenant: str) -> bool:
        """True when it uses more than its guarantee."""
        return self.used(tenant) > self._quotas.policy(tenant).guaranteed

    def covers(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether its tenant stays within its guarantee with this sequence."""
        tenant, pool = sequence.request.tenant, self._context.ledger.pool
        more = self._budget.charge_of(sequence, num_hits)
        if tenant != SHARED:  # `charge_of` counts these for `shared`
            known = self._once_shared_of(tenant)
            hits = self._context.ledger.blocks_of(sequence.chain.names[sequence.queue.num_cold : num_hits])
            more += sum(pool.owner[b] == self._quotas.once_shared and b not in known for b in hits)
        return self.used(tenant) + more <= self._quotas.policy(tenant).guaranteed

    def used(self, tenant: str) -> int:
        """Blocks charged to it, and formerly shared blocks that it holds and no tenant is charged for:
        guarantees count them for their user."""
        return self._quotas.charged(tenant) + len(self._once_shared_of(tenant))

    def used_without(self, tenant: str, without: HypotheticalRelease) -> int:
        """As `used`, without some holders."""
        once_shared = self._once_shared_of(tenant) - without.freed
        return without.charged(self._quotas.owner(tenant)) + len(once_shared)

    def _once_shared_of(self, tenant: str) -> set[int]:
        """The tenant's blocks that the operator once shared. O(blocks of its holders), or O(1) if none."""
        pool = self._context.ledger.pool
        if not pool.charged[self._quotas.once_shared]:
            return set()
        holders = (h for h in self._context.ledger.holders.values() if h.tenant == tenant)
        blocks = {
            block
            for holder in holders
            if holder.table is not None and holder.table.charges
            for block in holder.table.blocks
        }
        return {block for block in blocks if pool.owner[block] == self._quotas.once_shared}

    def share_of(self, tenant: str) -> float:
        """How many blocks a tenant borrows, for its weight: the largest borrower loses blocks first."""
        policy = self._quotas.policy(tenant)
        return max(0, self._quotas.charged(tenant) - policy.guaranteed) / policy.weight

    def claim_fits(self, sequence: Sequence, num_hits: int, rows: int, freed: Set[int]) -> bool:
        """Whether a sequence covered by its guarantee can be admitted, once `freed` are available. Blocks
        promised to running sequences do not count: all guarantees fit the pool together."""
        return (
            self._budget.suffices(sequence, num_hits, sequence.forks_left, freed)
            and rows >= 1 + sequence.forks_left
            and self.allows(sequence, num_hits, self._live.running, freed)
        )
