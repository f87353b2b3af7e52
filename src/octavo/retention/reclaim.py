"""Which holder loses its blocks, and in which order: pure choices over holder records. `Reclaimer`
(reclaimer.py) executes them.

An order lists sources. The first source with candidates releases blocks, and the search restarts at the first
source, until the request is met or no source has candidates. The orders differ, each for a reason:

    RESERVING   a running sequence needs its next block      fetches behind it have computed nothing and are
                                                             cheapest; then the sequence behind it that
                                                             loses least; then fetches ahead of it, because
                                                             they are the next admissions; the last resort
                                                             is for blocks charged to no tenant
    BOUNDING    a waiting sequence is to be admitted, and    fetches behind it, then all of its tenant, if
                its tenant's own bounds are short            nothing of its tenant runs that may end
    ADMITTING   the same, and the pool is short              fetches, if nothing runs; lower priorities last,
                                                             and only if that admits it
    CLAIMING    a guarantee covers a waiting sequence        fetches of borrowers, before the sequences of
                                                             borrowers; those only if that admits it
    RESIZING    the pool is to be smaller                    fetches, then the sequences that lose least: no
                                                             request is preempted for another
    RELOADING   a tenant holds more than its new maximum     its running sequences, which are readmitted
                                                             later; then its soft holds, then fetches

Soft holds belong to no request. To admit or to claim, they count as released (`AdmissionLimits`), and are
released if that admits the sequence, before any sequence is preempted for it.

A sequence is chosen by its loss:

    candidate   a running sequence, or all sequences of a request (n > 1, a beam group): they go as one
    gain        blocks that no other holder lists: available at once
    loss        work to reach the same state again, in positions: computed ones, and loaded ones at the
                measured price of loading

Order of preemption: lowest priority, then largest part above its fair share, then least loss. A candidate
that frees too few blocks needs others after it, so it comes after those that free enough, by its loss per
block. Ties go to the last in rank. Source: Kwon et al. 2023, section 4.5, for preempting a request's
sequences together.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.memory.holders import Holder

CANDIDATES_MAX = 32  # the most candidates whose losses are compared


class ReclaimSource(enum.Enum):
    """A kind of holder whose blocks may be reclaimed."""

    FETCHES_BEHIND = enum.auto()  # complete fetches for sequences that rank after the requester
    FETCHES = enum.auto()  # all complete fetches
    BORROWED_FETCHES = enum.auto()  # fetches of tenants beyond their guarantee
    SOFT_HOLDS = enum.auto()  # kept for idle sessions
    SEQUENCES_BEHIND = enum.auto()  # running sequences that rank after the requester
    LOWER_PRIORITIES = enum.auto()
    BORROWERS = enum.auto()  # running sequences of tenants beyond their guarantee
    SEQUENCES = enum.auto()  # all running sequences
    LAST_RESORT = enum.auto()  # all holders without planned positions, for the best-ranked sequence


ReclaimOrder = tuple[ReclaimSource, ...]

RESERVING: ReclaimOrder = (
    ReclaimSource.FETCHES_BEHIND,
    ReclaimSource.SEQUENCES_BEHIND,
    ReclaimSource.FETCHES,
    ReclaimSource.LAST_RESORT,
)
BOUNDING: ReclaimOrder = (ReclaimSource.FETCHES_BEHIND, ReclaimSource.FETCHES)
ADMITTING: ReclaimOrder = (
    ReclaimSource.FETCHES,
    ReclaimSource.SOFT_HOLDS,
    ReclaimSource.LOWER_PRIORITIES,
)
CLAIMING: ReclaimOrder = (
    ReclaimSource.BORROWED_FETCHES,
    ReclaimSource.SOFT_HOLDS,
    ReclaimSource.BORROWERS,
)
RESIZING: ReclaimOrder = (ReclaimSource.FETCHES, ReclaimSource.SEQUENCES)
RELOADING: ReclaimOrder = (ReclaimSource.SEQUENCES, ReclaimSource.SOFT_HOLDS, ReclaimSource.FETCHES)

# One by one, the last in rank first.
_ONE_BY_ONE = {ReclaimSource.FETCHES_BEHIND, ReclaimSource.FETCHES, ReclaimSource.BORROWED_FETCHES}
# All candidates together: the caller computed a set that is enough.
_ALL_AT_ONCE = {ReclaimSource.SOFT_HOLDS, ReclaimSource.BORROWERS}
Choice = tuple[Holder, ...]  # holders to reclaim together; (): none


@dataclass(frozen=True, slots=True)
class Candidate:
    """Sequences that are preempted together."""

    members: Choice  # last in rank first
    priority: int
    share: float  # of its tenant, above the fair share; larger goes first
    gain: int
    loss: float

    def key(self, needed: int) -> tuple[int, float, bool, bool, float, tuple[int, ...]]:
        """The sort key where `needed` blocks are missing; the smallest is preempted first."""
        enough = self.gain >= needed
        price = self.loss if enough else self.loss / max(1, self.gain)
        last = tuple(-part for part in self.members[0].rank)
        return self.priority, -self.share, not enough, self.gain == 0, price, last


@dataclass(frozen=True, slots=True)
class ReclaimRequest:
    """The purpose of a reclaim, and its candidates."""

    is_met: Callable[[], bool]  # true when enough was reclaimed
    candidates_by_source: Mapping[ReclaimSource, Callable[[], Many[Holder]]]  # of the order's sources
    num_missing: Callable[[], int] = lambda: 1  # blocks, now
    after_release: Callable[[Choice], None] = lambda choice: None


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """The costs that decide which running sequences are preempted."""

    running: Callable[[], Iterable[Holder]]
    share_of: Callable[[Holder], float]
    loss_of: Callable[[Choice, int], tuple[int, float]]  # gain and loss, for so many missing blocks


def next_choice(order: ReclaimOrder, request: ReclaimRequest, costs: PreemptionCosts) -> Choice:
    """The holders to reclaim next, from the first source that has candidates."""
    for source in order:
        holders = request.candidates_by_source[source]()
        if not holders:
            continue
        if source in _ONE_BY_ONE:
            return (max(holders, key=lambda holder: holder.rank),)
        if source in _ALL_AT_ONCE:
            return tuple(holders)
        # The last resort preempts one by one: a single block may be enough.
        return cheapest(holders, 1 if source is ReclaimSource.LAST_RESORT else request.num_missing(), costs)
    return ()


def cheapest(holders: Many[Holder], needed: int, costs: PreemptionCosts) -> Choice:
    """The sequences to preempt together where `needed` blocks are missing. O(blocks of the candidates left
    after comparing priority and share)."""
    groups = grouped(holders, costs.running)
    if len(groups) <= 1:
        return groups[0] if groups else ()
    order = [(max(-m.rank[0] for m in group), -costs.share_of(group[0])) for group in groups]
    first = min(order)
    alike = [group for group, place in zip(groups, order, strict=True) if place == first]
    if len(alike) > CANDIDATES_MAX:  # a bound on the work: only the last in rank are compared
        alike = sorted(alike, key=lambda group: group[0].rank)[-CANDIDATES_MAX:]
    priority, share = first
    candidates = [Candidate(group, priority, -share, *costs.loss_of(group, needed)) for group in alike]
    chosen = choose(candidates, needed)
    assert chosen is not None
    return chosen.members


def choose(candidates: Iterable[Candidate], needed: int) -> Candidate | None:
    """The candidate to preempt where `needed` blocks are missing; None without candidates."""
    return min(candidates, key=lambda candidate: candidate.key(needed), default=None)


def grouped(eligible: Iterable[Holder], running: Callable[[], Iterable[Holder]]) -> list[Choice]:
    """Eligible sequences in the groups that are preempted together: all of a request, last in rank first;
    single ones if another sequence of the request runs and is not eligible."""
    groups: dict[int, list[Holder]] = {}
    for holder in eligible:
        groups.setdefault(holder.group, []).append(holder)
    sizes = Counter(h.group for h in running()) if any(len(g) > 1 for g in groups.values()) else {}
    found: list[Choice] = []
    for group, members in groups.items():
        if len(members) > 1 and sizes[group] == len(members):
            found.append(tuple(sorted(members, key=lambda holder: holder.rank, reverse=True)))
        else:
            found += [(member,) for member in members]
    return found
