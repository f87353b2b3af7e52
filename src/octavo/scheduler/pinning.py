"""Pins as the scheduler sees them: budget at admission, filling by an ordinary request, expiry, release.

    open -> (a request with `fills_pin` computes the prompt) -> fill -> renew ... -> release or expiry
       \\-> that request fails, is cancelled or times out: the pin goes with it

Two inequalities, checked here and wherever a request is taken, keep every set of pins from wedging the
engine:

    blocks of all pins                                        <= budget (setting pin_memory)
    blocks of all pins + worst case of the largest request    <= pool

What is kept of idle sessions counts in both, and gives way to whatever was asked for (giving_way.py).
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import InvalidRequest, PinRefused, UnknownPin, require_range
from octavo.memory.pins import Pin, Strength
from octavo.scheduler.events import Event, EventKind
from octavo.scheduler.limits import blocks_needed
from octavo.types import Request

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler

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
class PinOrder:
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
        return resumed_name(self.name) if self.is_resumed_session else self.name


@dataclass(frozen=True, slots=True)
class Missing:
    """Blocks by which pins would exceed each of their bounds; 0 or less: they do not."""

    own: int  # of their tenant: its maximum, its guarantee
    pool: int
    budget: int

    @property
    def most(self) -> int:
        return max(self.own, self.pool, self.budget)


def resumed_name(session_id: str) -> str:
    """The hot pin that a resumed session holds its blocks with."""
    return f"resumed:{session_id}"


def session_of(pin_name: str) -> str:
    """Whose blocks a resumed session's pin holds; "" for one that clients have named."""
    return pin_name.partition(":")[2]


class Pinning:
    """Acts on the scheduler's pins; called on its thread, through it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pins = scheduler.pins

    def open(self, order: PinOrder, filler: int, now: float) -> Pin:
        """Keep the budget of a new pin, which the request of id `filler` must then fill. What is kept of idle
        sessions may stand in its way until that is taken (`taken`), or the pin given up.

        Raises InvalidRequest, or PinRefused, which says how many blocks are missing and who holds them.
        """
        scheduler = self._scheduler
        size = scheduler.memory.block_size
        if not scheduler.config.prefix_caching:
            raise PinRefused("pins need prefix caching, which is off (setting prefix_caching)")
        if self._pins.find(order.tenant, order.pin_name) is not None:
            raise InvalidRequest(
                f"there is a pin named {order.name!r} already; renew it, or delete it first", param="name"
            )
        session_id = order.name if order.is_resumed_session else ""
        chain = scheduler.sessions.chain_of(order.tenant, session_id, array("I", order.tokens))
        if not chain.names:
            raise InvalidRequest(
                f"the prompt has {len(order.tokens)} tokens; allowed: at least {size}, because only full "
                "blocks of that many tokens can be pinned",
                param="prompt",
            )
        if order.is_resumed_session:
            scheduler.sessions.check_resume(scheduler.sessions.find(order.tenant, order.name))
        self._check_budget(len(chain.names), order)
        expires = now + order.ttl_s
        pin = Pin(
            order.tenant, order.pin_name, order.strength, chain.names, filler, len(order.tokens), now, expires
        )
        self._pins.add(pin)
        return pin

    def taken(self, request: Request) -> None:
        """The request that fills a pin is in the queue: idle sessions give way to the pin."""
        pin = self._pins.filled_by(request)
        if pin is not None:
            self._scheduler.giving_way.make_way_for_pin(pin)

    def fill(self, request: Request) -> str:
        """The request that computes the pin's prompt has just ended well. Returns why the pin could not be
        filled, or ""."""
        pin = self._pins.filled_by(request)
        if pin is None:
            return DELETED
        if self._scheduler.memory.find_prefix(pin.names) < pin.num_blocks:
            self._pins.remove(pin)
            return PREEMPTED_LATE
        if not self._scheduler.tenancy.may_hold(pin.tenant, pin.names):  # preempted late, and others took it
            self._pins.remove(pin)
            return BEYOND_MAXIMUM
        self._pins.fill(pin)
        self._note(EventKind.PINNED, pin, f"pin {pin.name} holds {pin.num_blocks:,} blocks")
        self._scheduler.holding.begin(pin)
        if pin.is_of_session:
            self._scheduler.sessions.note_resumed(pin)
        return ""

    def give_up(self, request: Request) -> None:
        """The request that was to fill the pin ended otherwise: nobody else would ever fill it."""
        pin = self._pins.filled_by(request)
        if pin is not None:
            self._pins.remove(pin)

    def renew(self, tenant: str, name: str, ttl_s: float, now: float) -> Pin:
        """Let it expire `ttl_s` from now. Raises UnknownPin or InvalidRequest."""
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        pin = self.find(tenant, name)
        self._pins.renew(pin, now + ttl_s)
        return pin

    def release(self, tenant: str, name: str) -> Pin:
        """Hold nothing any more; the blocks stay findable until they are taken. Raises UnknownPin."""
        pin = self.find(tenant, name)
        self.remove(pin)
        self._note(EventKind.UNPINNED, pin, f"pin {pin.name} was deleted")
        return pin

    def drop(self, order: PinOrder, filler: int) -> None:
        """Whoever asked for this pin wants it no more; there may be none, or another's."""
        pin = self._pins.find(order.tenant, order.pin_name)
        if pin is not None and pin.filler == filler:
            self.remove(pin)
            self._note(EventKind.UNPINNED, pin, f"pin {pin.name} was deleted")

    def expire(self, now: float) -> None:
        """Let go of pins whose time has passed. One that is being filled goes with its request."""
        for pin in self._pins.expired(now):
            if pin.table is not None:
                self.remove(pin)
                self._note(EventKind.PIN_EXPIRED, pin, f"pin {pin.name} expired")

    def drop_nameless(self) -> None:
        """Names were taken away because what they stood for was poisoned: pins on them keep nothing."""
        for pin in self._pins.all():
            if pin.table is not None and not self._is_whole(pin):
                self.remove(pin)
                self._note(EventKind.UNPINNED, pin, f"pin {pin.name} held blocks that were found poisoned")

    def remove(self, pin: Pin) -> None:
        """Hold and keep nothing any more."""
        self._scheduler.holding.end(pin)
        self._pins.remove(pin)

    def _is_whole(self, pin: Pin) -> bool:
        """False when names that it holds or keeps have been taken away."""
        pool, tier = self._scheduler.memory.pool, self._scheduler.transfers.tier
        assert pin.table is not None
        if any(pool.name_of[block] is None for block in pin.table.blocks):
            return False
        return not pin.is_kept or tier is None or all(n in tier for n in pin.names if n not in pin.missing)

    def _check_budget(self, num_blocks: int, order: PinOrder) -> None:
        scheduler = self._scheduler
        num_pins = sum(not pin.is_of_session for pin in self._pins.all())
        if num_pins >= PINS_MAX and not order.is_resumed_session:
            raise PinRefused(f"there are {num_pins:,} pins; allowed: {PINS_MAX:,}")
        reason = self.shortage(num_blocks, order.tenant, f"pin {order.name}", firm=True)
        if reason:
            event = Event(scheduler.now, EventKind.REFUSED, reason, None, order.tenant, num_blocks)
            scheduler.events.note(event)
            raise PinRefused(reason)

    def shortage(
        self, num_blocks: int, tenant: str, what: str, given_up: int = 0, *, firm: bool = False
    ) -> str:
        """Why `what` may not hold `num_blocks` in place of `given_up` ones, or "". `firm`: once all pins that
        give way have done so."""
        scheduler, pins = self._scheduler, self._pins
        missing = self.missing(tenant, num_blocks - given_up, firm=firm).most
        if missing <= 0:
            return ""
        budget, kept = scheduler.config.pin_blocks, pins.num_blocks - given_up
        kept -= pins.num_yielding if firm else 0
        largest = max(
            (blocks_needed(r, scheduler.memory.block_size) for r in scheduler.requests()), default=1
        )
        pool, tenancy = scheduler.memory.pool.num_blocks, scheduler.tenancy
        holders = [p for p in pins.all() if p.tenant == tenant and not (firm and p.gives_way)]
        holders.sort(key=lambda pin: -pin.num_held)
        who = ", ".join(f"{pin.name} {pin.num_held:,}" for pin in holders[:5])
        if tenant:  # no number that others move
            return (
                f"{what} needs {num_blocks:,} blocks, more than are left to pins now; those of tenant "
                f"{tenant} keep {pins.blocks_of(tenant, firm=firm) - given_up:,}, and it is guaranteed "
                f"{tenancy.quotas.policy(tenant).guaranteed:,}" + (f"; held by pins {who}" if who else "")
            )
        return (
            f"{what} needs {num_blocks:,} blocks and {missing:,} are missing: pins keep {kept:,} "
            f"of {budget:,} that they may (setting pin_memory), and the largest request needs {largest:,} of "
            f"the pool's {pool:,}" + (f"; held by pins {who}" if who else "")
        )

    def missing(self, tenant: str, more: int = 0, *, firm: bool = False) -> Missing:
        """What as many `more` blocks pinned for that tenant would lack. O(tenants and requests)."""
        scheduler, pins = self._scheduler, self._pins
        tenancy = scheduler.tenancy
        own = tenancy.over_maximum(tenant, more, firm=firm)
        if tenancy.quotas.has_guarantees:  # pins use only what is their tenant's own
            guaranteed = tenancy.quotas.policy(tenant).guaranteed
            own = max(own, pins.blocks_of(tenant, firm=firm) + more - guaranteed)
        kept = pins.num_blocks - (pins.num_yielding if firm else 0)
        return Missing(
            own,
            tenancy.floor(tenant, more, firm=firm) - scheduler.memory.pool.num_blocks,
            kept + more - scheduler.config.pin_blocks,
        )

    def find(self, tenant: str, name: str) -> Pin:
        """The tenant's pin. Raises UnknownPin, also for a session's: clients do not name those."""
        pin = self._pins.find(tenant, name)
        if pin is None or pin.is_of_session:
            raise UnknownPin(f"there is no pin named {name[:80]!r}", param="name")
        return pin

    def _note(self, kind: EventKind, pin: Pin, text: str) -> None:
        self._scheduler.events.note(Event(self._scheduler.now, kind, text, None, pin.tenant, pin.num_blocks))
