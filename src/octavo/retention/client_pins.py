"""The pins of clients: budget at admission, filling by an ordinary request, expiry, release.

    open -> (a request with `fills_pin` computes the prompt) -> fill -> renew ... -> release or expiry
       \\-> that request fails, is cancelled or times out: the pin goes with it

Two inequalities, checked here and wherever a request is accepted, keep pins from blocking the engine:

    blocks of all pins                                        <= budget (setting pin_memory)
    blocks of all pins + worst case of the largest request    <= pool

Blocks kept for idle sessions count in both, and are released for what a client requested (soft_holds.py).

With tenants, half of the budget and half of `PINS_MAX` are first come, first served. Each tenant, and
`shared`, has an equal share of the other half. With guarantees, a tenant's pins use only the tenant's own
memory.
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
from octavo.step.timers import TimerKind, Timers
from octavo.types import Request

PINS_MAX = 1024
BEYOND_MAXIMUM = "its tenant holds as many blocks as it may; try again when some of its requests have ended"
PREEMPTED_LATE = "its request was preempted at the last moment; pin it again"
DELETED = "the pin was deleted while it was being filled; pin it again"
NOT_FILLED = {
    BEYOND_MAXIMUM,
    PREEMPTED_LATE,
    DELETED,
}  # refusals of `fill`: neither the request nor the server is at fault
TTL_S_MAX = 30 * 86_400.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class PinRequest:
    """A client's request to keep the full blocks of `tokens` for `ttl_s` seconds."""

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
        """The name of the pin; the colon keeps it apart from names that clients choose."""
        return f"resumed:{self.name}" if self.is_resumed_session else self.name


@dataclass(eq=False)
class ClientPins:
    """Opens, fills, renews and releases the pins of clients."""

    _context: Context
    _pins: Pins
    _sessions: SessionTable
    _namer: BlockNamer
    _room: Room
    _warm_pins: WarmPins
    _soft_holds: SoftHolds
    _timers: Timers

    def open(self, wanted: PinRequest, filler: int, now: float) -> Pin:
        """Reserve the budget of a new pin; the request of id `filler` must then fill it. Blocks of idle
        sessions may exceed the budget until the request is queued (`on_queued`) or the pin is given up.

        Raises InvalidRequest, or PinRefused, which names the missing blocks and their holders.
        """
        size = self._context.ledger.block_size
        if not self._context.config.prefix_caching:
            raise PinRefused("pins need prefix caching, which is off (setting prefix_caching)")
        if wanted.is_resumed_session:
            self._sessions.find(wanted.tenant, wanted.name).check_not_busy()
        if self.find_requested(wanted) is not None:
            raise InvalidRequest(
                f"there is a pin named {wanted.name!r} already; renew it, or delete it first",
                param="name",
            )
        session_id = wanted.name if wanted.is_resumed_session else ""
        said = self._sessions.names_of(wanted.tenant, session_id)
        chain = self._namer.chain(wanted.tenant, array("I", wanted.tokens), *said)
        if not chain.names:
            raise InvalidRequest(
                f"the prompt has {len(wanted.tokens)} tokens; allowed: at least {size}, because only full "
                "blocks of that many tokens can be pinned",
                param="prompt",
            )
        self._check_budget(len(chain.names), wanted)
        pin = Pin(
            wanted.tenant,
            wanted.pin_name,
            wanted.strength,
            chain.names,
            filler,
            len(wanted.tokens),
            now,
            now + wanted.ttl_s,
            session_id,
        )
        self._pins.add(pin)
        if session_id:
            self._sessions.owner_of(pin).resumed = pin
        return pin

    def find_requested(self, wanted: PinRequest) -> Pin | None:
        """The pin made from this `PinRequest`, or another pin of its name."""
        if not wanted.is_resumed_session:
            return self._pins.find(wanted.tenant, wanted.name)
        session = self._sessions.get(wanted.name)
        return None if session is None or session.tenant != wanted.tenant else session.resumed

    def on_queued(self, request: Request) -> None:
        """The request that fills a pin is queued: idle sessions release blocks for the pin."""
        pin = self._pins.filled_by(request)
        if pin is not None:
            self._soft_holds.reclaim_for_pin(pin)

    def on_last_token(self, request: Request) -> str:
        """The pin's prompt is computed: fill the pin. Returns why that failed, or ""."""
        pin = self._pins.filled_by(request)
        if pin is None:
            return DELETED
        if self._context.ledger.find_prefix(pin.names) < pin.num_blocks:
            self._warm_pins.remove(pin)
            return PREEMPTED_LATE
        if not self._room.may_hold(pin.tenant, pin.names):  # preempted late: others took the blocks
            self._warm_pins.remove(pin)
            return BEYOND_MAXIMUM
        self._pins.fill(pin)
        self._timers.set(TimerKind.PIN, (pin.filler, ""), pin.expires)
        self._record(EventKind.PINNED, pin, f"pin {pin.name} holds {pin.num_blocks:,} blocks")
        self._warm_pins.begin(pin)
        if pin.session_id:
            self._record_resumed(pin)
        return ""

    def on_end(self, request: Request, num_computed: int, chain: NameChain, *, is_well: bool) -> None:
        """A request that failed or was cancelled fills no pin."""
        if not is_well:
            self.give_up(request)

    def give_up(self, request: Request) -> None:
        """Remove the pin of a request that ended without filling it: no other request would."""
        pin = self._pins.filled_by(request)
        if pin is not None:
            self._warm_pins.remove(pin)

    def renew(self, tenant: str, name: str, ttl_s: float, now: float) -> Pin:
        """Make it expire `ttl_s` from now. Raises UnknownPin or InvalidRequest."""
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        pin = self.find(tenant, name)
        pin.expires = now + ttl_s
        if pin.table is not None:
            self._timers.set(TimerKind.PIN, (pin.filler, ""), pin.expires)
        return pin

    def release(self, tenant: str, name: str) -> Pin:
        """Release the pin; its blocks stay findable until they are taken. Raises UnknownPin."""
        pin = self.find(tenant, name)
        self._warm_pins.remove(pin)
        self._record(EventKind.UNPINNED, pin, f"pin {pin.name} was deleted")
        return pin

    def drop(self, wanted: PinRequest, filler: int) -> None:
        """Remove the pin for its caller, if it exists and is not another request's."""
        pin = self.find_requested(wanted)
        if pin is not None and pin.filler == filler:
            self._warm_pins.remove(pin)
            self._record(EventKind.UNPINNED, pin, f"pin {pin.name} was deleted")

    def expire(self, now: float) -> None:
        """Release pins whose time has passed. A pin that is being filled ends with its request."""
        for pin in self._pins.all():
            if pin.table is not None and pin.expires <= now:
                self._warm_pins.remove(pin)
                self._record(EventKind.PIN_EXPIRED, pin, f"pin {pin.name} expired")

    def drop_unnamed(self) -> None:
        """Release pins whose names were removed because their blocks were poisoned."""
        for pin in self._pins.all():
            if pin.table is not None and not self._warm_pins.is_whole(pin):
                self._warm_pins.remove(pin)
                self._record(EventKind.UNPINNED, pin, f"pin {pin.name} held blocks that were found poisoned")

    def _record_resumed(self, pin: Pin) -> None:
        """A hot pin holds a session's blocks in the pool until its next turn ends."""
        session = self._sessions.owner_of(pin)
        session.is_suspended = False
        text = f"session {session.session_id} was resumed"
        kind = EventKind.SESSION_RESUMED
        self._context.events.record(Event(self._context.now, kind, text, session.turn, session.tenant))

    def _check_budget(self, num_blocks: int, wanted: PinRequest) -> None:
        if not wanted.is_resumed_session:
            self._check_number(wanted.tenant)
        reason = self._room.shortage(num_blocks, wanted.tenant, f"pin {wanted.name}", hard_only=True)
        reason = reason or self._beyond_share(num_blocks, wanted)
        if reason:
            event = Event(self._context.now, EventKind.REFUSED, reason, None, wanted.tenant, num_blocks)
            self._context.events.record(event)
            raise PinRefused(reason)

    def _check_number(self, tenant: str) -> None:
        """Raise PinRefused if the maximum number of pins, or the tenant's share of it, is reached."""
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

    def _beyond_share(self, num_blocks: int, wanted: PinRequest) -> str:
        """Why the tenant may not pin `num_blocks` more, given the shares of others, or ""."""
        pins, bound = self._pins, self._context.config.pin_blocks
        share, kept = self._share_of(bound), pins.blocks_of(wanted.tenant, hard_only=True)
        is_common = pins.num_blocks - pins.num_soft + num_blocks <= bound // 2
        is_guaranteed = self._context.ledger.quotas.has_guarantees and wanted.tenant != SHARED
        if not share or is_common or kept + num_blocks <= share or is_guaranteed:
            return ""
        return (
            f"pin {wanted.name} needs {num_blocks:,} blocks, more than is left of the half of pins' memory "
            f"that is for all; those of tenant {wanted.tenant} keep {kept:,}; allowed then: {share:,}, its "
            f"share of {bound:,} (setting pin_memory, or guaranteed in the tenants file)"
        )

    def _share_of(self, bound: int) -> int:
        """The share of a tenant, or of `shared`; 0 without tenants."""
        return share_of(bound, self._context.ledger.quotas.num_tenants + 1)

    def find(self, tenant: str, name: str) -> Pin:
        """The tenant's pin. Raises UnknownPin, also for a session's pin: clients do not name those."""
        pin = self._pins.find(tenant, name)
        if pin is None:
            raise UnknownPin(f"there is no pin named {name[:80]!r}", param="name")
        return pin

    def _record(self, kind: EventKind, pin: Pin, text: str) -> None:
        self._context.events.record(Event(self._context.now, kind, text, None, pin.tenant, pin.num_blocks))
