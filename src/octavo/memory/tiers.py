"""The ledger of the tiers below the pool: which name has its bytes in which slot. Integers and names only.

    storing    its bytes are on their way down; not findable yet, the slot is taken
    stored     findable; the least recently used one is taken when a slot is needed
    loading    stored, and its bytes are on their way up: the slot cannot be taken

Slots are one space of integers over both tiers, either of which may have none:

    [ 0 ... num_host - 1 | num_host ... num_slots - 1 ]
      host memory          disk: what a restart finds

A store goes to host memory. Where that is full, the least recently used name of it moves on to disk
(`moved`), where the least recently used one is forgotten. The transfers keep the order: a move
comes before the store that takes its slot, and before any later load.

A name may be in the pool and below at once: evicting it from the pool is then free. It does not know blocks,
and time is an argument.

A name may be *read* in its slot, by sequences whose table lists it as cold: nothing takes its slot meanwhile.

A name may be *kept*, by several keepers, also before it is stored: on disk alone, and then nothing but damage
takes its slot. At most `kept_max` names are, so that there is always room for others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.memory.changes import Place
from octavo.memory.name_history import Cause, NameHistory

_HOST, _DISK = 0, 1


@dataclass(frozen=True, slots=True)
class Moved:
    """The bytes of `name` go from one slot to another."""

    name: bytes
    source: int
    target: int


class OffloadTier:
    """Slots and names. Every operation is O(1), but for slots that are passed because they are loading."""

    def __init__(
        self,
        num_slots: int,
        stored: Iterable[tuple[bytes, int]] = (),
        *,
        num_host: int = 0,
        max_age_s: float = math.inf,
        kept_max: int | None = None,
        num_readable: int = 0,
    ) -> None:
        """`num_readable`: attention can read the slots before this one."""
        assert 0 <= num_host <= num_slots
        self.num_slots = num_slots
        self.num_host = num_host
        # Names that may be kept: only on disk, where a restart finds them, and never all of it.
        self._kept_max = (num_slots - num_host) * 3 // 4 if kept_max is None else kept_max
        # Where cold blocks may lie, and how many of these slots they may take; some are left to all else.
        self.num_readable = num_readable
        self.read_max = num_readable - max(1, num_readable // 8)
        self.num_claimed = 0  # slots for the cold blocks of requests: those that run together, or the largest
        self.claimed_by: dict[str, int] = {}  # the same by tenant
        self.spoilt: list[bytes] = []  # names that are read and whose bytes are not to be trusted any more
        self.history = NameHistory()
        self.history.places.append(self)
        self.num_evictions = 0
        self.num_expired = 0
        self.dropped: list[int] = []  # slots whose bytes must not be found again, not after a restart either
        self.moved: list[Moved] = []  # that was not carried out yet
        self._max_age_s = max_age_s
        self._now: float | None = None
        self._slot_of: dict[bytes, int] = dict(stored)
        # By tier: name -> when it was last used, None: before this ledger began; least recently used first.
        self._used: tuple[dict[bytes, float | None], ...] = ({}, {})
        for name, slot in self._slot_of.items():
            self._used[self._tier_of(slot)][name] = None
        taken = set(self._slot_of.values())
        assert len(taken) == len(self._slot_of), "two names in one slot"
        free = [slot for slot in range(num_slots - 1, -1, -1) if slot not in taken]
        self._free = tuple([slot for slot in free if self._tier_of(slot) == tier] for tier in (_HOST, _DISK))
        self._keepers: Counter[bytes] = Counter()  # of names that are stored or not
        self._readers: Counter[bytes] = Counter()  # of names that are stored
        # Names whose bytes were found right since this ledger began: stored, loaded or verified.
        self._verified: set[bytes] = set()
        self._leaving: Counter[bytes] = Counter()  # names whose bytes are on their way to another slot
        # When a name came to its tier, on the history's clock; of those that were there at first not known.
        self._since: dict[bytes, float] = {}
        self._owner_of: dict[bytes, int] = {}  # of names that this ledger stored
        self._names_of: dict[int, dict[bytes, None]] = {}  # that are not kept, least recently used first
        self._kept_of: Counter[int] = Counter()  # by owner
        self._storing: dict[bytes, int] = {}
        self._loading: Counter[bytes] = Counter()
        self._doomed: set[bytes] = set()  # forgotten while they were on their way

    def __contains__(self, name: object) -> bool:
        return name in self._slot_of and name not in self._doomed

    @property
    def num_stored(self) -> int:
        """Names that can be found."""
        return len(self._slot_of)

    @property
    def num_kept(self) -> int:
        """Names that are kept, stored or not."""
        return len(self._keepers)

    @property
    def kept_max(self) -> int:
        """How many may be kept now, beside the cold blocks of the request that needs most slots."""
        return min(self._kept_max, self.num_slots - self.num_claimed)

    @property
    def num_in_host(self) -> int:
        """Those of them whose bytes are in host memory."""
        return len(self._used[_HOST])

    @property
    def num_free(self) -> int:
        """Slots that nothing is in."""
        return sum(map(len, self._free))

    def is_storing(self, name: bytes) -> bool:
        """True while its bytes are on their way down."""
        return name in self._storing

    def names(self) -> list[bytes]:
        """All that can be found, tier by tier from below, least recently used first, kept ones last."""
        used = [name for tier in reversed(self._used) for name in tier]
        others = [name for name in {**self._keepers, **self._readers} if name in self._slot_of]
        return [name for name in used + others if name not in self._doomed]

    def slots(self) -> dict[bytes, int]:
        """Every slot that is taken, by name: for checks."""
        return self._slot_of | self._storing

    def slot_of(self, name: bytes) -> int | None:
        """Where it can be found."""
        return self._slot_of[name] if name in self else None

    def place_of(self, name: bytes) -> Place:
        """The tier of a name that has a slot."""
        return Place.HOST if self._slot_of[name] < self.num_host else Place.DISK

    def since(self, name: bytes) -> float | None:
        """When it came to its tier; None: before this ledger began."""
        return self._since.get(name)

    def can_keep(self, name: bytes) -> bool:
        """True when it can be found on disk."""
        return name in self and self._tier_of(self._slot_of[name]) == _DISK

    @property
    def num_read(self) -> int:
        """Names that tables list as cold."""
        return len(self._readers)

    def readers(self) -> Counter[bytes]:
        """How many tables list each name as cold: for checks."""
        return Counter(self._readers)

    def is_read(self, name: bytes) -> bool:
        """True while a table lists it as cold, also where it was forgotten meanwhile."""
        return name in self._readers

    def may_read(self, name: bytes) -> bool:
        """Whether it can be listed as cold: found where attention reads, and known to be right."""
        return name in self._verified and self.could_read(name)

    def could_read(self, name: bytes) -> bool:
        """Whether it may be listed as cold once it is verified."""
        return name in self and self._slot_of[name] < self.num_readable and name not in self._leaving

    def is_leaving(self, name: bytes) -> bool:
        """True while its bytes are on their way to another slot."""
        return name in self._leaving

    def is_kept(self, name: bytes) -> bool:
        """True for one that is kept."""
        return name in self._keepers

    @property
    def num_to_read(self) -> int:
        """Slots that cold blocks of all sequences may take together now."""
        return min(self.read_max, self.num_slots - self.num_kept)

    def read(self, name: bytes) -> None:
        """One more table lists it as cold: its slot is not taken until `end_read`."""
        assert self.may_read(name) or name in self._readers  # a fork reads what its parent does
        self._readers[name] += 1
        for used in self._used:
            used.pop(name, None)

    def slot_read(self, name: bytes) -> int:
        """Where a name is that is read, also one that was forgotten meanwhile."""
        return self._slot_of[name]

    def end_read(self, name: bytes) -> None:
        """One table less; without any it is the most recently used one."""
        self._readers[name] -= 1
        if self._readers[name]:
            return
        del self._readers[name]
        if name not in self._doomed:
            self._put(name, self._slot_of[name], self._now)
        elif name not in self._loading:
            self._forget(name, Cause.UNREADABLE)

    def keepers(self) -> Counter[bytes]:
        """How many keep each name: for checks."""
        return Counter(self._keepers)

    def keep(self, names: Sequence[bytes]) -> bool:
        """The slots of these names are not taken from now on, also of those that are stored later. False, and
        nothing is changed, when more names would be kept than may be. What is in host memory is forgotten
        there: it must be stored again, on disk. O(names)."""
        in_host = [name for name in names if self._slot_of.get(name, self.num_host) < self.num_host]
        num_kept = self.num_kept + sum(name not in self._keepers for name in names)
        if num_kept > self.kept_max:
            return False
        for name in in_host:
            self._forget(name, Cause.EVICTED)
        for name in names:
            if name not in self._keepers:
                self._uncount(name)
                self._keepers[name] = 0
                self._own(name)
            self._keepers[name] += 1
            for used in self._used:
                used.pop(name, None)
        return True

    def unkeep(self, names: Sequence[bytes]) -> None:
        """One keeper less; without any, a name is one of the most recently used of those that may be taken:
        of a chain the head, which is the first of these names."""
        for name in reversed(names):
            self._keepers[name] -= 1
            if self._keepers[name] == 0:
                self._uncount(name)
                del self._keepers[name]
                self._own(name)
                if name in self._slot_of:
                    self._put(name, self._slot_of[name], self._now)

    def count_of(self, owner: int) -> int:
        """Names that were stored for that owner since this ledger began, those on their way included."""
        return len(self._names_of.get(owner, ())) + self._kept_of[owner]

    def oldest_of(self, owner: int) -> bytes | None:
        """The one of them that it can best do without; None: all are kept, or on their way somewhere."""
        own = self._names_of.get(owner, ())
        return next((name for name in own if not (name in self._storing or self._is_in_use(name))), None)

    def begin_store(self, name: bytes, owner: int = 0) -> int | None:
        """A slot for `name`, whose bytes will now be written: a free one, or that of the least recently used
        name that is not kept, which moves on or is forgotten; a kept name goes to disk at once. None when
        every slot is kept or on its way somewhere."""
        assert name not in self._slot_of
        assert name not in self._storing
        slot = None if name in self._keepers else self._take(_HOST)
        if slot is None:
            slot = self._take(_DISK)
        if slot is not None:
            self._storing[name] = slot
            if self.history.changes is not None:
                self.history.changes.begin_store(name)
            self._owner_of[name] = owner
            self._own(name)
        return slot

    def end_store(self, name: bytes, ok: bool) -> None:
        """The bytes are there, or could not be written. Where the name came to be kept meanwhile, host memory
        is not the place: it must be stored again."""
        slot = self._storing.pop(name)
        is_in_place = name not in self._keepers or self._tier_of(slot) == _DISK
        if ok and is_in_place and name not in self._doomed:
            self._verified.add(name)
            self._put(name, slot, self._now)
            self._since[name] = self.history.arrive(name, self.place_of(name))
        else:
            self._drop(slot)
            self._disown(name)
            if not ok:
                self.history.leave(name, Cause.UNREADABLE)
        self._doomed.discard(name)
        if self.history.changes is not None:
            self.history.changes.end_store(name)

    def end_move(self, moved: Moved, ok: bool) -> None:
        """The bytes are at their target, or could not be written there: then the name is forgotten."""
        self._leaving[moved.name] -= 1
        if not self._leaving[moved.name]:
            del self._leaving[moved.name]
        if not ok and self._slot_of.get(moved.name) == moved.target:
            self.forget(moved.name)

    def begin_load(self, name: bytes) -> int:
        """The slot of a stored name, which may not be taken until `end_load`."""
        self._loading[name] += 1
        return self._slot_of[name]

    def touch(self, name: bytes) -> None:
        """A stored name is the most recently used one now."""
        self._put(name, self._slot_of[name], self._now)

    def end_load(self, name: bytes, ok: bool) -> bool:
        """The bytes are in the pool, or were damaged: then the name is forgotten. Returns whether they may be
        found under it."""
        self._loading[name] -= 1
        if self._loading[name] == 0:
            del self._loading[name]
        wanted = ok and name in self
        if wanted:
            self._verified.add(name)
        else:
            self.forget(name)
        return wanted

    def forget(self, name: bytes, cause: Cause = Cause.UNREADABLE) -> None:
        """It is not found again; who reads it in its slot must not trust that."""
        if name in self._readers:
            self.spoilt.append(name)
        self._forget(name, cause)

    def _forget(self, name: bytes, cause: Cause) -> None:
        place = self.place_of(name) if name in self else None
        if name in self._storing:
            self._doomed.add(name)
        elif self._is_in_use(name):
            self._doomed.add(name)  # its slot is free when the last load or read has ended
        else:
            self._doomed.discard(name)
            if name in self._slot_of:
                self._drop(self._remove(name))
                self._disown(name)
        if place is not None:
            self.history.leave(name, cause, place=place)

    def expire(self, now: float, at_most: int = 16) -> None:
        """Forget up to so many names on disk that were not used for `max_age_s`. O(names forgotten).

        Of those that were there when this ledger began, only the time since then is known.
        """
        began, self._now = self._now, now
        for name in self._used[_DISK] if began is None else ():
            self._used[_DISK][name] = now
        for _ in range(at_most):
            oldest, used_at = next(iter(self._used[_DISK].items()), (b"", None))
            if used_at is None or now - used_at <= self._max_age_s or oldest in self._loading:
                return
            self.forget(oldest, Cause.EXPIRED)
            self.num_expired += 1

    def _is_in_use(self, name: bytes) -> bool:
        return name in self._loading or name in self._readers

    def _tier_of(self, slot: int) -> int:
        return _HOST if slot < self.num_host else _DISK

    def _take(self, tier: int) -> int | None:
        """A slot of that tier, empty now."""
        if self._free[tier]:
            return self._free[tier].pop()
        oldest = next((name for name in self._used[tier] if name not in self._loading), None)
        if oldest is None:
            return None
        used_at, is_verified = self._used[tier][oldest], oldest in self._verified
        place = self.place_of(oldest)
        self.history.note_eviction(place, self._since.get(oldest))
        slot = self._remove(oldest)
        target = self._take(_DISK) if tier == _HOST else None
        if target is None:
            self.num_evictions += 1
            self._disown(oldest)
            self.history.leave(oldest, Cause.EVICTED, place=place)
        else:
            self._put(oldest, target, used_at)
            self.history.move(oldest, place, self.place_of(oldest))
            self._since[oldest] = self.history.clock()
            if is_verified:
                self._verified.add(oldest)
            self._leaving[oldest] += 1
            self.moved.append(Moved(oldest, slot, target))
        return slot

    def _put(self, name: bytes, slot: int, used_at: float | None) -> None:
        """The name is in that slot, and the most recently used one of its tier."""
        used = self._used[self._tier_of(slot)]
        used.pop(name, None)
        if name not in self._keepers and name not in self._readers:
            used[name] = used_at
        self._slot_of[name] = slot
        own = self._names_of.get(self._owner_of.get(name, -1))
        if own is not None and name in own:
            own[name] = own.pop(name)

    def _own(self, name: bytes) -> None:
        """Count it with its owner's, kept ones apart."""
        owner = self._owner_of.get(name)
        if owner is None:
            return
        if name in self._keepers:
            self._kept_of[owner] += 1
        else:
            self._names_of.setdefault(owner, {})[name] = None

    def _uncount(self, name: bytes) -> None:
        owner = self._owner_of.get(name)
        if owner is None:
            return
        if name in self._keepers:
            self._kept_of[owner] -= 1
        else:
            del self._names_of[owner][name]

    def _disown(self, name: bytes) -> None:
        self._uncount(name)
        self._owner_of.pop(name, None)

    def _remove(self, name: bytes) -> int:
        slot = self._slot_of.pop(name)
        self._since.pop(name, None)
        self._verified.discard(name)
        self._used[self._tier_of(slot)].pop(name, None)
        return slot

    def _drop(self, slot: int) -> None:
        self._free[self._tier_of(slot)].append(slot)
        self.dropped.append(slot)
