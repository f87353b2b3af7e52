"""The room for a pin, a session or a request: the inequality of `memory.capacity` over all that is kept and
accepted now."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from octavo.memory.capacity import Capacity, blocks_needed
from octavo.memory.names import hits_max
from octavo.memory.quota import SHARED
from octavo.retention.pins import Pins
from octavo.retention.session_table import SessionTable
from octavo.step.context import Context
from octavo.types import Request


class AcceptedRequests(Protocol):
    """The accepted requests that have not ended."""

    def requests(self) -> list[Request]:
        """All accepted requests."""

    def running_requests(self) -> list[Request]:
        """Requests with a running sequence."""


@dataclass(frozen=True, slots=True)
class MissingBlocks:
    """Blocks by which pins would exceed each of their bounds; 0 or less: within it."""

    own: int  # the tenant's bounds: its maximum, its guarantee
    pool: int
    budget: int

    @property
    def most(self) -> int:
        return max(self.own, self.pool, self.budget)


class Room:
    """Computes room, in blocks. Changes nothing."""

    def __init__(self, context: Context, pins: Pins, sessions: SessionTable, taken: AcceptedRequests) -> None:
        self._context = context
        self._pins = pins
        self._sessions = sessions
        self._taken = taken
        self._computed_at = (-1, -1, -1)
        self._hard = self._everything = Capacity(0, {}, {})

    @property
    def hard(self) -> Capacity:
        """The pool's commitments without soft holds."""
        self._refresh()
        return self._hard

    @property
    def everything(self) -> Capacity:
        """The pool's commitments now, soft holds included."""
        self._refresh()
        return self._everything

    def _refresh(self) -> None:
        """Recompute both after a change of pins, bounds or the pool."""
        pins, ledger = self._pins, self._context.ledger
        at = (pins.version, ledger.quotas.version, ledger.pool.num_blocks)
        if at != self._computed_at:
            num_blocks, policies = ledger.pool.num_blocks, ledger.quotas.by_name()
            self._computed_at = at
            self._hard = Capacity(num_blocks, policies, pins.kept(hard_only=True))
            self._everything = Capacity(num_blocks, policies, pins.kept())

    @property
    def num_pinned(self) -> int:
        """Blocks that all pins may hold."""
        return self._pins.num_blocks

    # -- requests

    def room_with_hard_pins(self, request: Request) -> int:
        """The worst case that this accepted request may have. A request that fills a pin uses the blocks kept
        for the pin; a session's turn uses those of its session."""
        own = self.own_blocks(request, hard_only=True)
        return self.hard.room(request.tenant, fills_pin=bool(request.fills_pin), own=own)

    def room_with_all_pins(self, request: Request) -> int:
        """As `room_with_hard_pins`, with all soft holds."""
        own = self.own_blocks(request)
        return self.everything.room(request.tenant, fills_pin=bool(request.fills_pin), own=own)

    def own_blocks(self, request: Request, *, hard_only: bool = False) -> int:
        """Blocks that count for pins and belong to an unfinished request: the pin that it fills, or the
        blocks that its session holds for it."""
        own_pin = self._pins.filled_by(request)
        filled = own_pin.num_blocks if own_pin is not None else 0
        session = self._sessions.turn_of(request)
        if session is None:
            return filled
        return filled + self.blocks_of_turn(request, session.shared, hard_only=hard_only)

    def own_of_new(self, request: Request, names: Many[bytes], *, hard_only: bool) -> int:
        """As `own_blocks`, for a request that is not queued yet; `names`: its blocks. O(blocks)."""
        if request.session:
            return self.blocks_of_turn(request, names, hard_only=hard_only)
        return self.own_blocks(request, hard_only=hard_only)

    def blocks_of_turn(self, request: Request, names: Many[bytes], *, hard_only: bool = False) -> int:
        """Blocks of the pins' budget that this turn finds and shares; it needs no others for them. `names`:
        of its tokens. O(blocks)."""
        session = self._sessions.get(request.session)
        if session is None or request.params.prompt_logprobs is not None:
            return 0
        num_own, pool = 0, self._context.ledger.pool
        for pin in (session.resumed,) if hard_only else (session.resumed, session.hold):
            held = set(pin.holder.blocks) if pin is not None else set()
            for name in names[: self.num_hits_max(request)]:
                if pool.find(name) not in held:
                    break
                num_own += 1
        return num_own

    def num_hits_max(self, request: Request) -> int:
        """The most blocks of its prompt that can be hits."""
        return hits_max(len(request.prompt), self._context.ledger.block_size)

    # -- the pool

    def floor(self) -> int:
        """The smallest pool that can serve every accepted request."""
        hard = self.hard.floor(self._needs(hard_only=True))
        return max(hard, self.everything.floor(self._needs(hard_only=False)))

    def _needs(self, *, hard_only: bool) -> Iterator[tuple[str, int]]:
        """The requests that must fit with hard pins, or with all: the tenant, and the worst case without the
        blocks that count for pins and are its own."""
        for request in self._taken.requests() if hard_only else self._taken.running_requests():
            needed = blocks_needed(request, self._context.ledger.block_size)
            yield request.tenant, needed - self.own_blocks(request, hard_only=hard_only)

    # -- pins

    def may_hold(self, tenant: str, names: Many[bytes]) -> bool:
        """Whether the tenant's maximum allows it to hold these published names too."""
        ledger, owner = self._context.ledger, self._context.ledger.quotas.owner(tenant)
        found = [block for name in names if (block := ledger.pool.find(name)) is not None]
        return ledger.quotas.charge_of(owner, found) <= ledger.quotas.room(owner)

    def missing(self, tenant: str, more: int = 0, *, hard_only: bool = False) -> MissingBlocks:
        """Blocks missing if `more` were pinned for that tenant. O(tenants and requests)."""
        pins, policy = self._pins, self._context.ledger.quotas.policy(tenant)
        capacity = (self.hard if hard_only else self.everything).with_more(tenant, more)
        needs = list(self._needs(hard_only=hard_only))
        kept, own = capacity.kept[tenant], 0
        if policy.maximum is not None:
            largest = max((need for whose, need in needs if whose == tenant), default=1)
            own = kept + largest - policy.maximum
        # With guarantees, a tenant's pins use only the tenant's own blocks. Those of `shared` are the
        # operator's, and the pool's bound keeps them off the guarantees of others.
        if self._context.ledger.quotas.has_guarantees and tenant != SHARED:
            own = max(own, kept - policy.guaranteed)
        in_budget = pins.num_blocks - (pins.num_soft if hard_only else 0) + more
        return MissingBlocks(
            own, capacity.floor(needs) - capacity.num_blocks, in_budget - self._context.config.pin_blocks
        )

    def shortage(
        self, num_blocks: int, tenant: str, what: str, given_up: int = 0, *, hard_only: bool = False
    ) -> str:
        """Why `what` may not hold `num_blocks` in place of `given_up` ones, or "". `hard_only`: without soft
        holds."""
        pins = self._pins
        missing = self.missing(tenant, num_blocks - given_up, hard_only=hard_only).most
        if missing <= 0:
            return ""
        holders = [p for p in pins.all() if p.tenant == tenant and not (hard_only and p.is_soft)]
        holders.sort(key=lambda pin: -pin.num_held)
        who = ", ".join(f"{pin.name} {pin.num_held:,}" for pin in holders[:5])
        held_by = f"; held by pins {who}" if who else ""
        if tenant:  # no numbers that other tenants change
            kept = pins.blocks_of(tenant, hard_only=hard_only) - given_up
            return (
                f"{what} needs {num_blocks:,} blocks, more than are left to pins now; those of tenant "
                f"{tenant} keep {kept:,}, and it is guaranteed "
                f"{self._context.ledger.quotas.policy(tenant).guaranteed:,}{held_by}"
            )
        size, pool = self._context.ledger.block_size, self._context.ledger.pool.num_blocks
        kept = pins.num_blocks - given_up - (pins.num_soft if hard_only else 0)
        largest = max((blocks_needed(r, size) for r in self._taken.requests()), default=1)
        return (
            f"{what} needs {num_blocks:,} blocks and {missing:,} are missing: pins keep {kept:,} "
            f"of {self._context.config.pin_blocks:,} that they may (setting pin_memory), and the largest "
            f"request needs {largest:,} of the pool's {pool:,}{held_by}"
        )
