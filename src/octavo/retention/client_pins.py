"""Pins as the scheduler sees them: budget at admission, filling by an ordinary request, expiry, release.

    open -> (a request with `fills_pin` computes the prompt) -> fill -> renew ... -> release or expiry
       \\-> that request fails, is cancelled or times out: the pin goes with it

Two inequalities, checked here and wherever a request is taken, keep every set of pins from wedging the
engine:

    blocks of all pins                                        <= budget (setting pin_memory)
    blocks of all pins + worst case of the largest request    <= pool

What is kept of idle sessions counts in both, and gives way to whatever was asked for (soft_holds.py).

Where there are tenants, half of the budget and half of `PINS_MAX` are for those that come first; of the other
half each tenant, and `shared`, has an equal share. With guarantees, a tenant's pins use their memory alone.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass

from octavo.errors import InvalidRequest, PinRefused, UnknownPin, require_range
from octavo.memory.block_namer import BlockNamer
from octavo.memory.names import NameChain
from octavo.memory.quota import SHARED, share_of
from octavo.retention.pins import Pin, Pins, Strength
from octavo.retention.room import Room
from octavo.retention.session_table import SessionTable
from octavo.retention.soft_holds import SoftHolds
from octavo.retention.warm_pins import WarmPins
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.step.timers import Due, Timers
from octavo.types import Request

PINS_MAX = 1024
BEYOND_MAXIMUM = "its tenant holds as many blocks as it may; try again when some of its requests have ended"
PREEMPTED_LATE = "its request was preempted at the last moment; pin it again"
DELETED = "the pin was deleted while it was being filled; pin it again"
NOT_FILLED = {
    BEYOND_MAXIMUM,
    PREEMPTED_LATE,
    DELETED,
}  # what `fill` says: no fault of the request or the server
TTL_S_MAX = 30 * 86_400.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class PinRequest:
    """What a client wants kept: the full blocks of `tokens`, for `ttl_s` seconds."""

    name: str
    tokens: tuple[int, ...]
    ttl_s: float
    strength: Strength = Strength.HOT
    tenant: str = ""
    is_resumed_session: bool = False  # then `name` is the session's id

    def __post_init__(self) -> None:
        if not self.is_resumed_session and not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"name is {self.name[:80]!r}; allowed: 1 to 64 letters, digits, dots, dashes and underscores",
                param="name",
            )
        require_range("ttl", self.ttl_s, 1.0, TTL_S_MAX, hint="seconds")

    @property
    def pin_name(self) -> str:
        """The pin's: no client can choose one with a colon."""
        return f"resumed:{self.name}" if self.is_resumed_session else self.name


@dataclass(eq=False)
class ClientPins:
    """Acts on pins."""

    _context: Context
    _pins: Pins
    _sessions: SessionTable
    _namer: BlockNamer
    _room: Room
    _warm_pins: WarmPins
    _soft_holds: SoftHolds
    _timers: Timers

    def open(self, order: PinRequest, filler: int, now: float) -> Pin:
        """Keep the budget of a new pin, which the request of id `filler` must then fill. What is kept of idle
        sessions may stand in its way until that is taken (`taken`), or the pin given up.

        Raises InvalidRequest, or PinRefused, which says how many blocks are missing and who holds them.
        """
        size = self._context.ledger.block_size
        if not self._context.config.prefix_caching:
            raise PinRefused("pins need prefix caching, which is off (setting prefix_caching)")
        if order.is_resumed_session:
            self._sessions.find(order.tenant, order.name).check_still()
        if self.of_order(order) is not None:
            raise InvalidRequest(
                f"there is a pin named {order.name!r} already; renew it, or delete it first", param="name"
            )
        session_id = order.name if order.is_resumed_session else ""
        said = self._sessions.names_of(order.tenant, session_id)
        chain = self._namer.chain(order.tenant, array("I", order.tokens), *said)
        if not chain.names:
            raise InvalidRequest(
                f"the prompt has {len(order.tokens)} tokens; allowed: at least {size}, because only full "
                "blocks of that many tokens can be pinned",
                param="prompt",
            )
        self._check_budget(len(chain.names), order)
        pin = Pin(
            order.tenant,
            order.pin_name,
            order.strength,
            chain.names,
            filler,
            len(order.tokens),
            now,
            now + order.ttl_s,
            session_id,
        )
        self._pins.add(pin)
        if session_id:
            self._sessions.owner_of(pin).resumed = pin
        return pin

    def of_order(self, order: PinRequest) -> Pin | None:
        """The pin that was ordered so, or another of its name."""
        if not order.is_resumed_session:
            return self._pins.find(order.tenant, order.name)
        session = self._sessions.get(order.name)
        return None if session is None or session.tenant != order.tenant else session.resumed

    def on_queued(self, request: Request) -> None:
        """The request that fills a pin is in the queue: idle sessions give way to the pin."""
        pin = self._pins.filled_by(request)
        if pin is not None:
            self._soft_holds.reclaim_for_pin(pin)

    def on_last_token(self, request: Request) -> str:
        """The pin's prompt is computed: fill it. Returns why it could not be filled, or ""."""
        pin = self._pins.filled_by(request)
        if pin is None:
            return DELETED
        if self._context.ledger.find_prefix(pin.names) < pin.num_blocks:
            self._warm_pins.remove(pin)
            return PREEMPTED_LATE
        if not self._room.may_hold(pin.tenant, pin.names):  # preempted late, and others took it
            self._warm_pins.remove(pin)
            return BEYOND_MAXIMUM
        self._pins.fill(pin)
        self._timers.set(Due.PIN, (pin.filler, ""), pin.expires)
        self._record(EventKind.PINNED, pin, f"pin {pin.name} holds {pin.num_blocks:,} blocks")
        self._warm_pins.begin(pin)
        if pin.session_id:
            self._record_resumed(pin)
        return ""

    def on_end(self, request: Request, num_computed: int, chain: NameChain, *, is_well: bool) -> None:
        """A request that ended otherwise has filled nothing."""
        if not is_well:
            self.give_up(request)

    def give_up(self, request: Request) -> None:
        """The request that was to fill the pin ended otherwise: no other ever would."""
        pin = self._pins.filled_by(request)
        if pin is not None:
            self._warm_pins.remove(pin)

    def renew(self, tenant: str, name: str, ttl_s: float, now: float) -> Pin:
        """Let it expire `ttl_s` from now. Raises UnknownPin or InvalidRequest."""
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        pin = self.find(tenant, name)
        pin.expires = now + ttl_s
        if pin.table is not None:
            self._timers.set(Due.PIN, (pin.filler, ""), pin.expires)
        return pin

    def release(self, tenant: str, name: str) -> Pin:
        """Hold nothing any more; the blocks stay findable until they are taken. Raises UnknownPin."""
        pin = self.find(tenant, name)
        self._warm_pins.remove(pin)
        self._record(EventKind.UNPINNED, pin, f"pin {pin.name} was deleted")
        return pin

    def drop(self, order: PinRequest, filler: int) -> None:
        """The caller that asked for this pin wants it no more; there may be none, or another's."""
        pin = self.of_order(order)
        if pin is not None and pin.filler == filler:
            self._warm_pins.remove(pin)
            self._record(EventKind.UNPINNED, pin, f"pin {pin.name} was deleted")

    def expire(self, now: float) -> None:
        """Let go of pins whose time has passed. One that is being filled goes with its request."""
        for pin in self._pins.all():
            if pin.table is not None and pin.expires <= now:
                self._warm_pins.remove(pin)
                self._record(EventKind.PIN_EXPIRED, pin, f"pin {pin.name} expired")

    def drop_nameless(self) -> None:
        """Names were taken away because what they stood for was poisoned: pins on them keep nothing."""
        for pin in self._pins.all():
            if pin.table is not None and not self._warm_pins.is_whole(pin):
                self._warm_pins.remove(pin)
                self._record(EventKind.UNPINNED, pin, f"pin {pin.name} held blocks that were found poisoned")

    def _record_resumed(self, pin: Pin) -> None:
        """A session's blocks are in the pool, by a hot pin, until its next turn ends."""
        session = self._sessions.owner_of(pin)
        session.is_suspended = False
        text = f"session {session.session_id} was resumed"
        kind = EventKind.SESSION_RESUMED
        self._context.events.record(Event(self._context.now, kind, text, session.turn, session.tenant))

    def _check_budget(self, num_blocks: int, order: PinRequest) -> None:
        if not order.is_resumed_session:
            self._check_number(order.tenant)
        reason = self._room.shortage(num_blocks, order.tenant, f"pin {order.name}", hard_only=True)
        reason = reason or self._beyond_share(num_blocks, order)
        if reason:
            event = Event(self._context.now, EventKind.REFUSED, reason, None, order.tenant, num_blocks)
            self._context.events.record(event)
            raise PinRefused(reason)

    def _check_number(self, tenant: str) -> None:
        """Raise PinRefused where there are as many pins as all may have, or the tenant has its share."""
        named, share = self._pins.named(), self._share_of(PINS_MAX)
        own = sum(pin.tenant == tenant for pin in named)
        if len(named) < (PINS_MAX // 2 if share else PINS_MAX) or own < share:
            return
        if not share:
            raise PinRefused(f"there are {len(named):,} pins; allowed: {PINS_MAX:,}")
        raise PinRefused(
            f"tenant {tenant} has {own:,} pins, and half of all that may be are taken; allowed then: "
            f"{share:,}, its share of {PINS_MAX:,}; delete some, or let them expire"
        )

    def _beyond_share(self, num_blocks: int, order: PinRequest) -> str:
        """Why its tenant may not pin so many blocks more where others may want some, or ""."""
        pins, bound = self._pins, self._context.config.pin_blocks
        share, kept = self._share_of(bound), pins.blocks_of(order.tenant, hard_only=True)
        is_common = pins.num_blocks - pins.num_soft + num_blocks <= bound // 2
        is_guaranteed = self._context.ledger.quotas.has_guarantees and order.tenant != SHARED
        if not share or is_common or kept + num_blocks <= share or is_guaranteed:
            return ""
        return (
            f"pin {order.name} needs {num_blocks:,} blocks, more than is left of the half of pins' memory "
            f"that is for all; those of tenant {order.tenant} keep {kept:,}; allowed then: {share:,}, its "
            f"share of {bound:,} (setting pin_memory, or guaranteed in the tenants file)"
        )

    def _share_of(self, bound: int) -> int:
        """A tenant's, and that of what is shared; 0 without tenants."""
        return share_of(bound, self._context.ledger.quotas.num_tenants + 1)

    def find(self, tenant: str, name: str) -> Pin:
        """The tenant's pin. Raises UnknownPin, also for a session's: clients do not name those."""
        pin = self._pins.find(tenant, name)
        if pin is None:
            raise UnknownPin(f"there is no pin named {name[:80]!r}", param="name")
        return pin

    def _record(self, kind: EventKind, pin: Pin, text: str) -> None:
        self._context.events.record(Event(self._context.now, kind, text, None, pin.tenant, pin.num_blocks))
