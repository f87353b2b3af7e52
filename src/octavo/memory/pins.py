"""Pins: holders with a name, a budget and an expiry. A pinned prefix stays in the pool whatever else runs.

    filling     its prompt is being computed by an ordinary request; the pin holds nothing, its budget is kept
    holding     it lists the prompt's full blocks
    let go      warm, and all of its blocks are stored below under names that the tier keeps: it lists none

Only full blocks can be shared, so only full blocks are pinned. All pins together stay within `budget`
blocks, and pins plus the largest request that was taken fit the pool: so no set of pins, orphans or cancels
wedges the engine. A pin whose request fails or is cancelled is gone with it.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass, field

from octavo.memory.memory import Memory
from octavo.memory.quota import SHARED
from octavo.memory.table import BlockTable
from octavo.types import Request

IDLE = "session:"  # before a session's id: the pin that keeps its blocks between two turns


class Strength(enum.StrEnum):
    """How fast a pin holds."""

    HOT = "hot"  # stays in the pool
    WARM = "warm"  # moves to the tier below, where nothing but damage drops it; without a tier it is hot


@dataclass(slots=True, eq=False)
class Pin:
    """One pin. `names` are those of the full blocks that it keeps; `table` is None while it is filling."""

    tenant: str
    name: str
    strength: Strength
    names: list[bytes]
    filler: int  # id of the request that computes its prompt
    num_tokens: int  # of the pinned prompt, the tail that fills no block included
    created: float
    expires: float
    table: BlockTable | None = None
    is_kept: bool = False  # the tier keeps its names; see scheduler.holding
    missing: set[bytes] = field(default_factory=set)  # while it is kept: names that are not below yet

    @property
    def key(self) -> tuple[str, str]:
        """Names are a tenant's own."""
        return self.tenant, self.name

    @property
    def is_of_session(self) -> bool:
        """True for those that no client has named."""
        return ":" in self.name

    @property
    def gives_way(self) -> bool:
        """True for what is kept of an idle session: nobody asked for it."""
        return self.name.startswith(IDLE)

    @property
    def num_blocks(self) -> int:
        """What it keeps, in the pool or below."""
        return len(self.names)

    @property
    def num_held(self) -> int:
        """What it may hold in the pool: its part of the budget, from the beginning."""
        return len(self.names) if self.table is None else len(self.table)


class Pins:
    """All pins by tenant and name. Only the scheduler calls it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._pins: dict[tuple[str, str], Pin] = {}
        self.num_blocks = 0  # that all pins may hold in the pool, filling ones included
        self.num_yielding = 0  # of these, those of pins that give way
        self._by_tenant: Counter[str] = Counter()  # of all of them
        self._pins_of: Counter[str] = Counter()  # how many
        self._yielding: Counter[str] = Counter()  # of those that give way
        self.shared_names: Counter[bytes] = Counter()  # that the operator shares with all tenants, held now
        self._soonest = math.inf  # no pin expires before

    def __len__(self) -> int:
        return len(self._pins)

    def all(self) -> list[Pin]:
        """Every pin, oldest first."""
        return list(self._pins.values())

    def blocks_of(self, tenant: str, *, firm: bool = False) -> int:
        """Blocks that all its pins may hold in the pool, filling ones included; `firm`: but for those that
        give way."""
        return self._by_tenant.get(tenant, 0) - (self._yielding.get(tenant, 0) if firm else 0)

    def num_of(self, tenant: str) -> int:
        """How many pins it has, those of its sessions included."""
        return self._pins_of.get(tenant, 0)

    def find(self, tenant: str, name: str) -> Pin | None:
        """The tenant's pin of that name."""
        return self._pins.get((tenant, name))

    def filled_by(self, request: Request) -> Pin | None:
        """The pin whose prompt this very request computes, while it does."""
        pin = self._pins.get((request.tenant, request.fills_pin))
        return pin if pin is not None and pin.table is None and pin.filler == request.request_id else None

    def add(self, pin: Pin) -> None:
        """Keep the pin's budget. The caller has checked that it fits and that the name is new."""
        assert pin.key not in self._pins
        self._pins[pin.key] = pin
        self._pins_of[pin.tenant] += 1
        self._soonest = min(self._soonest, pin.expires)
        self._count(pin, pin.num_held)

    def fill(self, pin: Pin) -> None:
        """Become one more holder of the pin's blocks; all of them are published now."""
        self.hold(pin, pin.names)

    def hold(self, pin: Pin, names: list[bytes]) -> None:
        """Become one more holder of those of the pin's blocks that are named; all of them are published."""
        assert pin.table is None
        self._count(pin, -pin.num_held)
        pin.table = self._memory.open(pin.tenant)
        adopted = self._memory.adopt(pin.table, names)
        assert adopted == len(names), "a pin was filled before its blocks were published"
        self._count(pin, pin.num_held)
        if pin.tenant == SHARED:
            self.shared_names.update(pin.names)
            for block in pin.table.blocks:
                self._memory.pool.hand_over(block, self._memory.quotas.shared)

    def let_go(self, pin: Pin) -> None:
        """Hold nothing in the pool any more: all of it is below."""
        assert pin.table is not None
        self._count(pin, -pin.num_held)
        self._memory.close(pin.table)
        pin.table = self._memory.open(pin.tenant)

    def remove(self, pin: Pin) -> None:
        """Hold nothing any more. The blocks stay findable until they are taken."""
        del self._pins[pin.key]
        self._pins_of[pin.tenant] -= 1
        self._count(pin, -pin.num_held)
        if pin.table is None:
            return
        if pin.tenant == SHARED:
            self.shared_names = +(self.shared_names - Counter(pin.names))
            self._cease_to_share(pin.table)
        self._memory.close(pin.table)
        pin.table = None

    def renew(self, pin: Pin, expires: float) -> None:
        """Let it expire then."""
        pin.expires = expires
        self._soonest = min(self._soonest, expires)

    def expired(self, now: float) -> list[Pin]:
        """Pins whose time has passed. O(pins) where there may be one, else O(1)."""
        if now < self._soonest:
            return []
        self._soonest = min((pin.expires for pin in self._pins.values()), default=math.inf)
        return [pin for pin in self._pins.values() if pin.expires <= now]

    def next_time(self) -> float | None:
        """When the next one that is held expires. O(pins)."""
        times = (pin.expires for pin in self._pins.values() if pin.table is not None)
        return min((at for at in times if at < math.inf), default=None)

    def _cease_to_share(self, table: BlockTable) -> None:
        """Whoever holds these blocks on, the tenant `shared` is charged no more for those that no other pin
        shares."""
        pool = self._memory.pool
        for block in table.blocks:
            if pool.name_of[block] not in self.shared_names:
                pool.hand_over(block, self._memory.quotas.once_shared)

    def _count(self, pin: Pin, change: int) -> None:
        self.num_blocks += change
        self._by_tenant[pin.tenant] += change
        if pin.gives_way:
            self.num_yielding += change
            self._yielding[pin.tenant] += change
