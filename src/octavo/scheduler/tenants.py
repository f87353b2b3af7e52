"""Tenants while the server runs: new ones, changed bounds, removal."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

from octavo.errors import QueueFull, TenantsRefused, UnknownTenant
from octavo.memory.capacity import blocks_needed, slots_needed
from octavo.memory.holders import HolderKind
from octavo.memory.quota import SHARED, TenantPolicy, share_of
from octavo.retention.pins import Pins
from octavo.retention.room import Room
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.reclaimer import Reclaimer
from octavo.step.context import Context


class TenantBounds:
    """The tenants and their bounds."""

    def __init__(
        self,
        context: Context,
        pins: Pins,
        live: LiveSequences,
        room: Room,
        reclaimer: Reclaimer,
    ) -> None:
        self._context = context
        self._quotas = context.ledger.quotas
        self._pins = pins
        self._live = live
        self._room = room
        self._reclaimer = reclaimer
        self._named: set[str] = set()  # tenants of the last `set_policies`
        self.gone: set[str] = set()  # tenants named once, and not now
        self.draining: set[str] = set()  # of these, the ones with requests, pins or held blocks left

    def set_policies(self, policies: Many[TenantPolicy]) -> None:
        """Replace the tenants. Sequences beyond a smaller maximum are preempted. A tenant that is not among
        them keeps its last bounds, except its guarantee, until it has nothing left.

        Raises TenantsRefused, and changes nothing, if guarantees do not fit with the accepted requests.
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
        self.draining = {policy.name for policy in leaving}
        self.gone = (self.gone | self._named) - named - {SHARED}
        self._named = named
        self._quotas.num_tenants = len(named - {SHARED})
        self._live.service.reweigh()
        self._reclaimer.keep_to_bounds(policies)

    def continue_from(self, old: TenantBounds) -> None:
        """Keep the tenants over a new ledger."""
        self.set_policies(old.named())
        self.gone = old.gone

    def named(self) -> list[TenantPolicy]:
        """The bounds set last."""
        return [policy for policy in self._quotas.policies() if policy.name in self._named]

    def check_known(self, tenant: str) -> None:
        """Raise UnknownTenant for a removed tenant, whose key was valid before."""
        if tenant in self.gone:
            raise UnknownTenant(
                f"{tenant} is not a tenant any more; allowed: a key of one that the tenants file names"
            )

    def check_queue(self, tenant: str) -> None:
        """Raise QueueFull when the tenant's queue is full, or the whole queue is and the tenant has its
        share. O(waiting) near these bounds."""
        num_waiting, bound = len(self._live.waiting), self._context.config.max_waiting
        limit, share = self._quotas.policy(tenant).max_waiting, share_of(bound, self._quotas.num_tenants)
        common = bound // 2 if share and limit is None else bound
        if limit is None and num_waiting < common:
            return
        own = len({s.request.request_id for s in self._live.waiting if s.request.tenant == tenant})
        if limit is not None and own >= limit:
            raise QueueFull(f"{own:,} of your requests are waiting; allowed: {limit:,} (your max_queue)")
        if num_waiting < common or own < share:
            return
        if common < bound:
            raise QueueFull(
                f"{own:,} of your requests are waiting, and half of the queue is taken; allowed then: "
                f"{share:,}, your share (max_queue of your entry in the tenants file, or setting max_queue)"
            )
        many = "too many" if tenant else f"{num_waiting}"  # no number that other tenants change
        raise QueueFull(f"{many} requests are waiting; allowed: {bound} (setting max_queue)")

    def drop_drained(self) -> None:
        """Remove the bounds of removed tenants with nothing left. O(1) without any."""
        gone = {tenant for tenant in self.draining if not self._has_anything(tenant)}
        if gone:
            self.draining -= gone
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
        total = sum(self._room.hard.reserved(policy.name) for policy in self._quotas.policies())
        if total > pool:
            raise TenantsRefused(
                f"tenants are guaranteed {total:,} blocks together, pins beyond a guarantee "
                f"included; allowed: {pool:,}, the pool (setting kv_memory)"
            )
        for request in self._live.requests():
            needed, room = blocks_needed(request, size), self._room.room_with_hard_pins(request)
            if needed > room:
                raise TenantsRefused(
                    f"request {request.request_id}, which was accepted, may need {needed:,} blocks, and "
                    f"these guarantees and bounds would leave it {room:,}; try again when it has ended"
                )
            slots, disk_maximum = (
                slots_needed(request, size),
                self._quotas.policy(request.tenant).disk_maximum,
            )
            if disk_maximum is not None and slots > disk_maximum:
                raise TenantsRefused(
                    f"request {request.request_id}, which was accepted, may need {slots:,} blocks in the "
                    f"offload tier, and `disk` would leave its tenant {disk_maximum:,}; try again when it "
                    "has ended"
                )
        for policy in self._quotas.policies():
            kept = self._pins.blocks_of(policy.name, hard_only=True) + self._num_loading(policy.name)
            if policy.maximum is not None and kept > policy.maximum:
                raise TenantsRefused(
                    f"tenant {policy.name} has pinned, or is loading, {kept:,} blocks, and its maximum would "
                    f"be {policy.maximum:,}; delete pins first, or try again when they are loaded"
                )

    def _num_loading(self, tenant: str) -> int:
        """The tenant's blocks held by incomplete fetches."""
        pool, owner = self._context.ledger.pool, self._quotas.owner(tenant)
        loading = (
            holder.blocks
            for holder in self._context.ledger.holders.values()
            if holder.kind is HolderKind.FETCH and holder.is_fixed
        )
        return len({block for blocks in loading for block in blocks if pool.owner[block] == owner})
