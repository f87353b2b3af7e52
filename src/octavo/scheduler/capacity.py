"""How much there is room for: the inequality that keeps every set of pins, tenants and requests advancing.

    for every request that runs, or was taken:
        what other tenants are guaranteed (or their pins, where these keep more)
        + the pins of its own tenant + its worst case                              <= pool

It must hold for *hard* pins and all that was taken, and for hard and soft pins (what is kept of idle
sessions) and all that runs. A tenant's own bounds are the same sum over what is its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.memory.pins import Pins
from octavo.scheduler.context import Context
from octavo.scheduler.limits import blocks_needed
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.session_table import SessionTable
from octavo.types import Request


@dataclass(frozen=True, slots=True)
class Missing:
    """Blocks by which pins would exceed each of their bounds; 0 or less: they do not."""

    own: int  # of their tenant: its maximum, its guarantee
    pool: int
    budget: int

    @property
    def most(self) -> int:
        return max(self.own, self.pool, self.budget)


class Capacity:
    """Answers, in blocks. Changes nothing."""

    def __init__(self, context: Context, pins: Pins, sessions: SessionTable, live: LiveSequences) -> None:
        self._context = context
        self._pins = pins
        self._sessions = sessions
        self._live = live

    def reserved(self, tenant: str, more: int = 0, *, firm: bool = False) -> int:
        """Blocks that others may borrow, but never count on; `more`: with as many more pinned; `firm`: but
        for pins that give way."""
        pinned = self._pins.blocks_of(tenant, firm=firm)
        return max(self._context.ledger.quotas.policy(tenant).guaranteed, pinned + more)

    def room(self, tenant: str, *, fills_pin: bool = False, own: int = 0, firm: bool = False) -> int:
        """Blocks that the largest request of this tenant may take, of which `own` count with the pins; one
        that fills a pin is bounded by the pins' budget, not by the tenant's maximum of a request. `firm`:
        once all pins that give way have done so."""
        room = self.room_in_pool(tenant, own=own, firm=firm)
        return min(room, self._bound_of_its_own(tenant, fills_pin=fills_pin, own=own, firm=firm))

    def told_room(self, tenant: str, *, fills_pin: bool = False, own: int = 0) -> int:
        """The same, once all pins that give way have done so, as the tenant may be told: others move it by no
        pin of theirs, so there may be less."""
        policies, pool = self._context.ledger.quotas.policies(), self._context.ledger.pool.num_blocks
        if not tenant:
            return self.room(tenant, fills_pin=fills_pin, own=own, firm=True)
        pinned = self._pins.blocks_of(tenant, firm=True) - own
        room = pool - sum(p.guaranteed for p in policies if p.name != tenant) - pinned
        return min(room, self._bound_of_its_own(tenant, fills_pin=fills_pin, own=own, firm=True))

    def _bound_of_its_own(self, tenant: str, *, fills_pin: bool, own: int, firm: bool) -> int:
        room = self.room_of_its_own(tenant, own=own, firm=firm)
        request_maximum = self._context.ledger.quotas.policy(tenant).request_maximum
        return room if request_maximum is None or fills_pin else min(room, request_maximum)

    def room_in_pool(self, tenant: str, *, own: int = 0, firm: bool = False) -> int:
        """The same, as far as the pool goes."""
        pinned = self._pins.blocks_of(tenant, firm=firm) - own
        others = sum(
            self.reserved(p.name, firm=firm)
            for p in self._context.ledger.quotas.policies()
            if p.name != tenant
        )
        return self._context.ledger.pool.num_blocks - others - pinned

    def room_of_its_own(self, tenant: str, *, own: int = 0, firm: bool = False) -> int:
        """The same, as far as its maximum goes."""
        maximum = self._context.ledger.quotas.policy(tenant).maximum
        bound = self._context.ledger.pool.num_blocks if maximum is None else maximum
        return bound - (self._pins.blocks_of(tenant, firm=firm) - own)

    def room_with_own_pin(self, request: Request, *, firm: bool = False) -> int:
        """The same for this very request, which was taken: one that fills a pin uses what is kept for it, a
        session's turn what the session holds."""
        own = self.own_blocks(request, firm=firm)
        return self.room(request.tenant, fills_pin=bool(request.fills_pin), own=own, firm=firm)

    def floor(self, pinned_for: str = "", more: int = 0, *, firm: bool) -> int:
        """Blocks that the pool needs at least if as many `more` were pinned for that tenant. `firm`: for
        firm pins and all that was taken; else for all pins and all that runs."""
        self._context.ledger.quotas.owner(pinned_for)  # one that was never seen before is among them
        extra = {pinned_for: more}
        reserved = {
            p.name: self.reserved(p.name, extra.get(p.name, 0), firm=firm)
            for p in self._context.ledger.quotas.policies()
        }
        total = sum(reserved.values())
        floor = total + 1
        for request in self._counted(firm=firm):
            tenant = request.tenant
            pinned = self._pins.blocks_of(tenant, firm=firm) + extra.get(tenant, 0)
            floor = max(floor, total - reserved[tenant] + pinned + self._needed(request, firm=firm))
        return floor

    def over_maximum(self, tenant: str, more: int, *, firm: bool) -> int:
        """Blocks by which the tenant's pins and its largest request would exceed its maximum with as many
        `more` pinned; 0 or less: they would not."""
        maximum = self._context.ledger.quotas.policy(tenant).maximum
        if maximum is None:
            return 0
        own = (self._needed(r, firm=firm) for r in self._counted(firm=firm) if r.tenant == tenant)
        return self._pins.blocks_of(tenant, firm=firm) + more + max(own, default=1) - maximum

    def _counted(self, *, firm: bool) -> list[Request]:
        """The requests that must have room beside firm pins, or beside all."""
        return self._live.requests() if firm else self._live.running_requests()

    def _needed(self, request: Request, *, firm: bool) -> int:
        """Its worst case, without what counts with the pins and is its own."""
        needed = blocks_needed(request, self._context.ledger.block_size)
        return needed - self.own_blocks(request, firm=firm)

    def may_hold(self, tenant: str, names: Many[bytes]) -> bool:
        """Whether its maximum lets the tenant hold these published names too."""
        memory, owner = self._context.ledger, self._context.ledger.quotas.owner(tenant)
        pool = memory.pool
        blocks = [pool.find(name) for name in names]
        if owner == self._context.ledger.quotas.shared:  # those that no other pin shares become its own
            new = sum(b is not None and pool.owner[b] != owner for b in blocks)
            return new <= self._context.ledger.quotas.room(owner)
        new = sum(
            b is not None and pool.owner[b] == owner and (pool.holders[b] == 0 or b in pool.uncharged)
            for b in blocks
        )
        return new <= self._context.ledger.quotas.room(owner)

    def missing(self, tenant: str, more: int = 0, *, firm: bool = False) -> Missing:
        """What as many `more` blocks pinned for that tenant would lack. O(tenants and requests)."""
        pins = self._pins
        own = self.over_maximum(tenant, more, firm=firm)
        if self._context.ledger.quotas.has_guarantees:  # pins use only what is their tenant's own
            guaranteed = self._context.ledger.quotas.policy(tenant).guaranteed
            own = max(own, pins.blocks_of(tenant, firm=firm) + more - guaranteed)
        kept = pins.num_blocks - (pins.num_yielding if firm else 0)
        return Missing(
            own,
            self.floor(tenant, more, firm=firm) - self._context.ledger.pool.num_blocks,
            kept + more - self._context.config.pin_blocks,
        )

    def shortage(
        self, num_blocks: int, tenant: str, what: str, given_up: int = 0, *, firm: bool = False
    ) -> str:
        """Why `what` may not hold `num_blocks` in place of `given_up` ones, or "". `firm`: once all pins that
        give way have done so."""
        pins = self._pins
        missing = self.missing(tenant, num_blocks - given_up, firm=firm).most
        if missing <= 0:
            return ""
        budget, kept = self._context.config.pin_blocks, pins.num_blocks - given_up
        kept -= pins.num_yielding if firm else 0
        largest = max(
            (blocks_needed(r, self._context.ledger.block_size) for r in self._live.requests()), default=1
        )
        pool = self._context.ledger.pool.num_blocks
        holders = [p for p in pins.all() if p.tenant == tenant and not (firm and p.gives_way)]
        holders.sort(key=lambda pin: -pin.num_held)
        who = ", ".join(f"{pin.name} {pin.num_held:,}" for pin in holders[:5])
        if tenant:  # no number that others move
            return (
                f"{what} needs {num_blocks:,} blocks, more than are left to pins now; those of tenant "
                f"{tenant} keep {pins.blocks_of(tenant, firm=firm) - given_up:,}, and it is guaranteed "
                f"{self._context.ledger.quotas.policy(tenant).guaranteed:,}"
                + (f"; held by pins {who}" if who else "")
            )
        return (
            f"{what} needs {num_blocks:,} blocks and {missing:,} are missing: pins keep {kept:,} "
            f"of {budget:,} that they may (setting pin_memory), and the largest request needs {largest:,} of "
            f"the pool's {pool:,}" + (f"; held by pins {who}" if who else "")
        )

    def own_blocks(self, request: Request, *, firm: bool = False) -> int:
        """Blocks that count with the pins and are an unfinished request's own: those that it fills, or that
        its session holds for it. `firm`: only of pins that do not give way."""
        own_pin = self._pins.filled_by(request)
        filled = own_pin.num_blocks if own_pin is not None else 0
        return self._of_turn(request, firm=firm) + filled

    def blocks_of_turn(self, request: Request, names: Many[bytes], *, firm: bool = False) -> int:
        """Blocks of the pins' budget that this turn, whose tokens have these names, finds and shares: it
        needs no others for them. `firm`: only of pins that do not give way. O(blocks)."""
        session = self._sessions.get(request.session)
        if session is None or request.params.prompt_logprobs is not None:
            return 0
        num_own, pool = 0, self._context.ledger.pool
        for pin in self._sessions.pins_of(session)[: 1 if firm else 2]:
            held = set(pin.table.blocks) if pin is not None and pin.table is not None else set()
            for name in names[: self.num_hits_max(request)]:
                if pool.find(name) not in held:
                    break
                num_own += 1
        return num_own

    def _of_turn(self, request: Request, *, firm: bool = False) -> int:
        """The same for a turn that was taken."""
        session = self._sessions.turn_of(request)
        return 0 if session is None else self.blocks_of_turn(request, session.shared, firm=firm)

    def num_hits_max(self, request: Request) -> int:
        """Blocks of its prompt that can be hits: never the last token's."""
        return (len(request.prompt) - 1) // self._context.ledger.block_size
