"""The liveness inequality: under it, every set of pins, tenants and requests makes progress.

    for every accepted request:
        what other tenants are guaranteed (or what is kept for them, where that is more)
        + what is kept for its own tenant + its worst case                               <= blocks of the pool

`Capacity.pool_needed` is the left side. The inequality must hold twice: for *hard* holders and all accepted
requests, and for all holders and all running requests. Soft holds are released to keep the second, so every
accepted request runs in the end. A tenant's own bounds are the same sum over its own blocks.

A `Capacity` never changes: `Room` replaces it. `blocks_needed` is the worst case of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from octavo.memory.quota import TenantPolicy
from octavo.params import SamplerParams
from octavo.types import Request
from octavo.units import blocks_for


@dataclass(frozen=True, slots=True)
class Capacity:
    """The pool, each tenant's bounds, and the blocks kept for each tenant. In blocks."""

    num_blocks: int
    policies: Mapping[str, TenantPolicy]  # a tenant without an entry has no bounds
    kept: Mapping[str, int]  # by tenant: what its pins may hold, pins that are being filled included

    def pool_needed(self, tenant: str, need: int) -> int:
        """Blocks that the pool needs for a request of this tenant with the worst case `need` to make
        progress, given all kept and guaranteed blocks. O(tenants)."""
        others = sum(self.reserved(other) for other in {**self.policies, **self.kept} if other != tenant)
        return others + self.kept.get(tenant, 0) + need

    def floor(self, needs: Iterable[tuple[str, int]]) -> int:
        """The smallest pool for all kept and guaranteed blocks and any one of these requests, given as
        (tenant, worst case). O(tenants squared + requests)."""
        largest: dict[str, int] = {}
        for tenant, need in needs:
            largest[tenant] = max(need, largest.get(tenant, 0))
        least = sum(self.reserved(tenant) for tenant in {**self.policies, **self.kept}) + 1
        return max([least, *(self.pool_needed(tenant, need) for tenant, need in largest.items())])

    def room(self, tenant: str, *, own: int = 0, fills_pin: bool = False) -> int:
        """The largest worst case that a request of this tenant may have; `own` blocks are kept for it
        already. The pins' budget bounds a request that fills a pin, not the maximum of a request."""
        room = min(self.room_in_pool(tenant, own), self.room_in_maximum(tenant, own))
        request_maximum = self.policy(tenant).request_maximum
        return room if request_maximum is None or fills_pin else min(room, request_maximum)

    def room_in_pool(self, tenant: str, own: int = 0) -> int:
        """As `room`, bounded by the pool only."""
        return self.num_blocks - self.pool_needed(tenant, 0) + own

    def room_in_maximum(self, tenant: str, own: int = 0) -> int:
        """As `room`, bounded by the tenant's maximum only."""
        maximum = self.policy(tenant).maximum
        bound = self.num_blocks if maximum is None else maximum
        return bound - self.kept.get(tenant, 0) + own

    def visible_to(self, tenant: str) -> Capacity:
        """This capacity without numbers that other tenants change: each other tenant counts with its
        guarantee only. So the real room may be less."""
        return replace(self, kept={tenant: self.kept.get(tenant, 0)}) if tenant else self

    def with_more(self, tenant: str, more: int) -> Capacity:
        """This capacity with `more` blocks kept for one tenant."""
        return replace(self, kept={**self.kept, tenant: self.kept.get(tenant, 0) + more})

    def reserved(self, tenant: str) -> int:
        """Blocks that others may borrow, but not rely on."""
        return max(self.policy(tenant).guaranteed, self.kept.get(tenant, 0))

    def policy(self, tenant: str) -> TenantPolicy:
        """The tenant's bounds."""
        return self.policies.get(tenant) or TenantPolicy(tenant)


def blocks_needed(request: Request, block_size: int) -> int:
    """Pool blocks for one of its sequences at full length; the last token is sampled, never computed.

    Beams run together or not at all, so they count together. They share the full blocks of the prompt.
    """
    if request.hot_blocks:
        return request.hot_blocks
    longest = blocks_for(len(request.prompt) + request.max_tokens - 1, block_size)
    beams = request.params.beams
    if beams is None:
        return longest
    shared = len(request.prompt) // block_size
    return shared + beams.width * (longest - shared)


def slots_needed(request: Request, block_size: int) -> int:
    """Offload slots for the cold blocks of all its sequences at full length; 0: it has none. They share the
    full blocks of the prompt."""
    if not request.hot_blocks:
        return 0
    longest = blocks_for(len(request.prompt) + request.max_tokens - 1, block_size)
    shared = len(request.prompt) // block_size
    return shared + request.n * (longest - shared)


def tokens_that_fit(num_prompt: int, params: SamplerParams, num_blocks: int, block_size: int) -> int:
    """The largest max_tokens whose `blocks_needed` is at most `num_blocks`; less than 1: there is none."""
    shared, width = (0, 1) if params.beams is None else (num_prompt // block_size, params.beams.width)
    each = shared + (num_blocks - shared) // width
    return each * block_size + 1 - num_prompt
