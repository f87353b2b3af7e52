"""Which names came to a tier of a ledger and left it, and which are there: names and places alone, for what
follows them without tokens.

The ledger appends to a list while there is a `PlaceChanges`, and nothing else is kept: what is there is read
of the ledger itself, in parts. A part that is read late is right then, so a follower may be given parts
between changes. It knows no reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.memory.changes import Place
from octavo.memory.ledger import Ledger


@dataclass(slots=True)
class NamesOfPlace:
    """That came to a place, and that left it."""

    added: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)


ByPlace = dict[Place, NamesOfPlace]


class PlaceChanges:
    """Of one ledger, from now on. On the thread that turns its engine."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        ledger.history.moves = []

    def take(self) -> ByPlace:
        """The changes since the last call. Each name of a place once, as the last change left it: a reader
        may know it already. O(changes)."""
        moves, self._ledger.history.moves = self._ledger.history.moves, []
        last: dict[tuple[Place, bytes], bool] = {}
        for name, place, is_added in moves or ():
            last[place, name] = is_added
        found: ByPlace = {}
        for (place, name), is_added in last.items():
            names = found.setdefault(place, NamesOfPlace())
            (names.added if is_added else names.removed).append(name)
        return found

    def names(self) -> list[bytes]:
        """All that can be found now, and perhaps some that cannot; one that is in the pool and in an offload
        tier twice. O(names), at the speed of copying a list."""
        tier = self._ledger.tier
        return [*(() if tier is None else tier.stored_names()), *self._ledger.pool.by_name]

    def where(self, names: Iterable[bytes]) -> ByPlace:
        """Where each of these is now, if it can be found. O(names)."""
        by_name, tier, found = self._ledger.pool.by_name, self._ledger.tier, ByPlace()
        for name in names:
            if name in by_name:
                found.setdefault(Place.POOL, NamesOfPlace()).added.append(name)
            if tier is not None and name in tier:
                found.setdefault(tier.place_of(name), NamesOfPlace()).added.append(name)
        return found
