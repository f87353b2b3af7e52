"""Liveness in one inequality: what keeps every set of pins, tenants and requests advancing.

    for every request that was taken:
        what other tenants are guaranteed (or what is kept for them, where that is more)
        + what is kept for its own tenant + its worst case                               <= blocks of the pool

`Capacity.pool_needed` is its left side. It must hold twice: for what *hard* holders keep and all that was
taken, and for what all keep and all that runs. Soft holds go when the second would not hold, so every request
that was taken runs in the end. A tenant's own bounds are the same sum over what is its own.

Plain data that never changes: `Room` replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from octavo.memory.quota import TenantPolicy


@dataclass(frozen=True, slots=True)
class Capacity:
    """The pool, what tenants may have of it, and what is kept for each. In blocks."""

    num_blocks: int
    policies: Mapping[str, TenantPolicy]  # a tenant that is not among them has no bounds
    kept: Mapping[str, int]  # by tenant: what its pins may hold, those that are being filled too

    def pool_needed(self, tenant: str, need: int) -> int:
        """Blocks that the pool must have so that a request of this tenant whose worst case is `need` advances
        beside all that is kept and guaranteed. O(tenants)."""
        others = sum(self.reserved(other) for other in {**self.policies, **self.kept} if other != tenant)
        return others + self.kept.get(tenant, 0) + need

    def floor(self, needs: Iterable[tuple[str, int]]) -> int:
        """The smallest pool for all that is kept and guaranteed, and one of these requests, given as (tenant,
        worst case). O(tenants for each tenant, and requests)."""
        largest: dict[str, int] = {}
        for tenant, need in needs:
            largest[tenant] = max(need, largest.get(tenant, 0))
        least = sum(self.reserved(tenant) for tenant in {**self.policies, **self.kept}) + 1
        return max([least, *(self.pool_needed(tenant, need) for tenant, need in largest.items())])

    def room(self, tenant: str, *, own: int = 0, fills_pin: bool = False) -> int:
        """The worst case that a request of this tenant may have, of which `own` blocks are kept for it
        already; one that fills a pin is bounded by the pins' budget, not by the maximum of a request."""
        room = min(self.room_in_pool(tenant, own), self.room_of_its_own(tenant, own))
        request_maximum = self.policy(tenant).request_maximum
        return room if request_maximum is None or fills_pin else min(room, request_maximum)

    def room_in_pool(self, tenant: str, own: int = 0) -> int:
        """The same as far as the pool goes."""
        return self.num_blocks - self.pool_needed(tenant, 0) + own

    def room_of_its_own(self, tenant: str, own: int = 0) -> int:
        """The same as far as the tenant's maximum goes."""
        maximum = self.policy(tenant).maximum
        bound = self.num_blocks if maximum is None else maximum
        return bound - self.kept.get(tenant, 0) + own

    def visible_to(self, tenant: str) -> Capacity:
        """The same without a number that others move: what is kept for them counts as if they used no more
        than they are guaranteed. So there may be less room than it says."""
        return replace(self, kept={tenant: self.kept.get(tenant, 0)}) if tenant else self

    def with_more(self, tenant: str, more: int) -> Capacity:
        """The same with so many more blocks kept for one tenant."""
        return replace(self, kept={**self.kept, tenant: self.kept.get(tenant, 0) + more})

    def reserved(self, tenant: str) -> int:
        """Blocks that others may borrow, but never count on."""
        return max(self.policy(tenant).guaranteed, self.kept.get(tenant, 0))

    def policy(self, tenant: str) -> TenantPolicy:
        """The tenant's bounds."""
        return self.policies.get(tenant) or TenantPolicy(tenant)
