"""Tenants in a random life: bounds that come and go, a flood of one, and what a guarantee must do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence as Many

from octavo.errors import TenantsRefused
from octavo.memory.holders import HolderKind
from octavo.memory.quota import TenantPolicy
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waits import WaitReason

TENANTS = 3
PATIENCE = 2  # steps within which guaranteed blocks are obtained


def owner_of_seed(seed: int) -> int:
    """The simulator hides in the seed whose slots a request may read: a tenant's, or those of one of its two
    cache salts, below 0."""
    tenant, kind = seed % TENANTS, seed // TENANTS % 10
    return tenant if kind > 1 else -1 - tenant - TENANTS * kind


def salt_of_seed(seed: int) -> str:
    """The cache salt of a request with this seed; each has the same two for every tenant."""
    return "" if owner_of_seed(seed) >= 0 else "ab"[seed // TENANTS % 10]


def unsalted_seed(r: random.Random, tenant: int) -> int:
    """Of a request that has no salt: for pins and sessions."""
    return (10 * r.randrange(1000) + 2) * TENANTS + tenant


def random_policies(r: random.Random, names: Many[str], num_blocks: int) -> list[TenantPolicy]:
    """Bounds of all kinds; they need not fit together."""
    policies = []
    for name in names:
        maximum = r.choice([None, None, r.randint(1, num_blocks)])
        guaranteed = r.choice([0, 0, r.randint(0, num_blocks // 2)])
        policies.append(
            TenantPolicy(
                name,
                weight=r.choice([0.5, 1.0, 4.0]),
                guaranteed=guaranteed if maximum is None else min(guaranteed, maximum),
                maximum=maximum,
                request_maximum=r.choice([None, None, r.randint(1, num_blocks)]),
                disk_maximum=r.choice([None, None, r.randint(0, 20)]),
                max_running=r.choice([None, None, 1, 2]),
            )
        )
    return policies


def try_policies(scheduler: Scheduler, policies: list[TenantPolicy]) -> bool:
    """Whether the scheduler took them."""
    try:
        scheduler.tenants.set_policies(policies)
    except TenantsRefused:
        return False
    return True


class GuaranteeWatch:
    """Whoever is first of its tenant and covered by its guarantee runs within `PATIENCE` steps."""

    def __init__(self) -> None:
        self._steps: Counter[int] = Counter()  # by sequence: how long it has been kept out

    def look(self, scheduler: Scheduler) -> None:
        """Call it after each plan."""
        self._check_below(scheduler)
        kept_out = {s.seq_id for s in self._kept_out(scheduler)}
        self._steps = Counter({seq_id: self._steps[seq_id] + 1 for seq_id in kept_out})
        assert all(steps <= PATIENCE for steps in self._steps.values()), "guaranteed blocks were not obtained"

    def _check_below(self, scheduler: Scheduler) -> None:
        tier, quotas = scheduler.transfers.tier, scheduler.ledger.quotas
        for policy in quotas.policies() if tier is not None else ():
            owner = quotas.owner(policy.name)
            assert tier is not None
            assert (
                policy.disk_maximum is None
                or tier.count_of(owner) <= policy.disk_maximum
                or tier.oldest_of(owner) is None
            ), "a tenant has more below than it may"

    def _kept_out(self, scheduler: Scheduler) -> list[Sequence]:
        quotas, seen, found = scheduler.ledger.quotas, set[str](), []
        kinds = {holder.kind for holder in scheduler.ledger.holders.values()}
        if not quotas.has_guarantees or kinds & {HolderKind.FETCH, HolderKind.STORE}:
            return []  # what is on its way ends by itself
        borrowed = [s for s in scheduler.live.running if scheduler.shares.is_borrower(s.request.tenant)]
        for s in scheduler.live.waiting:
            tenant = s.request.tenant
            if tenant in seen or s.pending or not quotas.policy(tenant).guaranteed:
                continue
            seen.add(tenant)
            lent = any(other.request.tenant != tenant for other in borrowed)
            if s.wait.reason is WaitReason.FOLLOWS or 1 + s.forks_left > scheduler.live.num_free_rows + lent:
                continue  # a guarantee is of blocks: of rows, one
            if not scheduler.shares.allows(s, 0, scheduler.live.running, frozenset()):
                continue
            if scheduler.shares.covers(s, 0):
                found.append(s)
        return found
