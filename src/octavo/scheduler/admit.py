"""Admission in order of rank, bounded by rows, blocks and the step's tokens.

- A sequence waits while a running one computes its next block (prefixes.py).
- A sequence is admitted when the blocks of all its known tokens fit with those promised to running prompts,
  plus some for each running sequence (headroom.py): so a prompt never has to preempt, and back-pressure
  comes before thrash.
- A large sequence that does not fit does not block those behind it, but at most `BYPASS_MAX` may pass it.
  Then none does until it fits: neither side starves.
- A higher priority may preempt strictly lower ones.
- Tenants take turns within a priority (fair_queue.py). A tenant whose own bounds keep its first sequence out
  is skipped, and keeps no other out. Sequences that a guarantee covers come first, by preempting borrowers.
- Soft holds of idle sessions are released for the head of the queue if it can never run with them, and is
  admitted, or loaded, at once without them (admission_limits.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from octavo.memory.holders import Holder
from octavo.retention.reclaim import ADMITTING, BOUNDING, CLAIMING, Choice, ReclaimRequest, ReclaimSource
from octavo.scheduler.admission_limits import AdmissionLimits
from octavo.scheduler.budget import Place, gets_some
from octavo.scheduler.fair_queue import FairQueue
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.prefixes import PrefixLookup
from octavo.scheduler.reclaimer import Reclaimer
from octavo.scheduler.sequence import Sequence, State
from octavo.scheduler.victims import Victims, whole_groups
from octavo.scheduler.waits import STEP_TOKENS, TARGET

SCAN_MAX = 64  # waiting sequences examined per step, without followers
BYPASS_MAX = 32  # admissions past a blocked head

Contender = tuple[Place, int]  # for a step's prompt tokens: (place, remaining positions)


@dataclass(slots=True, eq=False)
class _Entry:
    """An examined waiting sequence."""

    sequence: Sequence
    num_hits: int
    lower: list[Sequence] | None = None  # may be preempted for it; None: not computed


@dataclass(eq=False)
class Admission:
    """Decides for the queue; acts through `LiveSequences.admit` and by reclaiming blocks."""

    _live: LiveSequences
    _prefixes: PrefixLookup
    limits: AdmissionLimits
    _victims: Victims
    _reclaimer: Reclaimer

    def __post_init__(self) -> None:
        self._prompts: list[Sequence] = []  # share the step's tokens
        self._contenders: list[Contender] = []  # the same, sorted by place

    def admit(self, prompts: list[Sequence], budget: int, most: int | None = None) -> None:
        """Admit the sequences that fit and get tokens in this step together with `prompts`. `most`: a bound
        by the target for inter-token latency.

        May preempt for a strictly higher priority. O(1) for each follower, O(blocks) for at most
        SCAN_MAX others.
        """
        limits = self.limits
        self._prompts = list(prompts)
        self._recount()
        if limits.has_guarantees:
            self._claim_guarantees()
        head: Sequence | None = None  # the first that did not fit
        num_scanned = num_entered = 0
        turns = FairQueue(self._live.waiting, self._live.service)
        for sequence in turns:
            if most is not None and num_entered >= most:
                sequence.queue.wait = TARGET
                break
            if num_scanned == SCAN_MAX or not self._live.may_admit(sequence):
                break
            num_hits = self._examine(sequence)
            if num_hits is None:
                continue
            num_scanned += 1
            if head is not None and not limits.may_pass(sequence, head):
                turns.pass_over(sequence.request.tenant)
                continue
            limits.assume_released_for(None)
            if limits.is_crowded(sequence):
                if head is not None:  # only the head may release soft holds
                    sequence.queue.wait = limits.why_not(sequence, num_hits)
                    continue
                if limits.may_fit_without_holds(sequence, num_hits):
                    limits.assume_released_for(sequence)
            entry = _Entry(sequence, num_hits)
            if not self._reclaim_within_bounds(entry):
                sequence.queue.wait = limits.why_not_by_tenant(sequence, num_hits)
                turns.pass_over(sequence.request.tenant)
                continue
            if self._is_better_loaded(entry):
                self._prefixes.await_blocks(sequence)
                continue
            gets_none = not gets_some(self._contenders, self._contender(entry), budget)
            if (
                gets_none and not sequence.queue.num_cold
            ):  # a sequence with cold blocks uses none of the step's tokens
                sequence.queue.wait = STEP_TOKENS
                continue
            if self._reclaim_to_admit(entry, is_first=head is None):
                self._admit_now(entry)
                num_entered += 1 + sequence.forks_left
                if head is not None:
                    head.queue.bypassed += 1
            else:
                sequence.queue.wait = limits.why_not(sequence, entry.num_hits)
                head = head or sequence
            if head is not None and head.queue.bypassed >= BYPASS_MAX:
                break

    def _claim_guarantees(self) -> None:
        """Admit the first waiting sequence of each tenant while its guarantee covers it; borrowers are
        preempted for it. O(waiting) with guarantees."""
        limits, done = self.limits, set[str]()
        for sequence in list(self._live.waiting):
            tenant = sequence.request.tenant
            if tenant in done or not limits.is_guaranteed(tenant):
                continue
            num_hits = self._examine(sequence)
            if num_hits is None:
                continue
            limits.assume_released_for(sequence)
            entry = _Entry(sequence, num_hits)
            covered = limits.covers(sequence, num_hits)
            if covered and not self._is_better_loaded(entry) and self._reclaim_to_claim(entry):
                self._admit_now(entry)
            else:
                done.add(tenant)

    # -- what is reclaimed for a waiting sequence

    def _reclaim_within_bounds(self, entry: _Entry) -> bool:
        """Whether its tenant's bounds admit it, after releasing the tenant's own fetches and preempting lower
        priorities if needed."""
        sequence, tenant, limits = entry.sequence, entry.sequence.request.tenant, self.limits
        if not limits.has_bounds(tenant):
            return True
        own = self._victims.running(tenant)
        lower = whole_groups([s for s in own if s.priority < sequence.priority])
        request = ReclaimRequest(
            lambda: limits.tenant_allows_without(sequence, entry.num_hits, lower),
            {
                ReclaimSource.FETCHES_BEHIND: lambda: self._reclaimer.fetches_behind(sequence, tenant),
                ReclaimSource.FETCHES: lambda: [] if own else self._reclaimer.fetches(tenant),
            },
            after_release=lambda choice: self._released(entry, choice),
        )
        return self._reclaimer.reclaim(BOUNDING, request, sequence)

    def _reclaim_to_admit(self, entry: _Entry, *, is_first: bool) -> bool:
        """Whether it fits, after reclaiming blocks if needed. Preempts only if it fits then."""
        sequence, limits = entry.sequence, self.limits
        if limits.fits(sequence, entry.num_hits):
            return True  # the common case

        def num_missing() -> int:
            why = limits.why_not(sequence, entry.num_hits)
            return max(1, why.needed + why.promised - why.available)

        request = ReclaimRequest(
            lambda: limits.fits(sequence, entry.num_hits),
            {
                # Nothing runs
                ReclaimSource.FETCHES: lambda: (
                    self._reclaimer.fetches() if is_first and not self._live.running else []
                ),
                ReclaimSource.SOFT_HOLDS: lambda: self._holds_for(entry, self._lower_priorities),
                ReclaimSource.LOWER_PRIORITIES: lambda: self._lower_priorities(entry),
            },
            num_missing,
            lambda choice: self._released(entry, choice),
        )
        return self._reclaimer.reclaim(ADMITTING, request, sequence)

    def _reclaim_to_claim(self, entry: _Entry) -> bool:
        """Whether a sequence covered by its guarantee fits, after preempting borrowers if needed."""
        sequence, limits = entry.sequence, self.limits
        request = ReclaimRequest(
            lambda: limits.claim_fits(sequence, entry.num_hits),
            {
                ReclaimSource.BORROWED_FETCHES: lambda: self._reclaimer.borrowed_fetches(sequence),
                ReclaimSource.SOFT_HOLDS: lambda: self._holds_for(entry, self._borrowers),
                ReclaimSource.BORROWERS: lambda: self._borrowers(entry),
            },
            after_release=lambda choice: self._released(entry, choice),
        )
        return self._reclaimer.reclaim(CLAIMING, request, sequence)

    def _holds_for(self, entry: _Entry, victims: Callable[[_Entry], list[Holder]]) -> list[Holder]:
        """The soft holds that count as released for it: released before any preemption."""
        holds = self.limits.holds_to_release(entry.sequence)
        return holds if holds and victims(entry) else []

    def _lower_priorities(self, entry: _Entry) -> list[Holder]:
        """The running sequences to preempt for it, if that admits it."""
        if entry.lower is None:
            entry.lower = self._find_lower(entry)
        elif entry.lower:
            entry.lower = [s for s in entry.lower if s.state is State.RUNNING]
            assert entry.lower, "preempting all lower priorities made less room than was counted"
        return [s.as_holder() for s in entry.lower]

    def _find_lower(self, entry: _Entry) -> list[Sequence]:
        sequence, num_hits, running = entry.sequence, entry.num_hits, self._live.running
        if not running or running[-1].request.priority >= sequence.priority:
            return []  # the common case, in O(1)
        # If blocks suffice, only the tenant's own sequences can help.
        own_only = self.limits.fits_rows_and_blocks(sequence, num_hits)
        lower = self._victims.of_lower_priority(sequence, own_only=own_only)
        lower = whole_groups(self._victims.preemptible_for(lower, sequence))
        return lower if self.limits.fits_without(sequence, num_hits, lower) else []

    def _borrowers(self, entry: _Entry) -> list[Holder]:
        victims = self.limits.borrowers_for(entry.sequence, entry.num_hits, self._victims)
        return [s.as_holder() for s in victims]

    def _released(self, entry: _Entry, choice: Choice) -> None:
        """Blocks were reclaimed for it."""
        if choice[0].is_soft:
            self.limits.note_holds_released()
        entry.num_hits = self._prefixes.find_hits(entry.sequence)  # the blocks that it held may be gone
        self._recount()

    # -- one sequence

    def _examine(self, sequence: Sequence) -> int | None:
        """The sequence's hits, or None while it waits for blocks that will come."""
        num_leaders = len(self._prefixes.leaders)
        num_hits = self._prefixes.examine(sequence)
        if len(self._prefixes.leaders) > num_leaders:
            self._recount()
        return num_hits

    def _is_better_loaded(self, entry: _Entry) -> bool:
        """True when the blocks after its hits are in an offload tier and it waits for them; starts their
        loading if needed. O(blocks in the tier)."""
        sequence, num_hits = entry.sequence, entry.num_hits
        count = self._prefixes.num_fetchable(sequence, num_hits)
        if count is None:
            return True
        num_blocks = num_hits + count
        if count == 0 or not self.limits.fits(sequence, num_hits):
            return False
        if not self._prefixes.may_fetch(sequence, num_blocks):
            return False
        self.limits.release_holds(sequence)
        self._prefixes.fetch(sequence, num_hits, num_blocks)
        self.limits.forget_counts()
        return True

    def _admit_now(self, entry: _Entry) -> None:
        self.limits.release_holds(entry.sequence)
        self._live.admit(entry.sequence, entry.num_hits)
        if not entry.sequence.has_cold:
            self._prompts.append(entry.sequence)
            bisect.insort(self._contenders, self._contender(entry))
        self.limits.forget_counts()

    def _contender(self, entry: _Entry) -> Contender:
        remaining = self._prefixes.num_to_compute(entry.sequence, entry.num_hits)
        return self._live.place(entry.sequence), remaining

    def _recount(self) -> None:
        """The set of running sequences, or their ranks, have changed."""
        self._prompts = [s for s in self._prompts if s.state is State.RUNNING]
        self._contenders = sorted((self._live.place(s), s.remaining) for s in self._prompts)
        self.limits.forget_counts()
