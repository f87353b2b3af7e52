"""Soft holds: blocks kept for idle sessions. No client requested them, so they block no request or pin.

    hard   pins that a client requested: hot and warm ones, resumed sessions
    soft   blocks kept for an idle session (`Pin.is_soft`)

    hard pins + worst case of any accepted request                   <= room    else it is refused
    hard and soft pins + worst case of any running request           <= room    else holds are released

The second line is established here, when a request is about to run, and nothing breaks it afterwards: a hold
is made only if it fits with all running requests. So a session loses its blocks only to a request or pin that
does not fit with them, and only where that helps:

    short of                       holds that help, the longest idle first
    its tenant's own bounds        its tenant's
    the pool                       its tenant's, and others' beyond what these are guaranteed
    the pins' budget (for a pin)   its tenant's, and all others': guarantees do not cover that budget

A session's next turn finds what is still cached, and computes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo.memory.capacity import blocks_needed
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
    """Releases the holds of idle sessions."""

    _context: Context
    _pins: Pins
    _sessions: SessionTable
    _taken: AcceptedRequests
    _room: Room
    _warm_pins: WarmPins

    @property
    def num_blocks(self) -> int:
        """Blocks that all of them may hold."""
        return self._pins.num_soft

    def is_crowded(self, request: Request) -> bool:
        """True when holds of idle sessions keep out an accepted request. O(1) without holds, or with enough
        room."""
        pins, quotas = self._pins, self._context.ledger.quotas
        if not pins.num_soft:
            return False
        needed = blocks_needed(request, self._context.ledger.block_size)
        maximum = quotas.policy(request.tenant).maximum
        plenty = self._context.ledger.pool.num_blocks - pins.num_blocks - quotas.num_guaranteed
        if needed <= plenty and (maximum is None or needed <= maximum - pins.blocks_of(request.tenant)):
            return False
        return needed > self._room.room_with_all_pins(request)

    def chosen_for(self, request: Request) -> list[Pin]:
        """The fewest holds that must go before an accepted request may run. O(holds)."""
        if not self.is_crowded(request):
            return []
        tenant = request.tenant
        capacity, pins, quotas = self._room.everything, self._pins, self._context.ledger.quotas
        needed = blocks_needed(request, self._context.ledger.block_size)
        own = self._room.own_blocks(request)
        of_hold = own - self._room.own_blocks(request, hard_only=True)  # its own part of its session's hold
        short_of_own = needed - capacity.room_in_maximum(tenant, own)
        short_of_pool = needed - capacity.room_in_pool(tenant, own)
        chosen: dict[Pin, None] = {}
        pinned = Counter[str]()  # by tenant: chosen blocks
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
        """Release the holds that keep out an accepted request that is about to run. O(holds)."""
        for pin in self.chosen_for(request):
            self._release_hold(pin)
        assert not self.is_crowded(request), "an accepted request does not fit with the hard pins"

    def reclaim_for_pin(self, pin: Pin) -> None:
        """Release holds for a pin whose filling request was accepted; the pin counts already."""
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
        assert room.missing(tenant).most <= 0, "an accepted pin does not fit with the hard ones"

    def keep_to_bounds(self) -> None:
        """The tenants' bounds have changed: release holds beyond a maximum or a guarantee, and those that
        keep out running requests."""
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
        """If the tenant holds more than its maximum: the first of its holds to release, if it has any."""
        return [hold.holder for hold in self._candidates(tenant, "") if hold.tenant == tenant][:1]

    def release(self, holders: Iterable[Holder]) -> None:
        """Release these chosen holds."""
        by_holder = {pin.holder: pin for pin in self._pins.all()}
        for holder in holders:
            self._release_hold(by_holder[holder])

    def _candidates(self, tenant: str, session_id: str) -> list[Pin]:
        """All holds, in the order of release for a need of `tenant`, which may be that of the session
        `session_id`. O(holds)."""
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
        """Whether its release gives the pool more room for that tenant."""
        beyond = self._pins.blocks_of(hold.tenant)
        return hold.tenant == tenant or beyond > self._context.ledger.quotas.policy(hold.tenant).guaranteed

    def _release_until_enough(self, missing: Callable[[], int], holds: Iterable[Pin]) -> None:
        """Release holds in order while blocks are missing. A hold never frees more than it holds, so
        `missing` is called again only after that many blocks."""
        candidates = iter(holds)
        while (short := missing()) > 0:
            while short > 0:
                hold = next(candidates, None)
                if hold is None:
                    return
                short -= hold.num_held
                self._release_hold(hold)

    def _release_hold(self, hold: Pin) -> None:
        num_blocks, session = hold.num_held, self._sessions.get(hold.session_id)
        self._warm_pins.remove(hold)
        why, whose, turn = "its blocks were needed for a request or pin that did not fit", hold.name, None
        if session is not None:
            session.is_suspended = False  # if its offload was in flight, it is not complete
            session.note, whose, turn = why, f"session {session.session_id}", session.turn
        text = (
            f"{whose} released {num_blocks:,} blocks: {why}; its next request recomputes what is no longer "
            "cached"
        )
        kind = EventKind.SESSION_RELEASED
        self._context.events.record(Event(self._context.now, kind, text, turn, hold.tenant, num_blocks))
