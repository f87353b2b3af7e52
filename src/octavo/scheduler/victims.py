"""Which running sequences may be preempted, and for which sequence. `retention.reclaim` chooses among them.

Liveness: only sequences that rank after the requester are candidates, whatever their loss. Ranks are a strict
order, so of two sequences only one can ever preempt the other. The best-ranked running sequence is never a
victim: it advances in every step until it ends, or until one of better rank is admitted. That improves the
best rank, which can happen only as often as there are requests, so some request ends. An ended request never
returns, and sampled tokens are never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.memory.holders import Holder
from octavo.memory.table import BlockTable
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.shares import TenantShares
from octavo.step.context import Context


def whole_groups(eligible: list[Sequence]) -> list[Sequence]:
    """Without the beams of incomplete groups: a group is preempted as a whole or not at all."""
    if all(s.group is None for s in eligible):
        return eligible
    return [s for s in eligible if s.group is None or all(beam in eligible for beam in s.group.sequences())]


@dataclass(eq=False)
class Victims:
    """Lists candidates. Changes nothing."""

    _context: Context
    _live: LiveSequences
    _shares: TenantShares

    def running(self, tenant: str | None = None) -> list[Sequence]:
        """All running sequences, of all tenants or one."""
        return [s for s in self._live.running if tenant in (None, s.request.tenant)]

    def running_holders(self) -> Iterator[Holder]:
        """As `running`, as holder records."""
        return (s.holder for s in self._live.running)

    def is_borrower(self, tenant: str) -> bool:
        """True when it uses more than its guarantee."""
        return self._shares.is_borrower(tenant)

    def share_of(self, holder: Holder) -> float:
        """How many blocks its tenant borrows, for its weight."""
        return self._shares.share_of(holder.tenant)

    def behind(self, winner: Sequence) -> list[Sequence]:
        """Sequences that rank after `winner`, have no chunk in the plan being made, and are protected by no
        guarantee. A tenant within its own guarantee ranks before borrowers of any rank."""
        shares, own = self._shares, winner.request.tenant
        claims = shares.used(own) < self._context.ledger.quotas.policy(own).guaranteed
        return whole_groups(
            [
                s
                for s in self.unplanned(winner)
                if not shares.is_protected(s, winner)
                and (s.rank > winner.rank or (claims and s.request.tenant != own))
            ]
        )

    def unplanned(self, winner: Sequence) -> list[Sequence]:
        """All others without a chunk in the plan being made."""
        plan = self._context.plan
        planned = {chunk.seq_id for chunk in plan.chunks} | {fork.child_seq_id for fork in plan.forks}
        others = [s for s in self._live.running if s is not winner and s.seq_id not in planned]
        return whole_groups(others)

    def last_resort(self, sequence: Sequence) -> list[Sequence]:
        """Guarantees fit the pool together, but held prefixes that the operator stopped sharing are charged
        to no tenant. For these the best-ranked of all may preempt those that rank after it."""
        if not self._context.ledger.quotas.has_guarantees:
            return []
        if min(s.rank for s in self._live.running) < sequence.rank:  # beams of a group share their rank
            return []
        return self.unplanned(sequence)

    def of_lower_priority(self, sequence: Sequence, *, own_only: bool) -> list[Sequence]:
        """Running sequences of strictly lower priority than a waiting one, of all tenants or its own."""
        tenant = sequence.request.tenant
        return [
            s
            for s in self._live.running
            if s.priority < sequence.priority and (not own_only or s.request.tenant == tenant)
        ]

    def preemptible_for(self, candidates: Many[Sequence], winner: Sequence) -> list[Sequence]:
        """Sequences of lower priority that may be preempted for another tenant's sequence until their tenants
        are down to their guarantees; last in rank first. O(blocks of the candidates)."""
        quotas = self._context.ledger.quotas
        if not quotas.has_guarantees:
            return list(candidates)
        found, without = [], self._context.ledger.without()
        for victim in sorted(candidates, key=lambda s: s.rank, reverse=True):
            tenant = victim.request.tenant
            left = without.charged(quotas.owner(tenant))
            if tenant == winner.request.tenant or left > quotas.policy(tenant).guaranteed:
                found.append(victim)
                without.release([victim.table])
        return found

    def borrowers_for(
        self, sequence: Sequence, gone: Many[BlockTable], fits: Callable[[int, Set[int]], bool]
    ) -> list[Sequence]:
        """Borrowers to preempt, in order, so that a sequence covered by its guarantee fits once the tables
        `gone` are released; none: that would not help. `fits`: whether it does with so many rows and these
        blocks freed."""
        victims, quotas = list[Sequence](), self._context.ledger.quotas
        without = self._context.ledger.without(gone)
        rows = self._live.num_free_rows
        for victim in self._borrowers(sequence):
            tenant = victim.request.tenant
            if self._shares.used_without(tenant, without) <= quotas.policy(tenant).guaranteed:
                continue
            victims.append(victim)
            without.release([victim.table])
            rows += 1 + victim.forks_left
            if fits(rows, without.freed):
                return victims
        return []

    def _borrowers(self, sequence: Sequence) -> list[Sequence]:
        """Running sequences of other tenants beyond their guarantee, the first to preempt first."""
        shares, service, tenant = self._shares, self._live.service, sequence.request.tenant
        found = [
            s
            for s in self._live.running
            if s.request.tenant != tenant and shares.is_borrower(s.request.tenant)
        ]
        return sorted(found, key=lambda s: (-s.priority, service.of(s.request.tenant), s.rank), reverse=True)
