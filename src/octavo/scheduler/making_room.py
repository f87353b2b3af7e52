"""Making room: `retention.reclaim` chooses who gives blocks up, this applies it.

Liveness: only sequences that rank after the one that is short are asked, whatever they would lose. Ranks are
a strict order, so of two sequences only one can ever preempt the other, and the best-ranked that runs is no
other's victim: it advances in every step until it ends, or until one of better rank enters. That makes the
best rank better, which can happen only as often as there are requests, so some request ends. What ends never
comes back, and tokens that were sampled are never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from octavo.memory.holders import Holder, HolderKind
from octavo.retention.reclaim import (
    BOUNDING,
    RELOADING,
    RESERVING,
    RESIZING,
    Choice,
    Rung,
    Shortage,
    cheapest,
    find,
)
from octavo.retention.soft_holds import SoftHolds
from octavo.retention.staging import Staging
from octavo.retention.transfers import Transfers
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.shares import TenantShares
from octavo.step.context import Context
from octavo.units import blocks_for


def whole_groups(eligible: list[Sequence]) -> list[Sequence]:
    """Without beams of a group some of whose beams are not among them: a group goes as one, or not at all."""
    if all(s.group is None for s in eligible):
        return eligible
    return [s for s in eligible if s.group is None or all(beam in eligible for beam in s.group.sequences())]


@dataclass(eq=False)
class MakingRoom:
    """Asks ladders, and lets the chosen go."""

    _context: Context
    _live: LiveSequences
    _shares: TenantShares
    _transfers: Transfers
    _staging: Staging
    _soft_holds: SoftHolds
    _preemption: Preemption

    def for_positions(self, sequence: Sequence, stop: int) -> bool:
        """`sequence` finds no block for positions up to `stop`. False when there is no one to ask."""
        ledger, table = self._context.ledger, sequence.table
        assert table is not None
        # Short of the pool, or of what its tenant may hold: then only the tenant's own can help.
        room = ledger.quotas.room(table.owner)
        tenant = sequence.request.tenant if room <= ledger.num_unheld else None
        missing = blocks_for(stop, ledger.block_size) - len(table) - min(room, ledger.num_unheld)
        complete = self._transfers.complete
        asked = {
            Rung.FETCHES_BEHIND: lambda: [h for h in complete(tenant) if h.rank > sequence.rank],
            Rung.SEQUENCES_BEHIND: lambda: _records(
                [s for s in self.behind(sequence) if tenant in (None, s.request.tenant)]
            ),
            Rung.FETCHES: lambda: complete(tenant),
            Rung.LAST_RESORT: lambda: [] if tenant is not None else _records(self._last_resort(sequence)),
        }
        return self._let_go(find(RESERVING, self._shortage(max(1, missing), asked)), sequence)

    def for_smaller_pool(self) -> bool:
        """One holder less that may go. False when there is none."""
        asked = {
            Rung.FETCHES: self._transfers.complete,
            Rung.SEQUENCES: lambda: _records(self._live.running),
        }
        return self._let_go(find(RESIZING, self._shortage(1, asked)), None)

    def for_bounds(self, tenant: str) -> bool:
        """The tenant holds more than it may: one of its holders less. False when there is none."""
        own = [s for s in self._live.running if s.request.tenant == tenant]
        asked = {
            Rung.SEQUENCES: lambda: _records(own),
            Rung.SOFT_HOLDS: lambda: self._soft_holds.beyond_maximum(tenant),
            Rung.FETCHES: lambda: self._transfers.complete(tenant),
        }
        return self._let_go(find(RELOADING, self._shortage(1, asked)), None)

    def for_own_bounds(self, sequence: Sequence, *, may_take_all: bool) -> bool:
        """The bounds of its tenant keep a waiting sequence out: one of the tenant's fetches less. False when
        there is none. `may_take_all`: also those that rank before it."""
        complete = self._transfers.complete(sequence.request.tenant)
        asked = {
            Rung.FETCHES_BEHIND: lambda: [h for h in complete if h.rank > sequence.rank],
            Rung.FETCHES: lambda: complete if may_take_all else [],
        }
        return self._let_go(find(BOUNDING, self._shortage(1, asked)), None)

    def of_fetches(self, tenant: str | None = None) -> bool:
        """One complete fetch less, of all or of one tenant. False when there is none."""
        asked = {Rung.FETCHES: lambda: self._transfers.complete(tenant)}
        return self._let_go(find((Rung.FETCHES,), self._shortage(1, asked)), None)

    def victims(self, eligible: Collection[Sequence], needed: int) -> tuple[Sequence, ...]:
        """Which of these sequences are to go, together, where so many blocks are missing."""
        by_holder = {s.as_holder(): s for s in eligible}
        return tuple(by_holder[h] for h in cheapest(list(by_holder), self._shortage(needed, {})))

    def behind(self, winner: Sequence) -> list[Sequence]:
        """Those that rank after `winner`, have no chunk in the plan being made, and are protected by no
        guarantee; a tenant within its own guarantee comes before borrowers of any rank."""
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
        """All others that have no chunk in the plan being made."""
        plan = self._context.plan
        planned = {chunk.seq_id for chunk in plan.chunks} | {fork.child_seq_id for fork in plan.forks}
        others = [s for s in self._live.running if s is not winner and s.seq_id not in planned]
        return whole_groups(others)

    def _last_resort(self, sequence: Sequence) -> list[Sequence]:
        """Guarantees fit the pool together, but prefixes that are held on after the operator ceased to share
        them are charged to no tenant: then the best-ranked of all may preempt those that rank after it."""
        if not self._context.ledger.quotas.has_guarantees or self._transfers.in_flight:
            return []
        if min(s.rank for s in self._live.running) < sequence.rank:  # beams of a group share theirs
            return []
        return self.unplanned(sequence)

    def _shortage(self, needed: int, asked: dict[Rung, Callable[[], list[Holder]]]) -> Shortage:
        return Shortage(
            needed,
            asked,
            lambda: (s.holder for s in self._live.running),
            lambda holder: self._shares.share_of(holder.tenant),
            self._loss,
        )

    def _loss(self, members: Choice, needed: int) -> tuple[int, float]:
        """What the pool gains, counted up to `needed`, and what they lose."""
        freed = self._context.ledger.without(member.table for member in members).freed
        loss = self._staging.loss_of(members, freed).price(self._staging.load_price)
        return min(needed, len(freed)), loss

    def _let_go(self, choice: Choice, winner: Sequence | None) -> bool:
        """Apply a choice: each kind of holder in its own way."""
        if not choice:
            return False
        by_holder = {s.holder: s for s in self._live.running}
        if choice[0] in by_holder:
            self._preemption.preempt_all([by_holder[holder] for holder in choice], winner)
        elif choice[0].kind is HolderKind.FETCH:
            for holder in choice:
                self._transfers.let_go(holder.group)
        else:
            self._soft_holds.let_go(choice)
        return True


def _records(sequences: Collection[Sequence]) -> list[Holder]:
    return [sequence.as_holder() for sequence in sequences]
