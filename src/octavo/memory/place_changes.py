"""Arrivals and departures of names in the tiers of a ledger, and the present names: without tokens.

While there is a `PlaceChanges`, the ledger appends to a list; it keeps nothing else. The present names are
read from the ledger itself, in parts. A part is correct when it is read, so parts may be sent between
changes. This module knows no reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from octavo.memory.changes import Place
from octavo.memory.ledger import Ledger


@dataclass(slots=True)
class NamesOfPlace:
    """The names that came to a place, and those that left it."""

    added: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)


ByPlace = dict[Place, NamesOfPlace]


class PlaceChanges:
    """The changes of one ledger from now on. On the engine's thread.

    `shared_names`: those that the operator shares with all tenants now; the mapping is read at each call.
    """

    def __init__(self, ledger: Ledger, shared_names: Mapping[bytes, int] = MappingProxyType({})) -> None:
        self._ledger = ledger
        self._shared_names = shared_names
        self.shared = frozenset[bytes]()  # as of the last `take_shared`
        ledger.history.moves = []

    def take(self) -> ByPlace:
        """The changes since the last call. Each name of a place once, with its last change, which may repeat
        the reader's state. O(changes)."""
        moves, self._ledger.history.moves = self._ledger.history.moves, []
        last: dict[tuple[Place, bytes], bool] = {}
        for name, place, is_added in moves or ():
            last[place, name] = is_added
        found: ByPlace = {}
        for (place, name), is_added in last.items():
            names = found.setdefault(place, NamesOfPlace())
            (names.added if is_added else names.removed).append(name)
        return found

    def take_shared(self) -> bool:
        """Update `shared`; whether it has changed. O(shared names)."""
        if self._shared_names.keys() == self.shared:
            return False
        self.shared = frozenset(self._shared_names)
        return True

    def names(self) -> list[bytes]:
        """All findable names, and perhaps some others; a name in the pool and in an offload tier twice.
        O(names), at the speed of copying a list."""
        tier = self._ledger.tier
        return [*(() if tier is None else tier.stored_names()), *self._ledger.pool.by_name]

    def where(self, names: Iterable[bytes]) -> ByPlace:
        """The present places of each of these names. O(names)."""
        by_name, tier, found = self._ledger.pool.by_name, self._ledger.tier, ByPlace()
        for name in names:
            if name in by_name:
                found.setdefault(Place.POOL, NamesOfPlace()).added.append(name)
            if tier is not None and name in tier:
                found.setdefault(tier.place_of(name), NamesOfPlace()).added.append(name)
        return found
