"""Whom to preempt: what each candidate would lose and free, and a pure choice among them.

    candidate   a running sequence, or all sequences of a request (n > 1, a beam group): they go as one
    gain        blocks that nobody else holds: the pool has them again at once
    loss        work to be where it was again, in positions: what must be computed, and what can be loaded at
                the price that loading was measured to have

Worst first: the lowest priority, then the largest part above its fair share, then the least loss. A candidate
that frees too little must be followed by others, so it comes after those that free enough, by its loss for
each block; ties go to the last in rank.

Liveness: only sequences that rank after the winner are candidates, whatever they would lose. Ranks are a
strict order, so of two sequences only one can ever preempt the other, and the best-ranked that runs is
nobody's victim: it advances in every step until it ends, or until one of better rank enters. That makes the
best rank better, which can happen only as often as there are requests, so some request ends. What ends never
comes back, and tokens that were sampled are never lost. Least loss decides among the others, where rank
decided before.
Source: Kwon et al. 2023, section 4.5, for preempting a request's sequences together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from octavo.scheduler.context import Context
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.shares import TenantShares
from octavo.scheduler.staging import Staging

CANDIDATES_MAX = 32  # whose losses are compared


@dataclass(frozen=True, slots=True)
class Candidate:
    """Sequences that would go together."""

    members: tuple[Sequence, ...]  # last in rank first
    priority: int
    share: float  # of what its tenant has, beyond what is fair; larger goes first
    gain: int
    loss: float

    def key(self, needed: int) -> tuple[int, float, bool, bool, float, tuple[int, ...]]:
        """Smaller goes first, where `needed` blocks are missing."""
        enough = self.gain >= needed
        price = self.loss if enough else self.loss / max(1, self.gain)
        last = tuple(-part for part in self.members[0].rank)
        return self.priority, -self.share, not enough, self.gain == 0, price, last


def choose(candidates: Iterable[Candidate], needed: int) -> Candidate | None:
    """The one to preempt where `needed` blocks are missing; None where there is none."""
    return min(candidates, key=lambda candidate: candidate.key(needed), default=None)


def grouped(eligible: Iterable[Sequence], running: Iterable[Sequence]) -> list[tuple[Sequence, ...]]:
    """Eligible sequences as they would go: a request's together, last in rank first; one by one where some
    other sequence of the request runs and is not eligible."""
    groups: dict[int, list[Sequence]] = {}
    for sequence in eligible:
        groups.setdefault(sequence.request.request_id, []).append(sequence)
    sizes = Counter(s.request.request_id for s in running) if any(len(g) > 1 for g in groups.values()) else {}
    found: list[tuple[Sequence, ...]] = []
    for request_id, members in groups.items():
        if len(members) > 1 and sizes[request_id] == len(members):
            found.append(tuple(sorted(members, key=lambda s: s.rank, reverse=True)))
        else:
            found += [(member,) for member in members]
    return found


def whole_groups(eligible: list[Sequence]) -> list[Sequence]:
    """Without beams of a group some of whose beams are not among them: a group goes as one, or not at all."""
    if all(s.group is None for s in eligible):
        return eligible
    return [s for s in eligible if s.group is None or all(beam in eligible for beam in s.group.sequences())]


class Victims:
    """Finds them among the running sequences."""

    def __init__(self, context: Context, live: LiveSequences, shares: TenantShares, staging: Staging) -> None:
        self._context = context
        self._live = live
        self._shares = shares
        self._staging = staging

    def behind(self, winner: Sequence) -> list[Sequence]:
        """Those that rank after `winner`, have no chunk in the plan being made, and are protected by no
        guarantee; whoever is within its own guarantee comes before borrowers of any rank."""
        shares, own = self._shares, winner.request.tenant
        claims = shares.used(own) < self._context.ledger.quotas.policy(own).guaranteed
        return whole_groups(
            [
                s
                for s in self.unplanned(winner)
                if not shares.is_protected(s, winner)
                and (s.rank > winner.rank or (claims and s.request.tenant != own))
            ]
        )

    def unplanned(self, winner: Sequence) -> list[Sequence]:
        """All others that have no chunk in the plan being made."""
        diff = self._context.plan
        planned = {chunk.seq_id for chunk in diff.chunks} | {fork.child_seq_id for fork in diff.forks}
        others = [s for s in self._live.running if s is not winner and s.seq_id not in planned]
        return whole_groups(others)

    def find(self, eligible: Collection[Sequence], needed: int) -> tuple[Sequence, ...]:
        """Who of them is to go, together; () where there is nobody. O(blocks of those that priority and share
        leave)."""
        groups = grouped(eligible, self._live.running)
        if len(groups) <= 1:
            return groups[0] if groups else ()
        order = [(max(s.priority for s in g), -self._shares.share_of(g[0].request)) for g in groups]
        first = min(order)
        alike = [group for group, place in zip(groups, order, strict=True) if place == first]
        if len(alike) > CANDIDATES_MAX:  # a bound on the work: those that rank last are looked at
            alike = sorted(alike, key=lambda group: group[0].rank)[-CANDIDATES_MAX:]
        priority, share = first
        candidates = [self._candidate(group, priority, -share, needed) for group in alike]
        chosen = choose(candidates, needed)
        assert chosen is not None
        return chosen.members

    def _candidate(
        self, members: tuple[Sequence, ...], priority: int, share: float, needed: int
    ) -> Candidate:
        loss = self._staging.loss_of(members).price(self._staging.load_price)
        return Candidate(members, priority, share, self._gain(members, needed), loss)

    def _gain(self, members: tuple[Sequence, ...], needed: int) -> int:
        """Blocks that only they hold; counting ends at `needed`. Own blocks are at the tail."""
        holders = self._context.ledger.pool.holders
        counted: Counter[int] = Counter()
        gain = 0
        for member in members:
            assert member.table is not None
            for block in reversed(member.table.blocks):
                counted[block] += 1
                gain += counted[block] == holders[block]
                if gain >= needed:
                    return gain
        return gain
