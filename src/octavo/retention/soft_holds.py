"""Soft holds, what is kept of idle sessions: no client asked for it, so it keeps no request and no pin out.

    hard   pins that a client asked for: hot and warm ones, resumed sessions
    soft   what is kept of an idle session (`Pin.is_soft`)

    hard pins + worst case of any request that was taken             <= room    else it is refused
    hard and soft pins + worst case of any request that runs         <= room    else holds are let go

The second line is established here, when a request is about to run, and nothing breaks it afterwards: a hold
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
from dataclasses import dataclass

from octavo.memory.demand import blocks_needed
from octavo.memory.holders import Holder
from octavo.retention.pins import Pin, Pins
from octavo.retention.room import AcceptedRequests, Room
from octavo.retention.session_table import SessionTable
from octavo.retention.warm_pins import WarmPins
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.types import Request


@dataclass(eq=False)
class SoftHolds:
    """Acts on the holds of idle sessions."""

    _context: Context
    _pins: Pins
    _sessions: SessionTable
    _taken: AcceptedRequests
    _room: Room
    _warm_pins: WarmPins

    @property
    def num_blocks(self) -> int:
        """What all of them may hold."""
        return self._pins.num_soft

    def is_crowded(self, request: Request) -> bool:
        """True when holds of idle sessions keep out a request that was taken. O(1) where there are none, or
        where there is plenty of room."""
        pins, quotas = self._pins, self._context.ledger.quotas
        if not pins.num_soft:
            return False
        needed = blocks_needed(request, self._context.ledger.block_size)
        maximum = quotas.policy(request.tenant).maximum
        plenty = self._context.ledger.pool.num_blocks - pins.num_blocks - quotas.num_guaranteed
        if needed <= plenty and (maximum is None or needed <= maximum - pins.blocks_of(request.tenant)):
            return False
        return needed > self._room.beside_all_pins(request)

    def chosen_for(self, request: Request) -> list[Pin]:
        """The holds that must go before a request that was taken may run, no more than must. O(holds)."""
        if not self.is_crowded(request):
            return []
        tenant = request.tenant
        capacity, pins, quotas = self._room.everything, self._pins, self._context.ledger.quotas
        needed = blocks_needed(request, self._context.ledger.block_size)
        own = self._room.own_blocks(request)
        of_hold = own - self._room.own_blocks(request, hard_only=True)  # its own, of its session's hold
        short_of_own = needed - capacity.room_in_maximum(tenant, own)
        short_of_pool = needed - capacity.room_in_pool(tenant, own)
        chosen: dict[Pin, None] = {}
        pinned = Counter[str]()  # by tenant: what was chosen of its
        candidates = self._candidates(tenant, request.session)
        for pin in candidates:
            if short_of_own > 0 and pin.tenant == tenant:
                gain = pin.num_held - of_hold * (pin.session_id == request.session)
                short_of_own, short_of_pool = short_of_own - gain, short_of_pool - gain
                chosen[pin] = None
        for pin in candidates:
            if short_of_pool <= 0:
                break
            if pin in chosen:
                continue
            gain = pin.num_held - of_hold * (pin.session_id == request.session)
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

    def reclaim_soft_holds(self, request: Request) -> None:
        """A request that was taken is about to run: let go of what keeps it out. O(holds)."""
        for pin in self.chosen_for(request):
            self._give(pin)
        assert not self.is_crowded(request), "a request was taken that does not fit beside hard pins"

    def reclaim_for_pin(self, pin: Pin) -> None:
        """The request that fills this pin was taken: the same for the pin, which counts already."""
        room, tenant = self._room, pin.tenant
        if not self._pins.num_soft or room.missing(tenant).most <= 0:
            return
        candidates = self._candidates(tenant, pin.session_id)
        own = (hold for hold in candidates if hold.tenant == tenant)
        self._release_until_enough(lambda: room.missing(tenant).own, own)
        there = [hold for hold in candidates if hold.table is not None]
        self._release_until_enough(
            lambda: room.missing(tenant).pool, (h for h in there if self._helps(h, tenant))
        )
        there = [hold for hold in candidates if hold.table is not None]
        self._release_until_enough(lambda: room.missing(tenant).budget, there)
        assert room.missing(tenant).most <= 0, "a pin was taken that does not fit beside hard ones"

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
            self._release_until_enough(lambda t=tenant, n=limit: pins.blocks_of(t) - n, holds)  # type: ignore[misc]
        for request in self._taken.running_requests():
            self.reclaim_soft_holds(request)

    def beyond_maximum(self, tenant: str) -> list[Holder]:
        """The tenant holds more than it may: the hold that it can best do without, if it has any."""
        return [hold.holder for hold in self._candidates(tenant, "") if hold.tenant == tenant][:1]

    def let_go(self, holders: Iterable[Holder]) -> None:
        """These were chosen to go."""
        by_holder = {pin.holder: pin for pin in self._pins.all()}
        for holder in holders:
            self._give(by_holder[holder])

    def _candidates(self, tenant: str, session_id: str) -> list[Pin]:
        """All holds, in the order in which they can be spared for something of `tenant`, which may be that
        session's. O(holds)."""
        found: list[tuple[tuple[bool, bool, bool, bool, float], Pin]] = []
        pins = self._pins
        for hold in pins.all() if pins.num_soft else ():
            if not hold.is_soft or not hold.num_held:
                continue
            session, is_others = self._sessions.get(hold.session_id), hold.tenant != tenant
            if session is None:
                found.append(((False, False, False, is_others, hold.created), hold))
                continue
            is_own, is_promised = session.session_id == session_id, session.is_suspended
            found.append(((is_own, is_promised, session.turn is not None, is_others, session.used), hold))
        return [hold for _, hold in sorted(found, key=lambda item: item[0])]

    def _helps(self, hold: Pin, tenant: str) -> bool:
        """Whether the pool has more room for that tenant without it."""
        beyond = self._pins.blocks_of(hold.tenant)
        return hold.tenant == tenant or beyond > self._context.ledger.quotas.policy(hold.tenant).guaranteed

    def _release_until_enough(self, missing: Callable[[], int], holds: Iterable[Pin]) -> None:
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
        num_blocks, session = hold.num_held, self._sessions.get(hold.session_id)
        self._warm_pins.remove(hold)
        why, whose, turn = "its blocks were needed for what could not run beside them", hold.name, None
        if session is not None:
            session.is_suspended = False  # one that was on its way to an offload tier is not there
            session.note, whose, turn = why, f"session {session.session_id}", session.turn
        text = (
            f"{whose} let go of {num_blocks:,} blocks: {why}; what comes back to them computes what is not "
            "cached any more"
        )
        kind = EventKind.SESSION_GAVE_WAY
        self._context.events.record(Event(self._context.now, kind, text, turn, hold.tenant, num_blocks))
