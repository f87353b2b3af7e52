"""Who may enter: rows, blocks and the step's tokens decide, in order of rank.

- Followers: where the next block a sequence needs is being computed by a running one, it waits for that
  block. This is decided anew every step, so a leader that is cancelled or preempted releases its followers. A
  follower never blocks those behind it, and lends its priority to its leader.
- A sequence enters when the blocks of all its known tokens fit beside what running prompts were promised,
  plus some for each that runs (headroom.py): so a prompt never has to preempt, and back-pressure comes before
  thrash.
- A huge one that does not fit does not block those behind it, but at most `BYPASS_MAX` may pass before the
  door closes until it fits: no starvation either way.
- A higher priority may preempt strictly lower ones to enter.
- Tenants take turns within a priority (fair_queue.py); one whose own bounds keep its first out is passed
  over, and never closes the door to others. What its guarantee covers enters first, by preempting borrowers.
- What is kept of idle sessions gives way to the first in line, where that could never run beside it, and
  enters, or is loaded, at once without it (soft_holds.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence as Many
from collections.abc import Set
from dataclasses import dataclass

from octavo.memory.names import hits_max
from octavo.memory.table import BlockTable
from octavo.retention.pins import Pins
from octavo.retention.reclaim import ADMITTING, CLAIMING, Rung
from octavo.retention.soft_holds import SoftHolds
from octavo.retention.transfers import Transfers
from octavo.scheduler.block_budget import NOTHING_FREED, BlockBudget
from octavo.scheduler.budget import Place, gets_some
from octavo.scheduler.fair_queue import FairQueue
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.making_room import MakingRoom, whole_groups
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.sequence import Sequence, State
from octavo.scheduler.shares import TenantShares
from octavo.scheduler.waits import IN_FLIGHT, STEP_TOKENS, Wait, WaitReason
from octavo.step.context import Context

SCAN_MAX = 64  # waiting sequences looked at per step, followers aside
BYPASS_MAX = 32  # admissions past a blocked head

Contender = tuple[Place, int]  # for a step's prompt tokens: (place, remaining positions)


@dataclass(eq=False)
class Admission:
    """Decides over the queue; acts through `LiveSequences.admit`, `Preemption` and `SoftHolds`."""

    _context: Context
    _live: LiveSequences
    _pins: Pins
    _shares: TenantShares
    _transfers: Transfers
    _soft_holds: SoftHolds
    _budget: BlockBudget
    _making_room: MakingRoom
    _preemption: Preemption

    def __post_init__(self) -> None:
        self.leaders: list[Sequence] = []  # those that borrowed a priority in the last step
        self._contenders: list[Contender] = []  # all prompts, by rank
        # Blocks that the running sequences will still take, and those that a priority could free: kept while
        # nothing changes.
        self._promised: int | None = None
        self._freed: dict[tuple[int, str, int], set[int]] = {}
        # Holds of idle sessions that go if the sequence that is looked at enters, and what only they hold.
        self._yielding: list[BlockTable] = []
        self._yielded: set[int] = set()

    def give_back_priorities(self) -> None:
        """What was lent in the last step ends."""
        for leader in self.leaders:
            leader.give_back()
        self.leaders.clear()

    def admit(self, prompts: list[Sequence], budget: int) -> None:
        """Admit what fits and would get tokens in this step beside `prompts`.

        May preempt to do so, for a strictly higher priority. O(1) for each follower, O(blocks) for at most
        SCAN_MAX others.
        """
        self._contenders = sorted((self._live.place(s), s.remaining) for s in prompts)
        self._forget_counts()
        if self._context.ledger.quotas.has_guarantees:
            self._claim_guarantees()
        head: Sequence | None = None  # the first that did not fit
        num_scanned = 0
        turns = FairQueue(self._live.waiting, self._live.service)
        for sequence in turns:
            if num_scanned == SCAN_MAX or not self._live.may_enter(sequence):
                break
            num_hits = self._look_at(sequence)
            if num_hits is None:
                continue
            num_scanned += 1
            if head is not None and not self._may_pass(sequence, head):
                turns.pass_over(sequence.request.tenant)
                continue
            self._yield_to(None)
            if self._soft_holds.is_crowded(sequence.request):
                if head is not None:  # it is not its turn to take what is kept of sessions
                    sequence.wait = self._why_not(sequence, num_hits)
                    continue
                if self._may_enter_without_sessions(sequence, num_hits):
                    self._yield_to(sequence)
            room_for_hits = self._own_room(sequence, num_hits)
            if room_for_hits is None:
                sequence.wait = self._shares.why_not(sequence, num_hits)
                turns.pass_over(sequence.request.tenant)
                continue
            num_hits = room_for_hits
            if self._is_better_loaded(sequence, num_hits):
                sequence.await_blocks(self._context.now)
                continue
            if not gets_some(self._contenders, self._contender(sequence, num_hits), budget):
                sequence.wait = STEP_TOKENS
                continue
            num_hits, fits = self._climb(sequence, num_hits, is_first=head is None)
            if fits:
                self._let_sessions_go(sequence)
                self._enter(sequence, num_hits)
                if head is not None:
                    head.bypassed += 1
            else:
                sequence.wait = self._why_not(sequence, num_hits)
                head = head or sequence
            if head is not None and head.bypassed >= BYPASS_MAX:
                break

    def _climb(self, sequence: Sequence, num_hits: int, *, is_first: bool) -> tuple[int, bool]:
        """Its hits, and whether it fits, perhaps once others gave up theirs. Changes nothing of running ones
        where that does not let it in."""
        fits = self._fits(sequence, num_hits)
        for rung in ADMITTING if not fits else ():
            if rung is Rung.FETCHES and is_first and not self._live.running:
                num_hits = self._let_fetches_go(sequence, num_hits)
                fits = self._fits(sequence, num_hits)
            elif rung is Rung.LOWER_PRIORITIES:
                fits = self._make_room(sequence, num_hits)
            if fits:
                break
        return num_hits, fits

    def _yield_to(self, sequence: Sequence | None) -> None:
        """From now on it is asked what would be without the holds that keep this sequence out. O(holds)."""
        if sequence is None and not self._yielding:
            return
        pins = [] if sequence is None else self._soft_holds.chosen_for(sequence.request)
        self._yielding = [pin.table for pin in pins if pin.table is not None]
        self._yielded = self._held_only_by([])
        self._freed.clear()

    def _let_sessions_go(self, sequence: Sequence) -> None:
        """It does enter, or is loaded; perhaps only because fetches gave way since that was asked."""
        soft_holds = self._soft_holds
        if self._yielding or soft_holds.is_crowded(sequence.request):
            soft_holds.reclaim_soft_holds(sequence.request)
            self._yielding, self._yielded = [], set()
            self._forget_counts()

    def _may_enter_without_sessions(self, sequence: Sequence, num_hits: int) -> bool:
        """False where a crowded sequence would not fit even if no session held anything. O(1)."""
        if not self._live.running or self._live.running[-1].request.priority < sequence.priority:
            return True  # fetches, or lower priorities, may give way as well
        left = self._context.ledger.num_unheld + self._pins.num_soft - self._promised_now()
        needed = self._budget.needed(sequence, num_hits)
        return needed <= left and 1 + sequence.forks_left <= self._live.num_free_rows

    def _may_pass(self, sequence: Sequence, head: Sequence) -> bool:
        memory = self._context.ledger
        return self._live.service.may_pass(
            sequence.request.tenant, head.request.tenant, memory.pool.num_blocks * memory.block_size
        )

    def _look_at(self, sequence: Sequence) -> int | None:
        """Its hits, or None when it waits for something that comes by itself: `wait` says what."""
        if sequence.pending:
            sequence.wait = IN_FLIGHT
            return None
        if self._transfers.is_fetching(sequence.seq_id):
            sequence.await_blocks(self._context.now)
            return None
        sequence.end_loading(self._context.now)
        if self._still_follows(sequence):
            return None  # its next block will soon be there
        num_hits = self._find_hits(sequence)
        return None if self._still_follows(sequence) else num_hits

    def _claim_guarantees(self) -> None:
        """The first waiting sequence of each tenant enters if its guarantee covers it, and the next, and so
        on: borrowers are preempted for it. O(waiting) with guarantees."""
        quotas = self._context.ledger.quotas
        done: set[str] = set()
        for sequence in list(self._live.waiting):
            tenant = sequence.request.tenant
            if tenant in done or not quotas.policy(tenant).guaranteed:
                continue
            num_hits = self._look_at(sequence)
            if num_hits is None:
                continue
            self._yield_to(sequence)
            covered = self._shares.covers(sequence, num_hits)
            if not covered or self._is_better_loaded(sequence, num_hits):
                done.add(tenant)
                continue
            num_hits, fits = self._climb_claiming(sequence, num_hits)
            if not fits:
                done.add(tenant)
                continue
            self._let_sessions_go(sequence)
            self._enter(sequence, num_hits)

    def _climb_claiming(self, sequence: Sequence, num_hits: int) -> tuple[int, bool]:
        """Its hits, and whether it fits, perhaps once borrowers gave back what they borrowed."""
        fits = self._claim_fits(sequence, num_hits)
        for rung in CLAIMING if not fits else ():
            if rung is Rung.BORROWED_FETCHES:
                while not fits and self._let_a_borrowed_fetch_go(sequence):
                    num_hits = self._find_hits(sequence)
                    fits = self._claim_fits(sequence, num_hits)
            elif rung is Rung.BORROWERS:
                victims = self._shares.victims_for(sequence, num_hits, self._yielding)
                fits = victims is not None
                if victims is not None:
                    self._let_sessions_go(sequence)
                    self._preempt_all(victims, sequence)
            if fits:
                break
        return num_hits, fits

    def _claim_fits(self, sequence: Sequence, num_hits: int) -> bool:
        rows = self._live.num_free_rows
        return self._shares.claim_fits(sequence, num_hits, rows, self._yielded)

    def _let_a_borrowed_fetch_go(self, sequence: Sequence) -> bool:
        """What borrowers hold while they wait keeps no guarantee from its tenant."""
        own = sequence.request.tenant
        for fetch in self._transfers.complete():
            if fetch.tenant != own and self._shares.is_borrower(fetch.tenant):
                self._forget_counts()
                return self._making_room.of_fetches(fetch.tenant)
        return False

    def _preempt_all(self, victims: Many[Sequence], winner: Sequence) -> None:
        places = {self._live.place(victim) for victim in victims}
        self._contenders = [c for c in self._contenders if c[0] not in places]
        self._preemption.preempt_all(victims, winner)
        self._forget_counts()

    def _own_room(self, sequence: Sequence, num_hits: int) -> int | None:
        """Its hits, if its tenant's bounds let it in, perhaps once the tenant's own fetches or lower
        priorities have given way; else None."""
        tenant = sequence.request.tenant
        policy = self._context.ledger.quotas.policy(tenant)
        if policy.maximum is None and policy.max_running is None:
            return num_hits
        own = [s for s in self._live.running if s.request.tenant == tenant]
        lower = whole_groups([s for s in own if s.priority < sequence.priority])
        kept = [s for s in self._live.running if s not in lower]
        while not self._shares.allows(sequence, num_hits, kept, self._held_only_by(lower)):
            self._forget_counts()
            if not self._making_room.for_own_bounds(sequence, may_take_all=not own):
                return None
            num_hits = self._find_hits(sequence)  # what it held for itself may be gone
        return num_hits

    def _still_follows(self, sequence: Sequence) -> bool:
        """True, and its priority is lent, while a running sequence computes the block that it waits for.
        O(1)."""
        if sequence.awaited is None or self._context.ledger.is_published(sequence.awaited):
            return False
        leader = self._live.names.who_computes(sequence.awaited)
        if leader is None:
            return False
        if sequence.wait.reason is not WaitReason.FOLLOWS:
            sequence.wait = Wait(WaitReason.FOLLOWS, request_id=leader.request.request_id)
        if leader.priority < sequence.priority:
            before = self._live.place(leader)
            leader.borrow(sequence.priority)
            self.leaders.append(leader)
            self._contenders = sorted(
                (self._live.place(leader) if place == before else place, remaining)
                for place, remaining in self._contenders
            )
            self._forget_counts()
        return True

    def _find_hits(self, sequence: Sequence) -> int:
        """Published blocks to adopt, never the last token's; notes whether the next ones are being computed.

        It awaits the last of the blocks that one leader computes in a row: until that is published, or the
        leader is gone, there is nothing to look up. O(blocks), once per leader.
        """
        sequence.awaited = None
        if sequence.computes_all or not self._context.config.prefix_caching:
            return 0
        limit = hits_max(len(sequence.tokens), self._context.ledger.block_size)
        names = sequence.chain.names[:limit]
        num_hits = self._context.ledger.find_prefix(names)
        leader = self._live.names.who_computes(names[num_hits]) if num_hits < limit else None
        for name in names[num_hits:] if leader is not None else ():
            if self._live.names.who_computes(name) is not leader:
                break
            sequence.awaited = name
        return num_hits

    def _is_better_loaded(self, sequence: Sequence, num_hits: int) -> bool:
        """True when the blocks after its hits are below and it waits for them: they are being loaded, or that
        begins now. O(blocks that are below)."""
        transfers = self._transfers
        if transfers.tier is None or transfers.has_fetched(sequence.seq_id):
            return False
        if sequence.computes_all or not self._context.config.prefix_caching:
            return False
        limit = hits_max(len(sequence.tokens), self._context.ledger.block_size)
        rest = sequence.chain.names[num_hits:limit]
        count = transfers.below(rest)
        on_their_way = next((i for i, name in enumerate(rest[:count]) if transfers.is_loading(name)), count)
        if count > 0 and on_their_way == 0:
            return True
        names = sequence.chain.names[: num_hits + on_their_way]
        if on_their_way == 0 or not self._fits(sequence, num_hits) or not transfers.may_fetch(names):
            return False
        self._let_sessions_go(sequence)
        transfers.fetch(sequence.seq_id, sequence.request.tenant, sequence.rank, sequence.chain, names)
        return True

    def _let_fetches_go(self, sequence: Sequence, num_hits: int) -> int:
        """Nothing runs: what complete fetches hold, its own too, must not keep the first in the queue out."""
        while not self._fits(sequence, num_hits):
            if not self._making_room.of_fetches():
                break
            self._forget_counts()
            num_hits = self._find_hits(sequence)
        return num_hits

    def _contender(self, sequence: Sequence, num_hits: int) -> Contender:
        remaining = len(sequence.tokens) - num_hits * self._context.ledger.block_size
        return self._live.place(sequence), remaining

    def _enter(self, sequence: Sequence, num_hits: int) -> None:
        self._live.admit(sequence, num_hits)
        bisect.insort(self._contenders, self._contender(sequence, num_hits))
        self._forget_counts()

    def _fits(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether rows and blocks suffice as things stand, but for holds that give way to it."""
        return self._fits_but_for_its_tenant(sequence, num_hits) and self._shares.allows(
            sequence, num_hits, self._live.running, self._yielded
        )

    def fits_beside(
        self, sequence: Sequence, num_hits: int, running: Many[Sequence], freed: Set[int]
    ) -> bool:
        """The same if only `running` ran and the blocks `freed` were unheld. O(running)."""
        rows = self._context.config.max_rows - sum(1 + s.forks_left for s in running)
        return (
            1 + sequence.forks_left <= rows
            and self._blocks_suffice(sequence, num_hits, self._budget.promised(running), len(running), freed)
            and self._shares.allows(sequence, num_hits, running, freed)
        )

    def _fits_but_for_its_tenant(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether rows and blocks suffice, so that only bounds of its tenant keep it out."""
        return 1 + sequence.forks_left <= self._live.num_free_rows and self._blocks_suffice(
            sequence, num_hits, self._promised_now(), len(self._live.running), self._yielded
        )

    def _why_not(self, sequence: Sequence, num_hits: int) -> Wait:
        """What `_fits` lacked."""
        rows = 1 + sequence.forks_left
        if rows > self._live.num_free_rows:
            return Wait(WaitReason.ROWS, rows, max(0, self._live.num_free_rows))
        needed = self._budget.needed(sequence, num_hits)
        if not self._shares.allows(sequence, num_hits, self._live.running, NOTHING_FREED):
            return self._shares.why_not(sequence, num_hits)
        promised = (self._promised or 0) + self._budget.headroom(len(self._live.running))
        return Wait(WaitReason.BLOCKS, needed, self._context.ledger.num_unheld, promised)

    def _blocks_suffice(
        self, sequence: Sequence, num_hits: int, promised: int, num_running: int, freed: Set[int]
    ) -> bool:
        """Whether its blocks fit beside `num_running` others with `promised` blocks, once the blocks `freed`
        are unheld."""
        left_to_others = promised
        if num_running:
            left_to_others += self._budget.headroom(num_running) + sequence.forks_left
        return self._budget.suffices(sequence, num_hits, left_to_others, freed)

    def _promised_now(self) -> int:
        if self._promised is None:
            self._promised = self._budget.promised(self._live.running)
        return self._promised

    def _make_room(self, sequence: Sequence, num_hits: int) -> bool:
        """Preempt strictly lower priorities, as `victims` says, if that lets the sequence in; else change
        nothing."""
        if not self._live.running or self._live.running[-1].request.priority >= sequence.priority:
            return False  # the common case, in O(1)
        lower = [s for s in self._live.running if s.priority < sequence.priority]
        if self._fits_but_for_its_tenant(sequence, num_hits):  # then only the tenant's own can help
            lower = [s for s in lower if s.request.tenant == sequence.request.tenant]
        lower = whole_groups(self._shares.lenders(lower, sequence))
        kept = [s for s in self._live.running if s not in lower]
        if not self.fits_beside(sequence, num_hits, kept, self._blocks_freed(sequence, lower)):
            return False
        self._let_sessions_go(sequence)
        while lower:
            why = self._why_not(sequence, num_hits)
            missing = max(1, why.needed + why.promised - why.available)
            self._preempt_all(self._making_room.victims(lower, missing), sequence)
            if self._fits(sequence, num_hits):
                return True
            lower = [s for s in lower if s.state is State.RUNNING]
        raise AssertionError("preempting all lower priorities made less room than was counted")

    def _blocks_freed(self, sequence: Sequence, lower: list[Sequence]) -> set[int]:
        """The blocks that only `lower` hold, which are all that may be preempted for `sequence`."""
        key = (sequence.priority, sequence.request.tenant, len(lower))
        if key not in self._freed:
            self._freed[key] = self._held_only_by(lower)
        return self._freed[key]

    def _held_only_by(self, running: list[Sequence]) -> set[int]:
        """Blocks that only these hold, and what gives way to the sequence that is looked at."""
        return self._context.ledger.without([*self._yielding, *(s.table for s in running)]).freed

    def _forget_counts(self) -> None:
        """Another set of sequences runs now, or by other ranks."""
        self._promised = None
        self._freed.clear()
