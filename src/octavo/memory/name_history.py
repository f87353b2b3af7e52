"""The history of names: their age when they were found or evicted, and why names that no tier has any more
are gone.

    pool | host memory | disk   --leaves the last of them-->   gone: name -> when, why, for which request
                                <--is computed, or stored--    no longer gone

A name that leaves one tier and is still in another is not gone. The table is bounded and drops the oldest
departure first. So a name in no tier and not in the table was never computed, or left long ago. Every
operation is O(1). The history does not know blocks, tokens or tenants.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import msgspec

from octavo.memory.changes import ChangeRecord, Place

GONE_MAX = 65_536  # names: about 16 MiB
Move = tuple[bytes, Place, bool]  # a name, a place, and whether it came there or left
AGES_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0)


class Cause(enum.StrEnum):
    """Why a name left a tier."""

    EVICTED = "evicted"  # another block needed its slot
    EXPIRED = "expired"  # it was unused for the lifetime of the disk cache's entries
    BOUNDED = "bounded"  # its tenant exceeded its bound in the offload tiers
    UNREADABLE = "unreadable"  # its bytes could not be stored, or not be read back intact
    POISONED = "poisoned"  # the request that computed it failed
    RESIZED = "resized"  # the pool became smaller
    RESTARTED = "restarted"  # the engine found its state broken and began with an empty pool

    @property
    def is_loss(self) -> bool:
        """False if it was evicted for room, or expired."""
        return self not in (Cause.EVICTED, Cause.EXPIRED, Cause.BOUNDED)


class Departure(msgspec.Struct, frozen=True, gc=False):
    """How a name left the last tier that had it. `at`: in seconds of the engine's clock."""

    at: float
    cause: Cause
    request_id: int | None = None  # the request that took its block; None: not a single one


@dataclass(frozen=True, slots=True)
class AgeCounts:
    """A histogram of ages: `counts[i]` are those up to `AGES_S[i]` seconds, the last are older."""

    counts: tuple[int, ...] = (0,) * (len(AGES_S) + 1)
    seconds: float = 0.0  # the sum of all ages


class _Ages:
    """A histogram that grows."""

    def __init__(self) -> None:
        self._counts = [0] * (len(AGES_S) + 1)
        self._seconds = 0.0

    def add(self, age_s: float) -> None:
        self._counts[bisect_left(AGES_S, age_s)] += 1
        self._seconds += age_s

    def so_far(self) -> AgeCounts:
        return AgeCounts(tuple(self._counts), self._seconds)


def _ages_by_place() -> dict[Place, _Ages]:
    return {place: _Ages() for place in Place}


class NameHistory:
    """Names that are gone, and ages by tier. The pool and the tiers of a ledger share one history."""

    def __init__(self, gone_max: int = GONE_MAX) -> None:
        self.clock: Callable[[], float] = lambda: 0.0  # the engine's, in seconds
        self.places: list[Container[bytes]] = []  # tiers that may have a name
        self.changes: ChangeRecord | None = None  # if set: records arrivals and departures
        self.moves: list[Move] | None = None  # if set: the same, names only; see `place_changes`
        self._ages_at_hit = _ages_by_place()
        self._ages_at_eviction = _ages_by_place()
        self._gone_max = gone_max
        self._gone: OrderedDict[bytes, Departure] = OrderedDict()

    def __len__(self) -> int:
        return len(self._gone)

    @property
    def ages_at_hit(self) -> dict[Place, AgeCounts]:
        """Time that blocks had been in a tier when a request found them."""
        return {place: ages.so_far() for place, ages in self._ages_at_hit.items()}

    @property
    def ages_at_eviction(self) -> dict[Place, AgeCounts]:
        """Time that blocks had been in a tier at their eviction."""
        return {place: ages.so_far() for place, ages in self._ages_at_eviction.items()}

    def find(self, name: bytes) -> Departure | None:
        """How a name left; None: a tier has it, it was never computed, or it left too long ago."""
        return self._gone.get(name)

    def names(self) -> Iterable[bytes]:
        """Names that are gone, the first to leave first: for checks."""
        return self._gone

    def arrive(self, name: bytes, place: Place) -> float:
        """The name is findable in that tier from now on. Returns the time."""
        self._gone.pop(name, None)
        if self.changes is not None:
            self.changes.add(name, place)
        if self.moves is not None:
            self.moves.append((name, place, True))
        return self.clock()

    def leave(
        self, name: bytes, cause: Cause, request_id: int | None = None, place: Place | None = None
    ) -> None:
        """The name left one tier, or (`place` is None) could not be stored there. If no tier has it, it is
        gone."""
        if self.changes is not None and place is not None:
            self.changes.remove(name, place)
        if self.moves is not None and place is not None:
            self.moves.append((name, place, False))
        self._leave(name, cause, request_id, self.clock())

    def note_hits(self, place: Place, since: Iterable[float | None]) -> None:
        """A request found blocks that came at these times; None: unknown, not counted."""
        now, ages = self.clock(), self._ages_at_hit[place]
        for started in since:
            if started is not None:
                ages.add(now - started)

    def evict(self, name: bytes, since: float, cause: Cause, request_id: int | None) -> None:
        """The pool evicts a name that it has had since that time."""
        now = self.clock()
        self._ages_at_eviction[Place.POOL].add(now - since)
        if self.changes is not None:
            self.changes.remove(name, Place.POOL)
        if self.moves is not None:
            self.moves.append((name, Place.POOL, False))
        self._leave(name, cause, request_id, now)

    def note_eviction(self, place: Place, since: float | None) -> None:
        """A tier evicts a block that came at that time; None: unknown, not counted."""
        if since is not None:
            self._ages_at_eviction[place].add(self.clock() - since)

    def move(self, name: bytes, source: Place, target: Place) -> None:
        """The name moves from one tier to another."""
        if self.changes is not None:
            self.changes.add(name, target)
            self.changes.remove(name, source)
        if self.moves is not None:
            self.moves += [(name, target, True), (name, source, False)]

    def _leave(self, name: bytes, cause: Cause, request_id: int | None, now: float) -> None:
        for place in self.places:
            if name in place:
                return
        gone = self._gone
        if name in gone:
            gone.move_to_end(name)
        gone[name] = Departure(now, cause, request_id)
        if len(gone) > self._gone_max:
            gone.popitem(last=False)

    def continue_from(self, old: NameHistory, lost: Iterable[bytes]) -> None:
        """Continue the history of an earlier ledger, whose pool had the names `lost`. O(names)."""
        self._ages_at_hit, self._ages_at_eviction = old._ages_at_hit, old._ages_at_eviction
        for name, departure in old._gone.items():
            if not any(name in place for place in self.places):
                self._gone[name] = departure
        for name in lost:
            self.leave(name, Cause.RESTARTED)
