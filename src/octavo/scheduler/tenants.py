"""Tenants come, change and go: their bounds while the server runs."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

from octavo.errors import QueueFull, TenantsRefused, UnknownTenant
from octavo.memory.pins import Pins
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.scheduler.capacity import Capacity
from octavo.scheduler.context import Context
from octavo.scheduler.giving_way import GivingWay
from octavo.scheduler.limits import blocks_needed
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.transfers import Transfers
from octavo.scheduler.victims import Victims


class Tenants:
    """Who is one, and within which bounds."""

    def __init__(
        self,
        context: Context,
        pins: Pins,
        live: LiveSequences,
        capacity: Capacity,
        giving_way: GivingWay,
        transfers: Transfers,
        victims: Victims,
        preemption: Preemption,
    ) -> None:
        self._context = context
        self._quotas = context.ledger.quotas
        self._pins = pins
        self._live = live
        self._capacity = capacity
        self._giving_way = giving_way
        self._transfers = transfers
        self._victims = victims
        self._preemption = preemption
        self._named: set[str] = set()  # tenants whose bounds were set last
        self.gone: set[str] = set()  # tenants that were named once, and are not now
        self._leaving: set[str] = set()  # of these, the ones of whom something is left

    def set_policies(self, policies: Many[TenantPolicy]) -> None:
        """These tenants from now on. Whoever runs beyond a smaller maximum is preempted. One that is not
        among them keeps its last bounds, but for its guarantee, until nothing of it is left.

        Raises TenantsRefused, and changes nothing, where guarantees do not fit beside what was let in.
        """
        before = self._quotas.policies()
        named = {policy.name for policy in policies}
        gone = (p for p in before if p.name not in named and p != TenantPolicy(p.name))
        leaving = [replace(p, guaranteed=0) for p in gone if self._has_anything(p.name)]
        self._quotas.set_policies([*policies, *leaving])
        try:
            self._check()
        except TenantsRefused:
            self._quotas.set_policies(before)
            raise
        self._leaving = {policy.name for policy in leaving}
        self.gone = (self.gone | self._named) - named - {SHARED}
        self._named = named
        self._live.service.reweigh()
        self._giving_way.keep_to_bounds()
        for policy in policies:
            while policy.maximum is not None and self._quotas.charged(policy.name) > policy.maximum:
                own = [s for s in self._live.running if s.request.tenant == policy.name]
                if own:
                    self._preemption.preempt_all(self._victims.find(own, 1), None)
                elif self._giving_way.give_for(policy.name):
                    continue
                elif not self._transfers.give_back(None, others_too=True, tenant=policy.name):
                    raise AssertionError(f"tenant {policy.name!r} holds what nobody can let go")

    def continue_from(self, old: Tenants) -> None:
        """The same tenants over a new ledger."""
        self.set_policies(old.named())
        self.gone = old.gone

    def named(self) -> list[TenantPolicy]:
        """The bounds that were set last."""
        return [policy for policy in self._quotas.policies() if policy.name in self._named]

    def check_known(self, tenant: str) -> None:
        """Raise UnknownTenant for one that is gone: whoever let it in did so before."""
        if tenant in self.gone:
            raise UnknownTenant(
                f"{tenant} is not a tenant any more; allowed: a key of one that the tenants file names"
            )

    def check_queue(self, tenant: str) -> None:
        """Raise QueueFull when the tenant has as many requests waiting as it may."""
        limit = self._quotas.policy(tenant).max_waiting
        if limit is None:
            return
        waiting = {s.request.request_id for s in self._live.waiting if s.request.tenant == tenant}
        if len(waiting) >= limit:
            raise QueueFull(
                f"{len(waiting):,} of your requests are waiting; allowed: {limit:,} (your max_queue)"
            )

    def see_off(self) -> None:
        """Tenants that are gone, and of whom nothing is left, have no bounds any more. O(1) without any."""
        gone = {tenant for tenant in self._leaving if not self._has_anything(tenant)}
        if gone:
            self._leaving -= gone
            self._quotas.set_policies([p for p in self._quotas.policies() if p.name not in gone])
            self._live.service.reweigh()

    def _has_anything(self, tenant: str) -> bool:
        """Whether it has a request, a pin or a held block. O(1)."""
        pins = self._pins
        return (
            self._live.service.is_active(tenant)
            or pins.num_of(tenant) > 0
            or self._quotas.charged(tenant) > 0
        )

    def _check(self) -> None:
        pool, size = self._context.ledger.pool.num_blocks, self._context.ledger.block_size
        total = sum(self._capacity.reserved(policy.name, firm=True) for policy in self._quotas.policies())
        if total > pool:
            raise TenantsRefused(
                f"tenants are guaranteed {total:,} blocks together, pins beyond a guarantee "
                f"included; allowed: {pool:,}, the pool (setting kv_memory)"
            )
        for request in self._live.requests():
            needed, room = blocks_needed(request, size), self._capacity.room_with_own_pin(request, firm=True)
            if needed > room:
                raise TenantsRefused(
                    f"request {request.request_id}, which was let in, may need {needed:,} blocks, and these "
                    f"guarantees and bounds would leave it {room:,}; try again when it has ended"
                )
        for policy in self._quotas.policies():
            kept = self._pins.blocks_of(policy.name, firm=True) + self._num_loading(policy.name)
            if policy.maximum is not None and kept > policy.maximum:
                raise TenantsRefused(
                    f"tenant {policy.name} has pinned, or is loading, {kept:,} blocks, and its maximum would "
                    f"be {policy.maximum:,}; delete pins first, or try again when they are loaded"
                )

    def _num_loading(self, tenant: str) -> int:
        """Its blocks that fetches keep while they are not complete."""
        pool, owner = self._context.ledger.pool, self._quotas.owner(tenant)
        tables = [table for table in self._transfers.tables_in_flight() if table.charges]
        return len({block for table in tables for block in table.blocks if pool.owner[block] == owner})
