"""Whether a waiting sequence fits: rows, blocks, and the bounds of its tenant.

Soft holds of idle sessions keep no request out (soft_holds.py). So the holds that block the examined sequence
count as released. They are released when it is admitted, or loaded, immediately without them.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from collections.abc import Set

from octavo.memory.holders import Holder
from octavo.memory.table import BlockTable
from octavo.retention.soft_holds import SoftHolds
from octavo.scheduler.block_budget import NOTHING_FREED, BlockBudget
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.shares import TenantShares
from octavo.scheduler.victims import Victims
from octavo.scheduler.waits import Wait, WaitReason
from octavo.step.context import Context


class AdmissionLimits:
    """Examines one waiting sequence at a time. Releases soft holds, and changes nothing else."""

    def __init__(
        self,
        context: Context,
        live: LiveSequences,
        budget: BlockBudget,
        shares: TenantShares,
        soft_holds: SoftHolds,
    ) -> None:
        self._context = context
        self._live = live
        self._budget = budget
        self._shares = shares
        self._soft_holds = soft_holds
        # Blocks that the running sequences will still take, and those that a priority could free: cached
        # until `forget_counts`.
        self._promised: int | None = None
        self._freed: dict[tuple[int, str, int], set[int]] = {}
        # Tables of soft holds that count as released, and the blocks that only they hold.
        self._released_tables: list[BlockTable] = []
        self._released_blocks: set[int] = set()

    def forget_counts(self) -> None:
        """The set of running sequences, or their ranks, have changed."""
        self._promised = None
        self._freed.clear()

    # -- soft holds

    def is_crowded(self, sequence: Sequence) -> bool:
        """True when soft holds keep it out."""
        return self._soft_holds.is_crowded(sequence.request)

    def assume_released_for(self, sequence: Sequence | None) -> None:
        """Count the holds that block this sequence as released, and no others. O(holds)."""
        if sequence is None and not self._released_tables:
            return
        pins = [] if sequence is None else self._soft_holds.chosen_for(sequence.request)
        self._released_tables = [pin.table for pin in pins if pin.table is not None]
        self._released_blocks = self._held_only_by([])
        self._freed.clear()

    def holds_to_release(self, sequence: Sequence) -> list[Holder]:
        """The holds to release before its admission. There may be some only because fetches were released
        since the last count."""
        if not self._released_tables and not self.is_crowded(sequence):
            return []
        return [pin.holder for pin in self._soft_holds.chosen_for(sequence.request)]

    def note_holds_released(self) -> None:
        """The holds that counted as released were released."""
        self._released_tables, self._released_blocks = [], set()

    def release_holds(self, sequence: Sequence) -> None:
        """Release the holds that block a sequence which is admitted or loaded."""
        if self._released_tables or self.is_crowded(sequence):
            self._soft_holds.reclaim_soft_holds(sequence.request)
            self.note_holds_released()
            self.forget_counts()

    def may_fit_without_holds(self, sequence: Sequence, num_hits: int) -> bool:
        """False if a crowded sequence would not fit even without any session's holds. O(1)."""
        if not self._live.running or self._live.running[-1].request.priority < sequence.priority:
            return True  # fetches, or lower priorities, may also be reclaimed
        left = self._context.ledger.num_available + self._soft_holds.num_blocks - self._promised_now()
        needed = self._budget.needed(sequence, num_hits)
        return needed <= left and 1 + sequence.forks_left <= self._live.num_free_rows

    # -- rows, blocks and bounds

    def fits(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether it fits now."""
        return self.fits_rows_and_blocks(sequence, num_hits) and self._shares.allows(
            sequence, num_hits, self._live.running, self._released_blocks
        )

    def fits_rows_and_blocks(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether rows and blocks suffice, so only its tenant's bounds keep it out."""
        return 1 + sequence.forks_left <= self._live.num_free_rows and self._blocks_suffice(
            sequence, num_hits, self._promised_now(), len(self._live.running), self._released_blocks
        )

    def fits_without(self, sequence: Sequence, num_hits: int, lower: Many[Sequence]) -> bool:
        """Whether it fits without these sequences, which are all that may be preempted for it. O(running)."""
        kept = [s for s in self._live.running if s not in lower]
        rows = self._context.config.max_rows - sum(1 + s.forks_left for s in kept)
        key = (sequence.priority, sequence.request.tenant, len(lower))
        if key not in self._freed:
            self._freed[key] = self._held_only_by(lower)
        freed = self._freed[key]
        return (
            1 + sequence.forks_left <= rows
            and self._blocks_suffice(sequence, num_hits, self._budget.promised(kept), len(kept), freed)
            and self._shares.allows(sequence, num_hits, kept, freed)
        )

    def tenant_allows_without(self, sequence: Sequence, num_hits: int, lower: Many[Sequence]) -> bool:
        """Whether its tenant's own bounds admit it without these sequences."""
        kept = [s for s in self._live.running if s not in lower]
        return self._shares.allows(sequence, num_hits, kept, self._held_only_by(lower))

    def why_not(self, sequence: Sequence, num_hits: int) -> Wait:
        """The reason that `fits` is false."""
        rows = 1 + sequence.forks_left
        if rows > self._live.num_free_rows:
            return Wait(WaitReason.ROWS, rows, max(0, self._live.num_free_rows))
        if not self._shares.allows(sequence, num_hits, self._live.running, NOTHING_FREED):
            return self._shares.why_not(sequence, num_hits)
        needed = self._budget.needed(sequence, num_hits)
        promised = self._promised_now() + self._budget.headroom(len(self._live.running))
        return Wait(WaitReason.BLOCKS, needed, self._context.ledger.num_available, promised)

    def why_not_by_tenant(self, sequence: Sequence, num_hits: int) -> Wait:
        """The reason that `tenant_allows_without` is false."""
        return self._shares.why_not(sequence, num_hits)

    # -- tenants

    @property
    def has_guarantees(self) -> bool:
        """True when any tenant has a guarantee."""
        return self._context.ledger.quotas.has_guarantees

    def is_guaranteed(self, tenant: str) -> bool:
        """True when this tenant has a guarantee."""
        return self._context.ledger.quotas.policy(tenant).guaranteed > 0

    def has_bounds(self, tenant: str) -> bool:
        """True when the tenant has a bound on blocks or running requests."""
        policy = self._context.ledger.quotas.policy(tenant)
        return policy.maximum is not None or policy.max_running is not None

    def may_pass(self, sequence: Sequence, head: Sequence) -> bool:
        """Whether it may be admitted before `head`, of another tenant, whose turn it is."""
        ledger = self._context.ledger
        slots = ledger.pool.num_blocks * ledger.block_size
        return self._live.service.may_pass(sequence.request.tenant, head.request.tenant, slots)

    def covers(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether its tenant's guarantee covers it."""
        return self._shares.covers(sequence, num_hits)

    def claim_fits(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether a sequence covered by its guarantee fits now."""
        rows = self._live.num_free_rows
        return self._shares.claim_fits(sequence, num_hits, rows, self._released_blocks)

    def borrowers_for(self, sequence: Sequence, num_hits: int, victims: Victims) -> list[Sequence]:
        """Running sequences to preempt, in order, so that it fits; none: preemption would not help."""

        def fits(rows: int, freed: Set[int]) -> bool:
            return self._shares.claim_fits(sequence, num_hits, rows, freed)

        return victims.borrowers_for(sequence, self._released_tables, fits)

    def _blocks_suffice(
        self, sequence: Sequence, num_hits: int, promised: int, num_running: int, freed: Set[int]
    ) -> bool:
        """Whether its blocks fit with `num_running` others that have `promised` blocks to come, once the
        blocks `freed` are available."""
        left_to_others = promised
        if num_running:
            left_to_others += self._budget.headroom(num_running) + sequence.forks_left
        return self._budget.suffices(sequence, num_hits, left_to_others, freed)

    def _promised_now(self) -> int:
        if self._promised is None:
            self._promised = self._budget.promised(self._live.running)
        return self._promised

    def _held_only_by(self, running: Many[Sequence]) -> set[int]:
        """Blocks that only these sequences, and the holds that count as released, hold."""
        return self._context.ledger.without([*self._released_tables, *(s.table for s in running)]).freed
