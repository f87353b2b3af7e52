"""Warm pins during their offload: they hold their blocks in the pool until all are stored.

    held in the pool, names kept in the tier --- every block stored ---> offloaded: nothing held, names kept

The names are kept first: from then on the tier takes none of their slots. A pin that the tier cannot keep,
because there is no tier or its kept part is full, stays hot in its budget. So does one whose store failed; it
is tried again after another transfer succeeds. The stores of pins go before write-behind, even where loading
is slower than computing: they are promised, not an optimisation. Damaged names are forgotten and reported,
and the blocks that the pin still holds are stored again.

Sessions that no client suspended are kept by the server's choice: their names lose their place to what a
client requested, a suspension or a warm pin.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from octavo.memory.quota import SHARED
from octavo.memory.tiers import OffloadTier
from octavo.retention.pins import Pin, Pins, Strength
from octavo.retention.session_table import SessionState, SessionTable
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.step.timers import TimerKind, Timers


class WarmPins:
    """Moves pins to the offload tier and keeps them there."""

    def __init__(
        self,
        context: Context,
        pins: Pins,
        sessions: SessionTable,
        tier: OffloadTier | None,
        timers: Timers,
    ) -> None:
        self._context = context
        self._pins = pins
        self._sessions = sessions
        self._tier = tier
        self._timers = timers
        self._waiting: dict[bytes, list[Pin]] = {}  # names to store, and the pins that wait for each
        self._pending_stores: deque[bytes] = deque()  # names whose store has not begun
        self._failed: dict[bytes, None] = {}  # names whose store failed, in order
        self._kept: dict[str, Counter[bytes]] = {}  # by tenant: how many of its pins keep a name

    @property
    def has_stores_to_begin(self) -> bool:
        """True if a store is pending."""
        return bool(self._pending_stores)

    def begin(self, pin: Pin) -> None:
        """A pin was filled: a warm one moves to the tier, if there is one."""
        tier = self._tier
        if pin.strength is not Strength.WARM or tier is None:
            return
        why_not = self._keep_soft(pin) if pin.is_soft else self.pin_requested(pin.tenant, pin.names)
        if not why_not:
            self.offload(pin)
            return
        text = f"pin {pin.name} stays hot: {why_not}, and it has {pin.num_blocks:,}"
        self._context.events.record(
            Event(self._context.now, EventKind.REFUSED, text, None, pin.tenant, pin.num_blocks)
        )

    def keep(self, tenant: str, names: list[bytes]) -> str:
        """Keep these names in the tier, or return why not and change nothing. O(names)."""
        tier, limit = (
            self._tier,
            self._context.ledger.quotas.policy(tenant).disk_maximum,
        )
        assert tier is not None
        if tenant == SHARED:
            return "what is shared with all tenants stays in the pool, because it is found while it is held"
        if limit is not None:
            own, limit = self.kept_of(tenant), limit - tier.claimed_by.get(tenant, 0)
            if len(own) + sum(name not in own for name in set(names)) > limit:
                return f"the offload tier keeps {len(own):,} of at most {limit:,} blocks for this tenant"
        if not tier.keep(names):
            if tenant:  # no numbers that other tenants change
                return "the offload tier keeps as many blocks as it may"
            return f"the offload tier keeps {tier.num_kept:,} of at most {tier.kept_max:,} blocks"
        return ""

    def pin_requested(self, tenant: str, names: list[bytes], session_id: str = "") -> str:
        """As `keep`, for a client's request, of that session or none. If needed and sufficient, unpin names
        of other sessions that no client suspended. O(sessions + names kept) in that case."""
        why_not = self.keep(tenant, names)
        if not why_not or tenant == SHARED:
            return why_not
        spare = self._opportunistic_pins(tenant, session_id)
        return self._keep_instead(spare, tenant, names, "a client asked to keep there")

    def _keep_soft(self, pin: Pin) -> str:
        """As `keep`, for a session that no client suspended: unpin its tenant's responses, longest idle
        first."""
        why_not = self.keep(pin.tenant, pin.names)
        if not why_not or pin.tenant == SHARED:
            return why_not
        opportunistic = self._opportunistic_pins(pin.tenant, pin.session_id)
        spare = [
            h for h in opportunistic if h.tenant == pin.tenant and self._sessions.owner_of(h).is_response
        ]
        return self._keep_instead(spare, pin.tenant, pin.names, "is newer")

    def _keep_instead(self, spare: list[Pin], tenant: str, names: list[bytes], what: str) -> str:
        """Keep these names, and unpin as many of those pins, in order, as it takes; or return why all of them
        are not enough, and change nothing."""
        why_not = self.keep(tenant, names)
        if why_not and not self._fits_without(spare, tenant, names):
            return why_not
        candidates = iter(spare)
        while why_not:
            self._unpin(next(candidates), what)
            why_not = self.keep(tenant, names)
        return ""

    def _fits_without(self, spare: list[Pin], tenant: str, names: list[bytes]) -> bool:
        """Whether the tier could keep the names without these pins."""
        tier = self._tier
        assert tier is not None
        kept, own = tier.keepers(), Counter(self.kept_of(tenant))
        for pin in spare:
            kept.subtract(pin.names)
            if pin.tenant == tenant:
                own.subtract(pin.names)
        limit = self._context.ledger.quotas.policy(tenant).disk_maximum
        limit = None if limit is None else limit - tier.claimed_by.get(tenant, 0)
        num_own, num_kept = len({*names, *+own}), len({*names, *+kept})
        return bool(spare) and num_kept <= tier.kept_max and (limit is None or num_own <= limit)

    def offload(self, pin: Pin) -> None:
        """The tier keeps the pin's names; store those that are missing, then release the blocks."""
        tier = self._tier
        assert tier is not None
        pin.is_kept = True
        self._kept.setdefault(pin.tenant, Counter()).update(pin.names)
        pin.missing = {name for name in pin.names if name not in tier}
        for name in pin.names:
            if name in pin.missing:
                self._enqueue_store(name, pin)
        self._settle(pin)

    def end(self, pin: Pin) -> None:
        """The pin is about to go: the tier stops keeping its names."""
        if not pin.is_kept:
            return
        tier = self._tier
        assert tier is not None
        for name in pin.missing:
            self._waiting[name].remove(pin)
            if not self._waiting[name]:
                del self._waiting[name]
                self._failed.pop(name, None)
        tier.unkeep(pin.names)
        self._uncount(pin.tenant, pin.names)
        pin.is_kept = False
        pin.missing.clear()

    def remove(self, pin: Pin) -> None:
        """Remove the pin from the pool and the tier."""
        self.end(pin)
        self._pins.remove(pin)
        session = self._sessions.get(pin.session_id)
        if session is not None and session.hold is pin:
            session.hold = None
        elif session is not None and session.resumed is pin:
            session.resumed = None
        self._timers.cancel(TimerKind.PIN, (pin.filler, ""))

    def is_whole(self, pin: Pin) -> bool:
        """False if names that it holds or keeps were removed."""
        pool, tier = self._context.ledger.pool, self._tier
        assert pin.table is not None
        if any(pool.name_of[block] is None for block in pin.table.blocks):
            return False
        return not pin.is_kept or tier is None or all(n in tier for n in pin.names if n not in pin.missing)

    def next_store(self) -> bytes | None:
        """The next name to store; None: nothing is pending."""
        while self._pending_stores:
            name = self._pending_stores.popleft()
            if name in self._waiting:
                return name
        return None

    def requeue(self, name: bytes) -> None:
        """Retry a store first, which could not begin."""
        if name in self._waiting:
            self._pending_stores.appendleft(name)

    def defer(self, name: bytes) -> None:
        """Retry a store that cannot begin, or that failed, after another transfer succeeds."""
        if name in self._waiting:
            self._failed[name] = None

    def stored(self, name: bytes) -> None:
        """Record that the bytes of a name are in the tier."""
        for pin in self._waiting.pop(name, ()):
            pin.missing.discard(name)
            self._settle(pin)
        self._failed.pop(name, None)

    def try_again(self) -> None:
        """A transfer succeeded: retry the failed stores."""
        self._pending_stores.extend(self._failed)
        self._failed.clear()

    def is_stuck(self, pin: Pin) -> bool:
        """True while a store for the pin has failed."""
        return not pin.missing.isdisjoint(self._failed)

    def lost(self, name: bytes) -> None:
        """The bytes of a kept name are damaged in the tier. O(blocks of all pins), which is rare."""
        tier = self._tier
        for pin in self._pins.all():
            if not pin.is_kept or name in pin.missing or name not in pin.names:
                continue
            assert tier is not None
            assert pin.table is not None
            block = self._context.ledger.pool.find(name)
            if block is not None and block in pin.table.blocks:
                pin.missing.add(name)
                self._enqueue_store(name, pin)
                continue
            pin.names.remove(name)
            tier.unkeep([name])
            self._uncount(pin.tenant, [name])
            text = f"a block of pin {pin.name} was damaged in its tier; it will be recomputed when needed"
            self._context.events.record(
                Event(self._context.now, EventKind.TRANSFER_FAILED, text, None, pin.tenant, 1)
            )

    def waiting(self) -> dict[bytes, list[Pin]]:
        """The pins that wait for each store: for checks."""
        return self._waiting

    def kept_of(self, tenant: str) -> Counter[bytes]:
        """Names that the tier keeps for the tenant's pins, and for how many of them. O(1)."""
        return self._kept.get(tenant, Counter())

    def _opportunistic_pins(self, tenant: str, session_id: str) -> list[Pin]:
        """Kept holds of sessions that no client suspended, without that session's, in the order in which they
        are unpinned for a need of `tenant`: longest idle first. O(sessions)."""
        found: list[tuple[tuple[bool, bool, float], int, Pin]] = []
        for session in self._sessions:
            hold = session.hold
            if hold is None or not hold.is_kept or session.is_promised or session.session_id == session_id:
                continue
            is_busy = session.state in (SessionState.ACTIVE, SessionState.RESUMING)
            key = (session.tenant != tenant, is_busy, session.used)
            found.append((key, len(found), hold))
        return [hold for _, _, hold in sorted(found)]

    def _unpin(self, hold: Pin, what: str) -> None:
        """A session's names lose their kept place in the tier; its blocks stay there as unkept ones."""
        session = self._sessions.owner_of(hold)
        self.remove(hold)
        session.is_suspended = False
        session.note = f"its place in the offload tier was needed for what {what}"
        text = f"session {session.session_id}: {hold.num_blocks:,} blocks may be dropped: {session.note}"
        kind = EventKind.SESSION_RELEASED
        self._context.events.record(Event(self._context.now, kind, text, session.turn, session.tenant))

    def _uncount(self, tenant: str, names: Iterable[bytes]) -> None:
        own = self.kept_of(tenant)  # empty, if all names that its pins kept were lost
        for name in names:
            own[name] -= 1
            if not own[name]:
                del own[name]
        if not own:
            self._kept.pop(tenant, None)

    def _enqueue_store(self, name: bytes, pin: Pin) -> None:
        if name not in self._waiting:
            self._waiting[name] = []
            self._pending_stores.append(name)
        self._waiting[name].append(pin)

    def _settle(self, pin: Pin) -> None:
        if not pin.missing and pin.table is not None:
            self._pins.offload(pin)
