"""Who gives blocks up, and in which order: pure choices over holder records. `Reclaimer` (reclaimer.py)
executes them.

An order lists sources. Its first source that has an answer releases blocks, again and again from the first
one on, until the request is met or no source has an answer. The orders are not alike, and each for a reason:

    RESERVING   a running sequence needs its next block      fetches behind it have computed nothing and are
                                                             cheapest; of the sequences behind it goes who
                                                             loses least; fetches ahead of it only then,
                                                             because they are the next admissions; the
                                                             last resort is for blocks charged to no tenant
    BOUNDING    a waiting one wants to enter, and its        fetches behind it, then all of its tenant, if
                tenant's own bounds are short                nothing of its tenant runs that may end
    ADMITTING   the same, and the pool is short              fetches, if nothing runs; lower priorities last,
                                                             and only if that admits it
    CLAIMING    a guarantee covers a waiting one             fetches of borrowers, before what borrowers
                                                             compute; borrowers only if that admits it
    RESIZING    the pool is to be smaller                    fetches, then the sequences that lose least: no
                                                             request is asked on behalf of another
    RELOADING   a tenant holds more than it may now          its running sequences, which come back by
                                                             themselves; then its soft holds, then fetches

Soft holds are no request's: to admit or to claim they are counted as released (`AdmissionLimits`), and are
released when that lets the sequence in, before any sequence is preempted for it.

A sequence is chosen by what it would lose:

    candidate   a running sequence, or all sequences of a request (n > 1, a beam group): they go as one
    gain        blocks that no other holder lists: the pool has them again at once
    loss        work to be where it was again, in positions: what must be computed, and what can be loaded at
                the price that loading was measured to have

Worst first: the lowest priority, then the largest part above its fair share, then the least loss. A candidate
that frees too little must be followed by others, so it comes after those that free enough, by its loss for
each block; ties go to the last in rank. Source: Kwon et al. 2023, section 4.5, for preempting a request's
sequences together.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.memory.holders import Holder

CANDIDATES_MAX = 32  # whose losses are compared


class ReclaimSource(enum.Enum):
    """Whose blocks may be reclaimed."""

    FETCHES_BEHIND = enum.auto()  # complete fetches for sequences that rank after the one that is short
    FETCHES = enum.auto()  # all complete fetches
    BORROWED_FETCHES = enum.auto()  # those of tenants beyond their guarantee
    SOFT_HOLDS = enum.auto()  # what is kept of idle sessions
    SEQUENCES_BEHIND = enum.auto()  # running ones that rank after the one that is short
    LOWER_PRIORITIES = enum.auto()
    BORROWERS = enum.auto()  # running sequences of tenants beyond their guarantee
    SEQUENCES = enum.auto()  # all that run
    LAST_RESORT = enum.auto()  # all that have nothing planned, for the best-ranked of all


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

# The last in rank first, one by one.
_ONE_BY_ONE = {ReclaimSource.FETCHES_BEHIND, ReclaimSource.FETCHES, ReclaimSource.BORROWED_FETCHES}
# All candidates together: who is among them was computed so that they are enough.
_ALL_AT_ONCE = {ReclaimSource.SOFT_HOLDS, ReclaimSource.BORROWERS}
Choice = tuple[Holder, ...]  # who is to go, together; (): there is no one


@dataclass(frozen=True, slots=True)
class Candidate:
    """Sequences that would go together."""

    members: Choice  # last in rank first
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


@dataclass(frozen=True, slots=True)
class ReclaimRequest:
    """What blocks are reclaimed for, and from whom."""

    is_met: Callable[[], bool]  # true when nothing more is to be reclaimed
    candidates_by_source: Mapping[ReclaimSource, Callable[[], Many[Holder]]]  # of the order's sources
    num_missing: Callable[[], int] = lambda: 1  # blocks, now
    after_release: Callable[[Choice], None] = lambda choice: None


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """What decides which of some running sequences go."""

    running: Callable[[], Iterable[Holder]]
    share_of: Callable[[Holder], float]
    loss_of: Callable[[Choice, int], tuple[int, float]]  # gain and loss, where so many blocks are missing


def next_choice(order: ReclaimOrder, request: ReclaimRequest, costs: PreemptionCosts) -> Choice:
    """Who is to go, from the first source that has an answer."""
    for source in order:
        holders = request.candidates_by_source[source]()
        if not holders:
            continue
        if source in _ONE_BY_ONE:
            return (max(holders, key=lambda holder: holder.rank),)
        if source in _ALL_AT_ONCE:
            return tuple(holders)
        # Of the last resort one after the other: one that gives one block up may do.
        return cheapest(holders, 1 if source is ReclaimSource.LAST_RESORT else request.num_missing(), costs)
    return ()


def cheapest(holders: Many[Holder], needed: int, costs: PreemptionCosts) -> Choice:
    """Which of these sequences are to go, together, where `needed` blocks are missing. O(blocks of those that
    priority and share leave)."""
    groups = grouped(holders, costs.running)
    if len(groups) <= 1:
        return groups[0] if groups else ()
    order = [(max(-m.rank[0] for m in group), -costs.share_of(group[0])) for group in groups]
    first = min(order)
    alike = [group for group, place in zip(groups, order, strict=True) if place == first]
    if len(alike) > CANDIDATES_MAX:  # a bound on the work: those that rank last are looked at
        alike = sorted(alike, key=lambda group: group[0].rank)[-CANDIDATES_MAX:]
    priority, share = first
    candidates = [Candidate(group, priority, -share, *costs.loss_of(group, needed)) for group in alike]
    chosen = choose(candidates, needed)
    assert chosen is not None
    return chosen.members


def choose(candidates: Iterable[Candidate], needed: int) -> Candidate | None:
    """The one to preempt where `needed` blocks are missing; None where there is none."""
    return min(candidates, key=lambda candidate: candidate.key(needed), default=None)


def grouped(eligible: Iterable[Holder], running: Callable[[], Iterable[Holder]]) -> list[Choice]:
    """Eligible sequences as they would go: a request's together, last in rank first; one by one where some
    other sequence of the request runs and is not eligible."""
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
