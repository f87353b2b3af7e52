"""What is kept of idle sessions gives way: nobody asked for it, so it keeps no request and no pin out.

    firm        pins that somebody asked for: hot and warm ones, resumed sessions
    yielding    an idle session's hold (`Pin.gives_way`)

    firm pins + worst case of any request that was taken                   <= room    else it is refused
    firm and yielding pins + worst case of any request that runs           <= room    else holds are let go

The second line is established here, when a request is about to run, and nobody breaks it afterwards: a hold
is made where there is room beside all that runs. So a session loses its blocks only to what could not run
beside them, and only where that helps:

    short of                       holds that help, the longest idle in front
    its tenant's own bounds        its tenant's
    the pool                       its tenant's, and others' beyond what these are guaranteed
    the pins' budget (for a pin)   its tenant's, and everybody's: a guarantee is of memory, not of that budget

A session's next turn finds what is still cached, and computes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from octavo.memory.pins import Pin, Pins
from octavo.scheduler.capacity import Capacity
from octavo.scheduler.context import Context
from octavo.scheduler.events import Event, EventKind
from octavo.scheduler.holding import Holding
from octavo.scheduler.limits import blocks_needed
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.session_table import SessionTable, session_of
from octavo.types import Request


class GivingWay:
    """Acts on the holds of idle sessions."""

    def __init__(
        self,
        context: Context,
        pins: Pins,
        sessions: SessionTable,
        live: LiveSequences,
        capacity: Capacity,
        holding: Holding,
    ) -> None:
        self._context = context
        self._pins = pins
        self._sessions = sessions
        self._live = live
        self._capacity = capacity
        self._holding = holding

    def is_crowded(self, request: Request) -> bool:
        """True when holds of idle sessions keep out a request that was taken. O(1) where there are none, or
        where there is plenty of room."""
        pins, quotas = self._pins, self._context.ledger.quotas
        if not pins.num_yielding:
            return False
        needed = blocks_needed(request, self._context.ledger.block_size)
        maximum = quotas.policy(request.tenant).maximum
        plenty = self._context.ledger.pool.num_blocks - pins.num_blocks - quotas.num_guaranteed
        if needed <= plenty and (maximum is None or needed <= maximum - pins.blocks_of(request.tenant)):
            return False
        return needed > self._capacity.room_with_own_pin(request)

    def chosen_for(self, request: Request) -> list[Pin]:
        """The holds that must go before a request that was taken may run, no more than must. O(holds)."""
        if not self.is_crowded(request):
            return []
        tenant = request.tenant
        capacity, pins, quotas = self._capacity, self._pins, self._context.ledger.quotas
        needed, own = (
            blocks_needed(request, self._context.ledger.block_size),
            self._capacity.own_blocks(request),
        )
        yielding = own - self._capacity.own_blocks(request, firm=True)  # its own, of its session's hold
        short_of_own = needed - capacity.room_of_its_own(tenant, own=own)
        short_of_pool = needed - capacity.room_in_pool(tenant, own=own)
        chosen: dict[Pin, None] = {}
        pinned = Counter[str]()  # by tenant: what was chosen of its
        candidates = self._candidates(tenant, request.session)
        for pin in candidates:
            if short_of_own > 0 and pin.tenant == tenant:
                gain = pin.num_held - yielding * (session_of(pin.name) == request.session)
                short_of_own, short_of_pool = short_of_own - gain, short_of_pool - gain
                chosen[pin] = None
        for pin in candidates:
            if short_of_pool <= 0:
                break
            if pin in chosen:
                continue
            gain = pin.num_held - yielding * (session_of(pin.name) == request.session)
            if pin.tenant != tenant:
                beyond = (
                    pins.blocks_of(pin.tenant) - pinned[pin.tenant] - quotas.policy(pin.tenant).guaranteed
                )
                gain = min(gain, beyond)
                if gain <= 0:
                    continue
            pinned[pin.tenant] += pin.num_held
            short_of_pool -= gain
            chosen[pin] = None
        return list(chosen)

    def make_way(self, request: Request) -> None:
        """A request that was taken is about to run: let go of what keeps it out. O(holds)."""
        for pin in self.chosen_for(request):
            self._give(pin)
        assert not self.is_crowded(request), "a request was taken that does not fit beside firm pins"

    def make_way_for_pin(self, pin: Pin) -> None:
        """The request that fills this pin was taken: the same for the pin, which counts already."""
        capacity, tenant = self._capacity, pin.tenant
        if not self._pins.num_yielding or capacity.missing(tenant).most <= 0:
            return
        candidates = self._candidates(tenant, session_of(pin.name))
        own = (hold for hold in candidates if hold.tenant == tenant)
        self._give_while(lambda: capacity.missing(tenant).own, own)
        there = [hold for hold in candidates if hold.table is not None]
        self._give_while(lambda: capacity.missing(tenant).pool, (h for h in there if self._helps(h, tenant)))
        there = [hold for hold in candidates if hold.table is not None]
        self._give_while(lambda: capacity.missing(tenant).budget, there)
        assert capacity.missing(tenant).most <= 0, "a pin was taken that does not fit beside firm ones"

    def keep_to_bounds(self) -> None:
        """Tenants have other bounds now: holds beyond a maximum or a guarantee go, and those in the way of
        who runs."""
        quotas, pins = self._context.ledger.quotas, self._pins
        by_tenant: dict[str, list[Pin]] = {}
        for hold in self._candidates("", ""):
            by_tenant.setdefault(hold.tenant, []).append(hold)
        for tenant, holds in by_tenant.items():
            policy = quotas.policy(tenant)
            limit = self._context.config.pin_blocks if policy.maximum is None else policy.maximum
            limit = min(limit, policy.guaranteed) if quotas.has_guarantees else limit
            self._give_while(lambda t=tenant, n=limit: pins.blocks_of(t) - n, holds)  # type: ignore[misc]
        for request in self._live.running_requests():
            self.make_way(request)

    def give_for(self, tenant: str) -> bool:
        """The tenant holds more than it may: so many of its holds less. False when there is none."""
        quotas = self._context.ledger.quotas
        maximum = quotas.policy(tenant).maximum
        holds = [hold for hold in self._candidates(tenant, "") if hold.tenant == tenant]
        if maximum is not None:
            self._give_while(lambda: quotas.charged(tenant) - maximum, holds)
        return bool(holds)

    def _candidates(self, tenant: str, session_id: str) -> list[Pin]:
        """All holds, in the order in which they can be spared for something of `tenant`, which may be that
        session's. O(holds)."""
        found: list[tuple[tuple[bool, bool, bool, bool, float], Pin]] = []
        pins = self._pins
        for hold in pins.all() if pins.num_yielding else ():
            session = self._sessions.get(session_of(hold.name)) if hold.gives_way else None
            if session is None or not hold.num_held:
                continue
            is_own, is_promised = session.session_id == session_id, session.is_suspended
            used = session.expires - session.ttl_s
            found.append(((is_own, is_promised, session.turn is not None, hold.tenant != tenant, used), hold))
        return [hold for _, hold in sorted(found, key=lambda item: item[0])]

    def _helps(self, hold: Pin, tenant: str) -> bool:
        """Whether the pool has more room for that tenant without it."""
        beyond = self._pins.blocks_of(hold.tenant)
        return hold.tenant == tenant or beyond > self._context.ledger.quotas.policy(hold.tenant).guaranteed

    def _give_while(self, missing: Callable[[], int], holds: Iterable[Pin]) -> None:
        """Let these go, in order, while blocks are missing. None makes up for more than it holds: so it is
        asked again only when that many went."""
        line = iter(holds)
        while (short := missing()) > 0:
            while short > 0:
                hold = next(line, None)
                if hold is None:
                    return
                short -= hold.num_held
                self._give(hold)

    def _give(self, hold: Pin) -> None:
        num_blocks = hold.num_held
        session = self._sessions.get(session_of(hold.name))
        assert session is not None, "a session's hold without a session"
        self._holding.remove(hold)
        session.is_suspended = False  # one on its way down is not there
        session.note = "its blocks were needed for what could not run beside them"
        text = (
            f"session {session.session_id} let go of {num_blocks:,} blocks: {session.note}; its next turn "
            "computes what is not cached any more"
        )
        kind = EventKind.SESSION_GAVE_WAY
        self._context.events.note(
            Event(self._context.now, kind, text, session.turn, session.tenant, num_blocks)
        )
