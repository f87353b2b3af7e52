"""A tenant's bounds, and its use of the pool: counts over its blocks.

A block belongs to the tenant whose key names it; a private block to the tenant of its sequence. It is charged
once while it is held, however many hold it. Blocks under names that all tenants share belong to the tenant
`shared` while the operator pins them, and otherwise to an owner without bounds. So a tenant that still uses
them takes room neither from `shared` nor from another tenant. Guaranteed blocks are lent while their tenant
does not need them:

    held within its guarantee       no other tenant's need takes them
    held beyond it                  borrowed: a tenant that claims a guarantee may take them back
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from octavo.memory.pool import BlockPool

SHARED = "shared"  # the tenant that owns the prefixes shared by the operator
ONCE_SHARED = "once shared"  # the owner, no tenant, of prefixes that are not shared now; no bounds


def share_of(bound: int, num_tenants: int) -> int:
    """The part of `bound` that each of `num_tenants` tenants may always have. Half of the bound is divided
    equally, the other half is first come, first served. 0 without other tenants."""
    return max(1, bound // (2 * num_tenants)) if num_tenants > 1 else 0


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant's bounds. None: no bound of its own."""

    name: str
    weight: float = 1.0  # of service; more than 0
    guaranteed: int = 0  # blocks that it has whenever it needs them; lent otherwise
    maximum: int | None = None  # blocks that it may hold at once
    request_maximum: int | None = None  # blocks that one of its requests may need
    session_maximum: int | None = None  # blocks that one of its sessions may keep
    disk_maximum: int | None = None  # offload slots that its blocks may take
    max_running: int | None = None  # requests that run at once
    max_waiting: int | None = None  # requests that wait at once


class Quotas:
    """Tenants by name, over the owners of a pool. Only the engine's thread calls it."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._owners: dict[str, int] = {"": 0}
        self._policies: list[TenantPolicy] = [TenantPolicy("")]
        self.version = 0  # changes with tenants and bounds
        self.num_guaranteed = 0  # of all tenants
        self.has_guarantees = False  # any tenant has one
        self.num_tenants = 0  # named by the operator last, without `shared`
        self.has_maxima = False
        self.disk_limits: list[tuple[int, int]] = []  # (owner, slots) of tenants with such a bound
        self.shared = self.owner(SHARED)
        self.once_shared = self.owner(ONCE_SHARED)

    def owner(self, tenant: str) -> int:
        """The tenant's number in the pool; an unknown one has no bounds and no guarantee."""
        number = self._owners.get(tenant)
        if number is None:
            number = self._owners[tenant] = self._pool.add_owner()
            self._policies.append(TenantPolicy(tenant))
            self.version += 1
        return number

    def set_policies(self, policies: Sequence[TenantPolicy]) -> None:
        """Set these bounds; a tenant without an entry has none. Blocks stay where they are."""
        named = {policy.name: policy for policy in policies}
        for name in named:
            self.owner(name)
        # At once: a concurrent reader would find tenants without bounds.
        self._policies = [named.get(old.name) or TenantPolicy(old.name) for old in self._policies]
        self.version += 1
        self._pool.weights = [policy.weight for policy in self._policies]
        self._pool.weights[self.once_shared] = self._pool.weights[self.shared]  # of blocks that stay cached
        self.num_guaranteed = sum(policy.guaranteed for policy in self._policies)
        self.has_guarantees = self.num_guaranteed > 0
        self.has_maxima = any(policy.maximum is not None for policy in self._policies)
        limits = ((owner, policy.disk_maximum) for owner, policy in enumerate(self._policies))
        self.disk_limits = [(owner, limit) for owner, limit in limits if limit is not None]

    def policy(self, tenant: str) -> TenantPolicy:
        """The tenant's bounds."""
        return self._policies[self.owner(tenant)]

    def policies(self) -> list[TenantPolicy]:
        """All tenants ever seen."""
        return list(self._policies)

    def by_name(self) -> dict[str, TenantPolicy]:
        """All tenants ever seen, by name."""
        return {policy.name: policy for policy in self._policies}

    def charged(self, tenant: str) -> int:
        """Blocks that are charged to it."""
        return self._pool.charged[self.owner(tenant)]

    def cached(self, tenant: str) -> int:
        """The tenant's cached blocks."""
        return self._pool.cached[self.owner(tenant)]

    def room(self, owner: int) -> int:
        """Blocks that its bounds still allow; the pool may have fewer."""
        maximum = self._policies[owner].maximum
        if maximum is None:
            return self._pool.num_blocks
        return maximum - self._pool.charged[owner]

    def charge_of(self, owner: int, blocks: Iterable[int], freed: Set[int] = frozenset()) -> int:
        """How many more blocks the owner would be charged for, if it also held these published blocks and the
        blocks `freed` had no holder."""
        pool = self._pool
        if owner == self.shared:  # blocks that no pin shares yet become its own when its pin is filled
            return sum(pool.owner[b] != owner for b in blocks)
        return sum(
            pool.owner[b] == owner and (pool.holders[b] == 0 or b in pool.uncharged or b in freed)
            for b in blocks
        )

    def owner_in_tier(self, owner: int) -> int:
        """The owner whose share of the offload tier a block of that owner takes."""
        return self.shared if owner == self.once_shared else owner

    def disk_maximum(self, owner: int) -> int | None:
        """Offload slots that it may take."""
        return self._policies[owner].disk_maximum
