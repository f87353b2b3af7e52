"""Tenants in a random life: bounds that come and go, a flood of one, and what a guarantee must do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence as Many

from octavo.errors import TenantsRefused
from octavo.memory.holders import HolderKind
from octavo.memory.quota import TenantPolicy
from octavo.params import PRIORITY_MAX
from octavo.scheduler.admit import BYPASS_MAX
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


class TurnWatch:
    """The tenant that was served least, for its weight, has positions in the next plan, once a row and blocks
    for it are free; one that was served as little as some others, once each of these had a step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left: dict[str, int] = {}  # by tenant that was kept out: for how many steps it may be so yet
        self._served: dict[str, float] = {}  # before the plan: of tenants that want something
        self._prompts: list[Sequence] = []  # that run, and share what is left of the step
        self._granted: list[Sequence] = []  # those that got some of it
        self._room = 0  # what is left of the step for them
        self._num_free_rows = (
            0  # once sequences were admitted: what a preemption frees later is the next plan's
        )
        self._offered = 0  # positions, to those that wait: what a preemption frees later is the next plan's
        self._admit, scheduler.admission.admit = scheduler.admission.admit, self.admit  # type: ignore[method-assign]
        self._share, scheduler.planner.share = scheduler.planner.share, self.share  # type: ignore[method-assign]

    def admit(self, prompts: list[Sequence], budget: int, most: int | None = None) -> None:
        """The admission's, which is listened to."""
        self._offered = budget
        self._admit(prompts, budget, most)

    def share(self, continuing: list[Sequence], prompts: list[Sequence]) -> list[tuple[Sequence, int]]:
        """The planner's, which is listened to."""
        num_waiting = len(self._scheduler.live.waiting)
        budget = self._scheduler.prefill_budget.prompt_budget(len(continuing), len(prompts) + num_waiting)
        self._prompts, self._room = prompts, budget
        self._num_free_rows = self._scheduler.live.num_free_rows
        share = self._share(continuing, prompts)
        self._granted = [s for s, _ in share if s in prompts]
        return share

    def before(self) -> None:
        """Call it before each plan."""
        service, self._offered = self._scheduler.live.service, 0
        self._served = {
            request.tenant: service.of(request.tenant) for request in self._scheduler.live.requests()
        }

    def after(self) -> None:
        """Call it after each plan."""
        least = [t for t, count in self._served.items() if count == min(self._served.values())]
        # What was lost and is computed again does not count, so no turn ends by it.
        turns = [t for t in least if self._scheduler.live.service.of(t) > self._served[t]]
        granted = {s.request.tenant for s in self._granted}
        left = dict[str, int]()
        # One position of a step is always the best-ranked sequence's.
        for tenant in least if len(self._served) > 1 and self._room > 1 else ():
            is_even = tenant in turns and len(least) > 1  # it decodes as much as others are served
            if not is_even and tenant not in granted and self._could_run(tenant):
                left[tenant] = self._left.get(tenant, len(least) - 1) - len(turns)
        assert all(steps >= 0 for steps in left.values()), "it waits although it was served least"
        assert not left or len(least) > 1, "it waits although it alone was served least"
        self._left = left

    def _could_run(self, tenant: str) -> bool:
        """Whether its first prompt lacked nothing but positions: no row, no block, no priority."""
        own = [s for s in [*self._prompts, *self._scheduler.live.waiting] if s.request.tenant == tenant]
        if not own or own[0].rank[0] > min((s.rank[0] for s in self._granted), default=PRIORITY_MAX):
            return False
        if own[0] in self._prompts:
            return True
        fits = self._scheduler.limits.fits(own[0], 0) and 1 + own[0].forks_left <= self._num_free_rows
        # Room is kept for one that many have passed.
        is_closed = any(s.queue.bypassed >= BYPASS_MAX for s in self._scheduler.live.waiting)
        is_offered = self._offered > 1
        return own[0].queue.wait.reason is WaitReason.STEP_TOKENS and fits and is_offered and not is_closed


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
            is_following = s.queue.wait.reason in (WaitReason.FOLLOWS, WaitReason.SLOTS)
            if is_following or 1 + s.forks_left > scheduler.live.num_free_rows + lent:
                continue  # a guarantee is of blocks: of rows, one
            if not scheduler.shares.allows(s, 0, scheduler.live.running, frozenset()):
                continue
            if scheduler.shares.covers(s, 0):
                found.append(s)
        return found
