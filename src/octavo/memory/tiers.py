"""The ledger of the tier below the pool: which name has its bytes in which slot. Integers and names only.

    storing    its bytes are on their way down; not findable yet, the slot is taken
    stored     findable; the least recently used one is taken when a slot is needed
    loading    stored, and its bytes are on their way up: the slot cannot be taken

A name may be in the pool and below at once: evicting it from the pool is then free. It does not know blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class LowerTier:
    """Slots and names. Every operation is O(1), but for slots that are passed because they are loading."""

    def __init__(self, num_slots: int, stored: Iterable[tuple[bytes, int]] = ()) -> None:
        self.num_slots = num_slots
        self.num_evictions = 0
        self.dropped: list[int] = []  # slots whose bytes must not be found again, not after a restart either
        self._slot_of: dict[bytes, int] = dict(stored)  # least recently used first
        taken = set(self._slot_of.values())
        assert len(taken) == len(self._slot_of), "two names in one slot"
        self._free = [slot for slot in range(num_slots - 1, -1, -1) if slot not in taken]
        self._storing: dict[bytes, int] = {}
        self._loading: Counter[bytes] = Counter()
        self._doomed: set[bytes] = set()  # forgotten while they were on their way down

    def __contains__(self, name: object) -> bool:
        return name in self._slot_of and name not in self._doomed

    @property
    def num_stored(self) -> int:
        """Names that can be found."""
        return len(self._slot_of)

    @property
    def num_free(self) -> int:
        """Slots that nothing is in."""
        return len(self._free)

    def is_storing(self, name: bytes) -> bool:
        """True while its bytes are on their way down."""
        return name in self._storing

    def names(self) -> list[bytes]:
        """All that can be found, least recently used first."""
        return [name for name in self._slot_of if name not in self._doomed]

    def slots(self) -> dict[bytes, int]:
        """Every slot that is taken, by name: for checks."""
        return self._slot_of | self._storing

    def begin_store(self, name: bytes) -> int | None:
        """A slot for `name`, whose bytes will now be written: a free one, or that of the least recently used
        name, which is forgotten. None when every slot is on its way somewhere."""
        assert name not in self._slot_of
        assert name not in self._storing
        if not self._free:
            oldest = next((old for old in self._slot_of if old not in self._loading), None)
            if oldest is None:
                return None
            self._free.append(self._slot_of.pop(oldest))
            self.num_evictions += 1
        slot = self._storing[name] = self._free.pop()
        return slot

    def end_store(self, name: bytes, ok: bool) -> None:
        """The bytes are there, or could not be written."""
        slot = self._storing.pop(name)
        if ok and name not in self._doomed:
            self._slot_of[name] = slot
        else:
            self._drop(slot)
        self._doomed.discard(name)

    def begin_load(self, name: bytes) -> int:
        """The slot of a stored name, which nobody may take until `end_load`."""
        self._loading[name] += 1
        slot = self._slot_of.pop(name)
        self._slot_of[name] = slot  # the most recently used now
        return slot

    def end_load(self, name: bytes, ok: bool) -> bool:
        """The bytes are in the pool, or were damaged: then the name is forgotten. Returns whether they may be
        found under it."""
        self._loading[name] -= 1
        if self._loading[name] == 0:
            del self._loading[name]
        wanted = ok and name in self._slot_of and name not in self._doomed
        if not wanted:
            self.forget(name)
        return wanted

    def forget(self, name: bytes) -> None:
        """Nobody finds it again."""
        if name in self._storing:
            self._doomed.add(name)
        elif name in self._loading:
            self._doomed.add(name)  # its slot is free when the last load has ended
        else:
            self._doomed.discard(name)
            slot = self._slot_of.pop(name, None)
            if slot is not None:
                self._drop(slot)

    def _drop(self, slot: int) -> None:
        self._free.append(slot)
        self.dropped.append(slot)
