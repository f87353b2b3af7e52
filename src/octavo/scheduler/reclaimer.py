"""Executes the orders of reclaim: releases the choices of `retention.reclaim` until a request is met."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Reservation
from octavo.memory.quota import TenantPolicy
from octavo.retention.reclaim import (
    RELOADING,
    RESERVING,
    RESIZING,
    Choice,
    PreemptionCosts,
    ReclaimOrder,
    ReclaimRequest,
    ReclaimSource,
    next_choice,
)
from octavo.retention.soft_holds import SoftHolds
from octavo.retention.transfers import Transfers
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.victims import Victims
from octavo.step.context import Context
from octavo.units import blocks_for


@dataclass(eq=False)
class Reclaimer:
    """Releases fetches and soft holds, and preempts running sequences."""

    _context: Context
    _victims: Victims
    _transfers: Transfers
    _soft_holds: SoftHolds
    _preemption: Preemption

    def __post_init__(self) -> None:
        self._costs = PreemptionCosts(self._victims.running_holders, self._victims.share_of, self._loss_of)

    def reclaim(self, order: ReclaimOrder, request: ReclaimRequest, winner: Sequence | None = None) -> bool:
        """Release blocks from the order's sources until the request is met. Returns False if no source has
        any left. `winner`: the sequence that needs the blocks, if it is one."""
        while not request.is_met():
            choice = next_choice(order, request, self._costs)
            if not choice:
                return False
            self._release(choice, winner)
            request.after_release(choice)
        return True

    def reserve(self, sequence: Sequence, start: int, stop: int) -> Reservation | None:
        """Make positions [start, stop) of a running sequence writable, after reclaiming missing blocks. None:
        no source has any left."""
        ledger, transfers, table = self._context.ledger, self._transfers, sequence.table
        assert table is not None
        reservation: Reservation | None = None

        def short_tenant() -> str | None:
            """The tenant, if its bound is short: then only its own blocks help. None: the pool is."""
            is_own = ledger.quotas.room(table.owner) <= ledger.num_available
            return sequence.request.tenant if is_own else None

        def is_met() -> bool:
            nonlocal reservation
            reservation = ledger.reserve(table, start, stop)
            return reservation is not None

        def num_missing() -> int:
            unheld = min(ledger.quotas.room(table.owner), ledger.num_available)
            return max(1, blocks_for(stop, ledger.block_size) - len(table) - unheld)

        def behind() -> list[Holder]:
            tenant = short_tenant()
            return _records(s for s in self._victims.behind(sequence) if tenant in (None, s.request.tenant))

        def last_resort() -> list[Holder]:
            if short_tenant() is not None or transfers.in_flight:
                return []
            return _records(self._victims.last_resort(sequence))

        candidates = {
            ReclaimSource.FETCHES_BEHIND: lambda: self.fetches_behind(sequence, short_tenant()),
            ReclaimSource.SEQUENCES_BEHIND: behind,
            ReclaimSource.FETCHES: lambda: transfers.complete(short_tenant()),
            ReclaimSource.LAST_RESORT: last_resort,
        }
        self.reclaim(RESERVING, ReclaimRequest(is_met, candidates, num_missing), sequence)
        return reservation

    def for_smaller_pool(self, num_blocks: int) -> Collection[int] | None:
        """Bring held blocks down to `num_blocks`, as far as possible. Returns the blocks that cannot move.
        Returns None and releases nothing while blocks that would have to move are in transfer."""
        ledger, fixed = self._context.ledger, self._transfers.blocks()
        # Blocks that stay held when nothing runs and every complete fetch is released.
        unreclaimable = {b for holder in ledger.holders.values() if holder.is_fixed for b in holder.blocks}
        if any(num_blocks <= block for block in fixed) or num_blocks < len(unreclaimable):
            return None
        candidates = {
            ReclaimSource.FETCHES: self._transfers.complete,
            ReclaimSource.SEQUENCES: lambda: _records(self._victims.running()),
        }
        request = ReclaimRequest(
            lambda: ledger.pool.num_blocks - ledger.num_available <= num_blocks, candidates
        )
        self.reclaim(RESIZING, request)
        return fixed

    def keep_to_bounds(self, policies: Iterable[TenantPolicy]) -> None:
        """Apply these bounds of tenants: release the blocks beyond them."""
        self._soft_holds.keep_to_bounds()
        for policy in policies:
            if policy.maximum is not None and not self._keep_to_maximum(policy.name, policy.maximum):
                raise AssertionError(f"tenant {policy.name!r} holds blocks that cannot be released")

    def _keep_to_maximum(self, tenant: str, maximum: int) -> bool:
        candidates = {
            ReclaimSource.SEQUENCES: lambda: _records(self._victims.running(tenant)),
            ReclaimSource.SOFT_HOLDS: lambda: self._soft_holds.beyond_maximum(tenant),
            ReclaimSource.FETCHES: lambda: self._transfers.complete(tenant),
        }
        quotas = self._context.ledger.quotas
        return self.reclaim(RELOADING, ReclaimRequest(lambda: quotas.charged(tenant) <= maximum, candidates))

    def fetches(self, tenant: str | None = None) -> list[Holder]:
        """Complete fetches, of all tenants or one."""
        return self._transfers.complete(tenant)

    def fetches_behind(self, sequence: Sequence, tenant: str | None) -> list[Holder]:
        """The fetches for sequences that rank after this one."""
        return [holder for holder in self._transfers.complete(tenant) if holder.rank > sequence.rank]

    def borrowed_fetches(self, sequence: Sequence) -> list[Holder]:
        """Complete fetches of other tenants that use more than they were guaranteed. Blocks of waiting
        borrowers keep no guarantee from its tenant."""
        for fetch in self._transfers.complete():
            if fetch.tenant != sequence.request.tenant and self._victims.is_borrower(fetch.tenant):
                return self._transfers.complete(fetch.tenant)
        return []

    def _loss_of(self, members: Choice, needed: int) -> tuple[int, float]:
        """The gain of the pool, counted up to `needed`, and the loss of the sequences."""
        freed = self._context.ledger.without(member.table for member in members).freed
        return min(needed, len(freed)), self._preemption.price_of(members, freed)

    def _release(self, choice: Choice, winner: Sequence | None) -> None:
        """Release each kind of holder."""
        if choice[0].kind is HolderKind.SEQUENCE:
            self._preemption.preempt_holders(choice, winner)
        elif choice[0].kind is HolderKind.FETCH:
            for holder in choice:
                self._transfers.release_fetch(holder.group)
        else:
            self._soft_holds.release(choice)


def _records(sequences: Iterable[Sequence]) -> list[Holder]:
    return [sequence.as_holder() for sequence in sequences]
