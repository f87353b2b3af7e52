"""The ledger of the offload tiers: the slot of each name. Integers and names only.

    storing    its bytes are being copied to the tier; not findable yet, the slot is taken
    stored     findable; the least recently used one is evicted when a slot is needed
    loading    stored, and its bytes are being copied to the pool: the slot cannot be taken

Both tiers share one space of slot numbers; either may be empty:

    [ 0 ... num_host - 1 | num_host ... num_slots - 1 ]
      host memory          disk: survives a restart

A store goes to host memory. If that is full, its least recently used name moves to disk (`moved`), and the
least recently used name there is forgotten. The transfers keep the order: a move comes before the store that
takes its slot, and before any later load.

A name may be in the pool and in a tier at once: evicting it from the pool is then free. The ledger does not
know blocks, and time is an argument.

A name may be *read* in its slot by sequences whose table lists it as cold: its slot is not taken meanwhile.

A name may be *kept* by several keepers, even before it is stored. It is then on disk only, and nothing but
damage frees its slot. At most `kept_max` names are kept, so there is always room for others.
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
class SlotMove:
    """The bytes of `name` go from one slot to another."""

    name: bytes
    source: int
    target: int


class OffloadTier:
    """Slots and names. Every operation is O(1), except for skipping slots that are loading."""

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
        """`num_readable`: attention can read slots with smaller numbers."""
        assert 0 <= num_host <= num_slots
        self.num_slots = num_slots
        self.num_host = num_host
        # Names that may be kept: only on disk, which survives a restart, and never all of it.
        self._kept_max = (num_slots - num_host) * 3 // 4 if kept_max is None else kept_max
        # Slots that cold blocks may be in, and how many of them they may take; some are left for other names.
        self.num_readable = num_readable
        self.read_max = num_readable - max(1, num_readable // 8)
        self.num_claimed = 0  # slots for cold blocks: of the requests that run together, or the largest
        self.claimed_by: dict[str, int] = {}  # the same by tenant
        self.damaged_reads: list[bytes] = []  # names that are read and whose bytes are damaged
        self.history = NameHistory()
        self.history.places.append(self)
        self.num_evictions = 0
        self.num_expired = 0
        self.dropped: list[int] = []  # slots whose bytes must not be found again, even after a restart
        self.moved: list[SlotMove] = []  # not carried out yet
        self._max_age_s = max_age_s
        self._now: float | None = None
        self._slot_of: dict[bytes, int] = dict(stored)
        # By tier: name -> its last use (None: before this ledger began), least recently used first.
        self._used: tuple[dict[bytes, float | None], ...] = ({}, {})
        for name, slot in self._slot_of.items():
            self._used[self._tier_of(slot)][name] = None
        taken = set(self._slot_of.values())
        assert len(taken) == len(self._slot_of), "two names in one slot"
        free = [slot for slot in range(num_slots - 1, -1, -1) if slot not in taken]
        self._free = tuple([slot for slot in free if self._tier_of(slot) == tier] for tier in (_HOST, _DISK))
        self._keepers: Counter[bytes] = Counter()  # of names that are stored or not
        self._readers: Counter[bytes] = Counter()  # of names that are stored
        # Names whose bytes were intact since this ledger began: stored, loaded or verified.
        self._verified: set[bytes] = set()
        self._leaving: Counter[bytes] = Counter()  # names that are moving to another slot
        # When a name came to its tier, on the history's clock; unknown for names found at the start.
        self._since: dict[bytes, float] = {}
        self._owner_of: dict[bytes, int] = {}  # of names that this ledger stored
        self._names_of: dict[int, dict[bytes, None]] = {}  # not kept ones, least recently used first
        self._kept_of: Counter[int] = Counter()  # by owner
        self._storing: dict[bytes, int] = {}
        self._loading: Counter[bytes] = Counter()
        self._doomed: set[bytes] = set()  # forgotten during a transfer

    def __contains__(self, name: object) -> bool:
        return name in self._slot_of and name not in self._doomed

    @property
    def num_stored(self) -> int:
        """Names that are findable."""
        return len(self._slot_of)

    @property
    def num_kept(self) -> int:
        """Names that are kept, whether they are stored yet or not."""
        return len(self._keepers)

    @property
    def kept_max(self) -> int:
        """How many may be kept now; the cold blocks of the request with the most need the others."""
        return min(self._kept_max, self.num_slots - self.num_claimed)

    @property
    def num_in_host(self) -> int:
        """Evictable names in host memory."""
        return len(self._used[_HOST])

    @property
    def num_free(self) -> int:
        """Empty slots."""
        return sum(map(len, self._free))

    def is_storing(self, name: bytes) -> bool:
        """True while its bytes are being stored."""
        return name in self._storing

    def names(self) -> list[bytes]:
        """All findable names, lower tier first, least recently used first, kept and read ones last."""
        used = [name for tier in reversed(self._used) for name in tier]
        others = [name for name in {**self._keepers, **self._readers} if name in self._slot_of]
        return [name for name in used + others if name not in self._doomed]

    def stored_names(self) -> list[bytes]:
        """As `names` in no order, with those that were forgotten while they were on their way: a copy."""
        return list(self._slot_of)

    def slots(self) -> dict[bytes, int]:
        """Every taken slot, by name: for checks."""
        return self._slot_of | self._storing

    def slot_of(self, name: bytes) -> int | None:
        """The slot of a findable name."""
        return self._slot_of[name] if name in self else None

    def place_of(self, name: bytes) -> Place:
        """The tier of a name that has a slot."""
        return Place.HOST if self._slot_of[name] < self.num_host else Place.DISK

    def since(self, name: bytes) -> float | None:
        """When it came to its tier; None: before this ledger began."""
        return self._since.get(name)

    def can_keep(self, name: bytes) -> bool:
        """True if it is findable on disk."""
        return name in self and self._tier_of(self._slot_of[name]) == _DISK

    @property
    def num_read(self) -> int:
        """Names that tables list as cold."""
        return len(self._readers)

    def readers(self) -> Counter[bytes]:
        """How many tables list each name as cold: for checks."""
        return Counter(self._readers)

    def is_read(self, name: bytes) -> bool:
        """True while a table lists it as cold, even if it was forgotten meanwhile."""
        return name in self._readers

    def may_read(self, name: bytes) -> bool:
        """Whether it can be listed as cold: attention can read its slot, and its bytes are intact."""
        return name in self._verified and self.could_read(name)

    def could_read(self, name: bytes) -> bool:
        """Whether it may be listed as cold after verification."""
        return name in self and self._slot_of[name] < self.num_readable and name not in self._leaving

    def is_leaving(self, name: bytes) -> bool:
        """True while its bytes are moving to another slot."""
        return name in self._leaving

    def is_kept(self, name: bytes) -> bool:
        """Whether it is kept."""
        return name in self._keepers

    @property
    def num_to_read(self) -> int:
        """Slots that the cold blocks of all sequences may take together now."""
        return min(self.read_max, self.num_slots - self.num_kept)

    def read(self, name: bytes) -> None:
        """One more table lists it as cold: its slot is not taken until `end_read`."""
        assert self.may_read(name) or name in self._readers  # a fork reads what its parent reads
        self._readers[name] += 1
        for used in self._used:
            used.pop(name, None)

    def slot_read(self, name: bytes) -> int:
        """The slot of a name that is read, even if it was forgotten meanwhile."""
        return self._slot_of[name]

    def end_read(self, name: bytes) -> None:
        """One table less; after the last it is the most recently used name."""
        self._readers[name] -= 1
        if self._readers[name]:
            return
        del self._readers[name]
        if name not in self._doomed:
            self._put(name, self._slot_of[name], self._now)
        elif name not in self._loading:
            self._forget(name, Cause.UNREADABLE)

    def keepers(self) -> Counter[bytes]:
        """How many keepers each name has: for checks."""
        return Counter(self._keepers)

    def keep(self, names: Sequence[bytes]) -> bool:
        """Keep these names: their slots are not taken from now on, also if they are stored later. Returns
        False and changes nothing if too many names would be kept. Names in host memory are forgotten there
        and must be stored again, on disk. O(names)."""
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
        """Remove a keeper. Without any, a name is evictable and most recently used; of a chain the head,
        which is the first of these names, is evicted last."""
        for name in reversed(names):
            self._keepers[name] -= 1
            if self._keepers[name] == 0:
                self._uncount(name)
                del self._keepers[name]
                self._own(name)
                if name in self._slot_of:
                    self._put(name, self._slot_of[name], self._now)

    def count_of(self, owner: int) -> int:
        """Names stored for that owner since this ledger began, stores in flight included."""
        return len(self._names_of.get(owner, ())) + self._kept_of[owner]

    def oldest_of(self, owner: int) -> bytes | None:
        """The owner's least recently used name; None: all are kept or in transfer."""
        own = self._names_of.get(owner, ())
        return next((name for name in own if not (name in self._storing or self._is_in_use(name))), None)

    def begin_store(self, name: bytes, owner: int = 0) -> int | None:
        """A slot for `name`, whose bytes are written next: a free one, or that of the least recently used
        name that is not kept, which moves to disk or is forgotten. A kept name goes to disk at once. None if
        every slot is kept or in transfer."""
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
        """The store has ended. A name in host memory that became kept meanwhile must be stored again, on
        disk."""
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

    def end_move(self, moved: SlotMove, ok: bool) -> None:
        """The move has ended. A name that could not be written is forgotten."""
        self._leaving[moved.name] -= 1
        if not self._leaving[moved.name]:
            del self._leaving[moved.name]
        if not ok and self._slot_of.get(moved.name) == moved.target:
            self.forget(moved.name)

    def begin_load(self, name: bytes) -> int:
        """The slot of a stored name, which is not taken until `end_load`."""
        self._loading[name] += 1
        return self._slot_of[name]

    def touch(self, name: bytes) -> None:
        """Make a stored name the most recently used one."""
        self._put(name, self._slot_of[name], self._now)

    def end_load(self, name: bytes, ok: bool) -> bool:
        """The load has ended. A damaged name is forgotten. Returns whether the block may be published under
        the name."""
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
        """The name is not found again. Readers of its slot are notified by `damaged_reads`."""
        if name in self._readers:
            self.damaged_reads.append(name)
        self._forget(name, cause)

    def _forget(self, name: bytes, cause: Cause) -> None:
        place = self.place_of(name) if name in self else None
        if name in self._storing:
            self._doomed.add(name)
        elif self._is_in_use(name):
            self._doomed.add(name)  # its slot is free after the last load or read
        else:
            self._doomed.discard(name)
            if name in self._slot_of:
                self._drop(self._remove(name))
                self._disown(name)
        if place is not None:
            self.history.leave(name, cause, place=place)

    def expire(self, now: float, at_most: int = 16) -> None:
        """Forget up to `at_most` names on disk that were unused for `max_age_s`. O(names forgotten).

        For names found at the start, age counts from the start of this ledger.
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
        """Empty a slot of that tier and return it."""
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
            self.moved.append(SlotMove(oldest, slot, target))
        return slot

    def _put(self, name: bytes, slot: int, used_at: float | None) -> None:
        """Put the name into that slot, as the most recently used one of its tier."""
        used = self._used[self._tier_of(slot)]
        used.pop(name, None)
        if name not in self._keepers and name not in self._readers:
            used[name] = used_at
        self._slot_of[name] = slot
        own = self._names_of.get(self._owner_of.get(name, -1))
        if own is not None and name in own:
            own[name] = own.pop(name)

    def _own(self, name: bytes) -> None:
        """Count it for its owner; kept names count separately."""
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
