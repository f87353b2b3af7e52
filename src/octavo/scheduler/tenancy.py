"""Tenants as the scheduler sees them: bounds at submission and admission, guarantees, service.

    room       the largest request that a tenant may send: it could run alone beside all that is promised to
               others, so every set of tenants, pins and requests can advance
    protected  a tenant within its guarantee loses no block to another tenant, whatever the priorities
    claim      a tenant's waiting sequence that its guarantee covers enters at once: borrowers are preempted

Liveness: for every request that runs, the guarantees of the other tenants (or their pins, where these keep
more), the pins of its own and its worst case fit the pool together. Borrowers can be preempted down to their
guarantee, a tenant's own sequences by rank: so the best-ranked of a tenant, or of all borrowers, always
advances. One that waits need only fit beside *firm* pins: what is kept of idle sessions gives way to it
(giving_way.py).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence as Many
from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.errors import QueueFull, TenantsRefused, UnknownTenant
from octavo.memory.names import NameChain, salted_root
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.memory.table import BlockTable
from octavo.scheduler.fairness import Service
from octavo.scheduler.limits import blocks_needed
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waits import Wait, WaitReason
from octavo.types import Request

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler


class Tenancy:
    """Acts on the scheduler's ledger; called on its thread, through it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.quotas = scheduler.memory.quotas
        self.service = Service(lambda tenant: self.quotas.policy(tenant).weight)
        self._named: set[str] = set()  # tenants whose bounds were set last
        self.gone: set[str] = set()  # tenants that were named once, and are not now
        self._leaving: set[str] = set()  # of these, the ones of whom something is left

    def set_policies(self, policies: Many[TenantPolicy]) -> None:
        """These tenants from now on. Whoever runs beyond a smaller maximum is preempted. One that is not
        among them keeps its last bounds, but for its guarantee, until nothing of it is left.

        Raises TenantsRefused, and changes nothing, where guarantees do not fit beside what was let in.
        """
        scheduler, before = self._scheduler, self.quotas.policies()
        named = {policy.name for policy in policies}
        gone = (p for p in before if p.name not in named and p != TenantPolicy(p.name))
        leaving = [replace(p, guaranteed=0) for p in gone if self._has_anything(p.name)]
        self.quotas.set_policies([*policies, *leaving])
        try:
            self._check()
        except TenantsRefused:
            self.quotas.set_policies(before)
            raise
        self._leaving = {policy.name for policy in leaving}
        self.gone = (self.gone | self._named) - named - {SHARED}
        self._named = named
        self.service.reweigh()
        scheduler.giving_way.keep_to_bounds()
        for policy in policies:
            while policy.maximum is not None and self.quotas.charged(policy.name) > policy.maximum:
                own = [s for s in scheduler.running if s.request.tenant == policy.name]
                if own:
                    scheduler.victims.preempt(scheduler.victims.find(own, 1), None)
                elif scheduler.giving_way.give_for(policy.name):
                    continue
                elif not scheduler.transfers.give_back(None, others_too=True, tenant=policy.name):
                    raise AssertionError(f"tenant {policy.name!r} holds what nobody can let go")

    def named(self) -> list[TenantPolicy]:
        """The bounds that were set last."""
        return [policy for policy in self.quotas.policies() if policy.name in self._named]

    def check_known(self, tenant: str) -> None:
        """Raise UnknownTenant for one that is gone: whoever let it in did so before."""
        if tenant in self.gone:
            raise UnknownTenant(
                f"{tenant} is not a tenant any more; allowed: a key of one that the tenants file names"
            )

    def see_off(self) -> None:
        """Tenants that are gone, and of whom nothing is left, have no bounds any more. O(1) without any."""
        gone = {tenant for tenant in self._leaving if not self._has_anything(tenant)}
        if gone:
            self._leaving -= gone
            self.quotas.set_policies([p for p in self.quotas.policies() if p.name not in gone])
            self.service.reweigh()

    def _has_anything(self, tenant: str) -> bool:
        """Whether it has a request, a pin or a held block. O(1)."""
        pins = self._scheduler.pins
        return self.service.is_active(tenant) or pins.num_of(tenant) > 0 or self.quotas.charged(tenant) > 0

    def _check(self) -> None:
        pool, size = self._scheduler.memory.pool.num_blocks, self._scheduler.memory.block_size
        total = sum(self.reserved(policy.name, firm=True) for policy in self.quotas.policies())
        if total > pool:
            raise TenantsRefused(
                f"tenants are guaranteed {total:,} blocks together, pins beyond a guarantee "
                f"included; allowed: {pool:,}, the pool (setting kv_memory)"
            )
        for request in self._scheduler.requests():
            needed, room = blocks_needed(request, size), self.room_with_own_pin(request, firm=True)
            if needed > room:
                raise TenantsRefused(
                    f"request {request.request_id}, which was let in, may need {needed:,} blocks, and these "
                    f"guarantees and bounds would leave it {room:,}; try again when it has ended"
                )
        for policy in self.quotas.policies():
            kept = self._scheduler.pins.blocks_of(policy.name, firm=True) + self._num_loading(policy.name)
            if policy.maximum is not None and kept > policy.maximum:
                raise TenantsRefused(
                    f"tenant {policy.name} has pinned, or is loading, {kept:,} blocks, and its maximum would "
                    f"be {policy.maximum:,}; delete pins first, or try again when they are loaded"
                )

    def _num_loading(self, tenant: str) -> int:
        """Its blocks that fetches keep while they are not complete."""
        pool, owner = self._scheduler.memory.pool, self.quotas.owner(tenant)
        tables = [table for table in self._scheduler.transfers.tables_in_flight() if table.charges]
        return len({block for table in tables for block in table.blocks if pool.owner[block] == owner})

    def may_hold(self, tenant: str, names: Many[bytes]) -> bool:
        """Whether its maximum lets the tenant hold these published names too."""
        memory, owner = self._scheduler.memory, self.quotas.owner(tenant)
        pool = memory.pool
        blocks = [pool.find(name) for name in names]
        if owner == self.quotas.shared:  # those that no other pin shares become its own
            new = sum(b is not None and pool.owner[b] != owner for b in blocks)
            return new <= self.quotas.room(owner)
        new = sum(
            b is not None and pool.owner[b] == owner and (pool.holders[b] == 0 or b in pool.uncharged)
            for b in blocks
        )
        return new <= self.quotas.room(owner)

    def reserved(self, tenant: str, more: int = 0, *, firm: bool = False) -> int:
        """Blocks that others may borrow, but never count on; `more`: with as many more pinned; `firm`: but
        for pins that give way."""
        pinned = self._scheduler.pins.blocks_of(tenant, firm=firm)
        return max(self.quotas.policy(tenant).guaranteed, pinned + more)

    def room(self, tenant: str, *, fills_pin: bool = False, own: int = 0, firm: bool = False) -> int:
        """Blocks that the largest request of this tenant may take, of which `own` count with the pins; one
        that fills a pin is bounded by the pins' budget, not by the tenant's maximum of a request. `firm`:
        once all pins that give way have done so."""
        room = self.room_in_pool(tenant, own=own, firm=firm)
        return min(room, self._bound_of_its_own(tenant, fills_pin=fills_pin, own=own, firm=firm))

    def told_room(self, tenant: str, *, fills_pin: bool = False, own: int = 0) -> int:
        """The same, once all pins that give way have done so, as the tenant may be told: others move it by no
        pin of theirs, so there may be less."""
        policies, pool = self.quotas.policies(), self._scheduler.memory.pool.num_blocks
        if not tenant:
            return self.room(tenant, fills_pin=fills_pin, own=own, firm=True)
        pinned = self._scheduler.pins.blocks_of(tenant, firm=True) - own
        room = pool - sum(p.guaranteed for p in policies if p.name != tenant) - pinned
        return min(room, self._bound_of_its_own(tenant, fills_pin=fills_pin, own=own, firm=True))

    def _bound_of_its_own(self, tenant: str, *, fills_pin: bool, own: int, firm: bool) -> int:
        room = self.room_of_its_own(tenant, own=own, firm=firm)
        request_maximum = self.quotas.policy(tenant).request_maximum
        return room if request_maximum is None or fills_pin else min(room, request_maximum)

    def room_in_pool(self, tenant: str, *, own: int = 0, firm: bool = False) -> int:
        """The same, as far as the pool goes."""
        pinned = self._scheduler.pins.blocks_of(tenant, firm=firm) - own
        others = sum(self.reserved(p.name, firm=firm) for p in self.quotas.policies() if p.name != tenant)
        return self._scheduler.memory.pool.num_blocks - others - pinned

    def room_of_its_own(self, tenant: str, *, own: int = 0, firm: bool = False) -> int:
        """The same, as far as its maximum goes."""
        maximum = self.quotas.policy(tenant).maximum
        bound = self._scheduler.memory.pool.num_blocks if maximum is None else maximum
        return bound - (self._scheduler.pins.blocks_of(tenant, firm=firm) - own)

    def room_with_own_pin(self, request: Request, *, firm: bool = False) -> int:
        """The same for this very request, which was taken: one that fills a pin uses what is kept for it, a
        session's turn what the session holds."""
        own = self._scheduler.own_blocks(request, firm=firm)
        return self.room(request.tenant, fills_pin=bool(request.fills_pin), own=own, firm=firm)

    def floor(self, pinned_for: str = "", more: int = 0, *, firm: bool) -> int:
        """Blocks that the pool needs at least if as many `more` were pinned for that tenant. `firm`: for
        firm pins and all that was taken; else for all pins and all that runs."""
        self.quotas.owner(pinned_for)  # one that was never seen before is among them
        extra = {pinned_for: more}
        reserved = {
            p.name: self.reserved(p.name, extra.get(p.name, 0), firm=firm) for p in self.quotas.policies()
        }
        total = sum(reserved.values())
        floor = total + 1
        for request in self._counted(firm=firm):
            tenant = request.tenant
            pinned = self._scheduler.pins.blocks_of(tenant, firm=firm) + extra.get(tenant, 0)
            floor = max(floor, total - reserved[tenant] + pinned + self._needed(request, firm=firm))
        return floor

    def over_maximum(self, tenant: str, more: int, *, firm: bool) -> int:
        """Blocks by which the tenant's pins and its largest request would exceed its maximum with as many
        `more` pinned; 0 or less: they would not."""
        maximum = self.quotas.policy(tenant).maximum
        if maximum is None:
            return 0
        own = (self._needed(r, firm=firm) for r in self._counted(firm=firm) if r.tenant == tenant)
        return self._scheduler.pins.blocks_of(tenant, firm=firm) + more + max(own, default=1) - maximum

    def _counted(self, *, firm: bool) -> list[Request]:
        """The requests that must have room beside firm pins, or beside all."""
        return self._scheduler.requests() if firm else self._scheduler.running_requests()

    def _needed(self, request: Request, *, firm: bool) -> int:
        """Its worst case, without what counts with the pins and is its own."""
        needed = blocks_needed(request, self._scheduler.memory.block_size)
        return needed - self._scheduler.own_blocks(request, firm=firm)

    def check_queue(self, tenant: str) -> None:
        """Raise QueueFull when the tenant has as many requests waiting as it may."""
        limit = self.quotas.policy(tenant).max_waiting
        if limit is None:
            return
        waiting = {s.request.request_id for s in self._scheduler.waiting if s.request.tenant == tenant}
        if len(waiting) >= limit:
            raise QueueFull(
                f"{len(waiting):,} of your requests are waiting; allowed: {limit:,} (your max_queue)"
            )

    def chain_for(
        self, tenant: str, tokens: array[int], said: Many[bytes] = (), num_shared: int = 0
    ) -> NameChain:
        """The names of its full blocks: those that the operator shares, as far as they go, then the tenant's
        own. O(tokens).

        `said`: names that a session has, the first `num_shared` of them shared ones. Tokens that extend these
        go on as the session began, whatever is pinned now: their blocks have no other names.
        """
        scheduler, size = self._scheduler, self._scheduler.memory.block_size
        chain = NameChain(scheduler.root_of_tenant(tenant), size)
        shared = scheduler.pins.shared_names
        if tenant != SHARED and (shared or num_shared):
            whole = NameChain(scheduler.root_of_tenant(SHARED), size)
            whole.extend(tokens)
            count = next((i for i, name in enumerate(whole.names) if name not in shared), len(whole.names))
            if num_shared and whole.names[:num_shared] == list(said[:num_shared]):
                count = num_shared
            elif said and not num_shared:
                own = NameChain(chain.root, size)
                own.extend(tokens[:size])
                count = 0 if own.names == [said[0]] else count
            chain.begin_with_shared(whole.names[:count])
        chain.extend(tokens)
        return chain

    def salted_chain(self, request: Request) -> NameChain:
        """The names of a request's full blocks under its cache salt, to which even what the operator shares
        is foreign. O(tokens)."""
        assert not request.session, "what a session keeps has no salt"
        assert not request.fills_pin, "what a pin keeps has no salt"
        root = salted_root(self._scheduler.root_of_tenant(request.tenant), request.cache_salt)
        chain = NameChain(root, self._scheduler.memory.block_size)
        chain.extend(array("I", request.prompt))
        return chain

    def chain_as_named(self, tenant: str, tokens: array[int], num_shared: int) -> NameChain:
        """The names that these tokens had when the first `num_shared` of them were shared ones. O(tokens)."""
        scheduler, size = self._scheduler, self._scheduler.memory.block_size
        chain = NameChain(scheduler.root_of_tenant(tenant), size)
        if num_shared:
            whole = NameChain(scheduler.root_of_tenant(SHARED), size)
            whole.extend(tokens[: num_shared * size])
            chain.begin_with_shared(whole.names)
        chain.extend(tokens)
        return chain

    def common_names(self, sequence: Sequence) -> frozenset[bytes]:
        """Of a sequence's names, those that all tenants have in common. O(names)."""
        names, chain = sequence.chain.names, sequence.chain
        return frozenset(names if sequence.request.tenant == SHARED else names[: chain.num_shared])

    # -- admission
    # ----------------------------------------------------------------------------------------------------

    def charge_of(
        self, sequence: Sequence, num_hits: int, freed: set[int] | frozenset[int] = frozenset()
    ) -> int:
        """Blocks that its tenant would be charged for beyond those it holds, once `freed` are unheld."""
        memory, owner = self._scheduler.memory, self.quotas.owner(sequence.request.tenant)
        hits = memory.blocks_of(sequence.chain.names[:num_hits])
        pool = memory.pool
        if owner == self.quotas.shared:  # what no pin shares yet becomes its own when this one's is filled
            adopted = sum(pool.owner[b] != owner for b in hits)
        else:
            adopted = sum(
                pool.owner[b] == owner and (pool.holders[b] == 0 or b in pool.uncharged or b in freed)
                for b in hits
            )
        return sequence.blocks_known(memory.block_size) - num_hits + adopted + sequence.forks_left

    def allows(
        self, sequence: Sequence, num_hits: int, running: Many[Sequence], freed: set[int] | frozenset[int]
    ) -> bool:
        """Whether its tenant's own bounds let it in beside `running`, once `freed` are unheld."""
        tenant = sequence.request.tenant
        policy = self.quotas.policy(tenant)
        if policy.max_running is not None:
            ids = {s.request.request_id for s in running if s.request.tenant == tenant}
            if len(ids - {sequence.request.request_id}) >= policy.max_running:
                return False
        if policy.maximum is None:
            return True
        size, pool, owner = (
            self._scheduler.memory.block_size,
            self._scheduler.memory.pool,
            self.quotas.owner(tenant),
        )
        promised, alone, filled = 0, True, set[int]()
        for s in running:
            if s.request.tenant == tenant and s.table is not None:
                promised += max(0, s.blocks_known(size) - len(s.table))
                alone = False
                filled.update(s.table.blocks if owner == self.quotas.shared else ())
        promised += sum(pool.owner[b] == self.quotas.once_shared for b in filled)  # as in `charge_of`
        back = sum(pool.owner[b] == owner and b not in pool.uncharged for b in freed)
        needed = self.charge_of(sequence, num_hits, freed)
        needed -= sequence.forks_left if alone else 0  # one choice can always preempt the others
        return pool.charged[owner] - back + promised + needed <= policy.maximum

    def why_not(self, sequence: Sequence, num_hits: int) -> Wait:
        """What `allows` lacked."""
        policy = self.quotas.policy(sequence.request.tenant)
        room = self.quotas.room(self.quotas.owner(policy.name))
        needed = self.charge_of(sequence, num_hits)
        if policy.maximum is not None and needed > room:
            return Wait(WaitReason.QUOTA, needed, max(0, room))
        running = {s.request.request_id for s in self._scheduler.running if s.request.tenant == policy.name}
        if policy.max_running is not None and len(running) >= policy.max_running:
            return Wait(WaitReason.TENANT_RUNNING, 1, len(running))
        return Wait(WaitReason.QUOTA, needed, max(0, room))

    def is_protected(self, victim: Sequence, winner: Sequence) -> bool:
        """True for a tenant within its guarantee, before everybody but its own."""
        if not self.quotas.has_guarantees:
            return False
        tenant = victim.request.tenant
        return tenant != winner.request.tenant and not self.is_borrower(tenant)

    def is_borrower(self, tenant: str) -> bool:
        """True when it uses more than it was guaranteed."""
        return self.used(tenant) > self.quotas.policy(tenant).guaranteed

    def covers(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether its tenant would use no more than it was guaranteed with this sequence, too."""
        tenant, pool = sequence.request.tenant, self._scheduler.memory.pool
        more = self.charge_of(sequence, num_hits)
        if tenant != SHARED:  # of which `charge_of` counts them
            known = self._once_shared_of(tenant)
            hits = self._scheduler.memory.blocks_of(sequence.chain.names[:num_hits])
            more += sum(pool.owner[b] == self.quotas.once_shared and b not in known for b in hits)
        return self.used(tenant) + more <= self.quotas.policy(tenant).guaranteed

    def used(self, tenant: str) -> int:
        """What it is charged for, and what it holds that all could find once and nobody is charged for: for
        guarantees that is its user's."""
        return self.quotas.charged(tenant) + len(self._once_shared_of(tenant))

    def _once_shared_of(self, tenant: str) -> set[int]:
        """O(blocks that its holders list) where there are such, else O(1)."""
        scheduler, pool = self._scheduler, self._scheduler.memory.pool
        if not pool.charged[self.quotas.once_shared]:
            return set()
        tables = [s.table for s in scheduler.running if s.request.tenant == tenant]
        tables += [pin.table for pin in scheduler.pins.all() if pin.tenant == tenant]
        tables += scheduler.transfers.tables_of(tenant)
        blocks = {block for table in tables if table is not None for block in table.blocks}
        return {block for block in blocks if pool.owner[block] == self.quotas.once_shared}

    def share_of(self, request: Request) -> float:
        """How many blocks its tenant borrows, for its weight: who borrows most gives way first."""
        policy = self.quotas.policy(request.tenant)
        return max(0, self.quotas.charged(request.tenant) - policy.guaranteed) / policy.weight

    def lenders(self, candidates: Many[Sequence], winner: Sequence) -> list[Sequence]:
        """Of these, who may be preempted for a sequence of another tenant until their own are down to their
        guarantee; last in rank first. O(blocks of the candidates)."""
        if not self.quotas.has_guarantees:
            return list(candidates)
        pool, charged, listed = self._scheduler.memory.pool, Counter[int](), Counter[int]()
        found = []
        for victim in sorted(candidates, key=lambda s: s.rank, reverse=True):
            tenant = victim.request.tenant
            owner = self.quotas.owner(tenant)
            left = pool.charged[owner] - charged[owner]
            if tenant != winner.request.tenant and left <= self.quotas.policy(tenant).guaranteed:
                continue
            found.append(victim)
            for block in victim.table.blocks if victim.table is not None else ():
                listed[block] += 1
                if listed[block] == pool.holders[block]:
                    charged[pool.owner[block]] += 1
        return found

    def victims_for(
        self, sequence: Sequence, num_hits: int, yielding: Many[BlockTable], yielded: Set[int]
    ) -> list[Sequence] | None:
        """Borrowers to be preempted, in order, so that a sequence that its guarantee covers fits, when these
        tables have gone, which alone hold the blocks `yielded`; None: that would not help."""
        scheduler, pool = self._scheduler, self._scheduler.memory.pool
        victims = list[Sequence]()
        charged = Counter(pool.owner[block] for block in yielded if block not in pool.uncharged)
        listed = Counter(block for table in yielding for block in table.blocks)
        freed = set(yielded)
        rows = scheduler.num_free_rows
        for victim in self._borrowers(sequence):
            tenant = victim.request.tenant
            owner = self.quotas.owner(tenant)
            used = pool.charged[owner] - charged[owner] + len(self._once_shared_of(tenant) - freed)
            if used <= self.quotas.policy(tenant).guaranteed:
                continue
            assert victim.table is not None
            listed.update(victim.table.blocks)
            victims.append(victim)
            for block in victim.table.blocks:
                if listed[block] == pool.holders[block] and block not in freed:
                    freed.add(block)
                    charged[pool.owner[block]] += 1
            rows += 1 + victim.forks_left
            if self.claim_fits(sequence, num_hits, rows, freed):
                return victims
        return None

    def claim_fits(
        self, sequence: Sequence, num_hits: int, rows: int, freed: set[int] | frozenset[int]
    ) -> bool:
        """Whether a sequence that its guarantee covers can enter, once `freed` are unheld: what running ones
        were promised stands back, because guarantees fit the pool together."""
        memory = self._scheduler.memory
        left = memory.num_unheld + len(freed) - sequence.forks_left
        left -= sequence.blocks_known(memory.block_size) - num_hits
        hits = memory.blocks_of(sequence.chain.names[:num_hits])
        left -= sum(memory.pool.holders[block] == 0 or block in freed for block in hits)
        return (
            left >= 0
            and rows >= 1 + sequence.forks_left
            and self.allows(sequence, num_hits, self._scheduler.running, freed)
        )

    def _borrowers(self, sequence: Sequence) -> list[Sequence]:
        """Running sequences of other tenants beyond their guarantee, who is preempted first in front."""
        tenant = sequence.request.tenant
        found = [
            s
            for s in self._scheduler.running
            if s.request.tenant != tenant and self.is_borrower(s.request.tenant)
        ]
        return sorted(
            found, key=lambda s: (-s.priority, self.service.of(s.request.tenant), s.rank), reverse=True
        )
