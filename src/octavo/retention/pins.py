"""Pins: holders with a name, a budget and an expiry. A pinned prefix stays in the pool whatever else runs.

    filling     an ordinary request computes its prompt; the pin holds nothing, its budget is reserved
    holding     it lists the prompt's full blocks
    offloaded   warm, and all its blocks are in an offload tier, which keeps their names: it lists none

    hard        requested by a client: a pin that it named, a session that it resumed
    soft        made by the server: keeps a session between two turns

Only full blocks can be shared, so only full blocks are pinned. All pins together stay within `pin_blocks`,
and pins plus the largest accepted request fit the pool: so no set of pins, orphans or cancels blocks the
engine. A pin whose request fails or is cancelled is removed with it.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.quota import SHARED
from octavo.memory.table import BlockTable
from octavo.types import Request


class Strength(enum.StrEnum):
    """Where a pin keeps its blocks."""

    HOT = "hot"  # stays in the pool
    WARM = "warm"  # moves to an offload tier, where only damage drops it; without a tier it is hot


@dataclass(slots=True, eq=False)
class Pin:
    """One pin. `names`: its full blocks; `table` is None while it is filling."""

    tenant: str
    name: str
    strength: Strength
    names: list[bytes]
    filler: int  # id of the request that computes its prompt
    num_tokens: int  # of the pinned prompt, its partial last block included
    created: float
    expires: float
    session_id: str = ""  # of its session; "": a client named it
    is_soft: bool = False
    is_kept: bool = False  # the tier keeps its names; see warm_pins.py
    missing: set[bytes] = field(default_factory=set)  # while it is kept: names not yet in the tier
    holder: Holder = field(init=False)

    def __post_init__(self) -> None:
        kind = HolderKind.SESSION if self.session_id else HolderKind.PIN
        label = f"pin {self.name}" if self.is_named else self.name.replace(":", " ")
        self.holder = Holder(kind, self.tenant, label, is_soft=self.is_soft, is_fixed=True, group=self.filler)

    @property
    def table(self) -> BlockTable | None:
        """Its blocks in the pool; None while it is filling."""
        return self.holder.table

    @property
    def is_named(self) -> bool:
        """True if a client named it."""
        return not (self.session_id or self.is_soft)

    @property
    def num_blocks(self) -> int:
        """Blocks that it keeps, in the pool or in an offload tier."""
        return len(self.names)

    @property
    def num_held(self) -> int:
        """Blocks that it may hold in the pool; they count in the budget from the start."""
        return len(self.names) if self.table is None else len(self.table)


class Pins:
    """All pins, and the counts that decide capacity. `version` changes with them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pins: dict[Pin, None] = {}  # oldest first
        self._named: dict[tuple[str, str], Pin] = {}  # by tenant and name: named by clients
        self._filling: dict[int, Pin] = {}  # by the request that fills it
        self.num_blocks = 0  # that all pins may hold in the pool, those being filled included
        self.num_soft = 0  # of these, those of soft pins
        self._by_tenant: Counter[str] = Counter()  # blocks of all pins
        self._soft_by_tenant: Counter[str] = Counter()
        self._pins_of: Counter[str] = Counter()  # how many
        self.shared_names: Counter[bytes] = Counter()  # held names that the operator shares with all
        self.version = 0

    def __len__(self) -> int:
        return len(self._pins)

    def all(self) -> list[Pin]:
        """Every pin, oldest first."""
        return list(self._pins)

    def named(self) -> list[Pin]:
        """Pins that clients named, oldest first."""
        return list(self._named.values())

    def blocks_of(self, tenant: str, *, hard_only: bool = False) -> int:
        """Blocks that all its pins may hold in the pool, those being filled included."""
        soft = self._soft_by_tenant.get(tenant, 0) if hard_only else 0
        return self._by_tenant.get(tenant, 0) - soft

    def kept(self, *, hard_only: bool = False) -> dict[str, int]:
        """`blocks_of` for every tenant that has any. O(tenants)."""
        return {tenant: self.blocks_of(tenant, hard_only=hard_only) for tenant in self._by_tenant}

    def num_of(self, tenant: str) -> int:
        """The number of its pins, those of its sessions included."""
        return self._pins_of.get(tenant, 0)

    def find(self, tenant: str, name: str) -> Pin | None:
        """The tenant's pin of that name."""
        return self._named.get((tenant, name))

    def filled_by(self, request: Request) -> Pin | None:
        """The pin whose prompt this request is computing."""
        return self._filling.get(request.request_id)

    def add(self, pin: Pin) -> None:
        """Add a pin and count its budget. The caller has checked that it fits and that the name is new."""
        self._pins[pin] = None
        if pin.is_named:
            assert (pin.tenant, pin.name) not in self._named
            self._named[pin.tenant, pin.name] = pin
        self._filling[pin.filler] = pin
        self._pins_of[pin.tenant] += 1
        self._count(pin, pin.num_held)

    def fill(self, pin: Pin) -> None:
        """Hold the pin's blocks, all of which are published."""
        self.hold(pin, pin.names)

    def hold(self, pin: Pin, names: list[bytes]) -> None:
        """Hold the pin's blocks of these names, all of which are published."""
        assert pin.table is None
        self._filling.pop(pin.filler, None)
        self._count(pin, -pin.num_held)
        table = self._ledger.open(pin.holder)
        adopted = self._ledger.adopt(table, names)
        assert adopted == len(names), "a pin was filled before its blocks were published"
        self._count(pin, pin.num_held)
        if pin.tenant == SHARED:
            self.shared_names.update(pin.names)
            for block in table.blocks:
                self._ledger.pool.hand_over(block, self._ledger.quotas.shared)

    def offload(self, pin: Pin) -> None:
        """Hold nothing in the pool: all its blocks are in an offload tier."""
        assert pin.table is not None
        self._count(pin, -pin.num_held)
        self._ledger.close(pin.table)
        self._ledger.open(pin.holder)

    def remove(self, pin: Pin) -> None:
        """Remove the pin. Its blocks stay findable until they are taken."""
        del self._pins[pin]
        if pin.is_named:
            del self._named[pin.tenant, pin.name]
        self._pins_of[pin.tenant] -= 1
        self._count(pin, -pin.num_held)
        if pin.table is None:
            del self._filling[pin.filler]
            return
        if pin.tenant == SHARED:
            for name in pin.names:
                self.shared_names[name] -= 1
                if self.shared_names[name] <= 0:
                    del self.shared_names[name]
            self._unshare(pin.table)
        self._ledger.close(pin.table)

    def _unshare(self, table: BlockTable) -> None:
        """Stop charging `shared` for those of the blocks that no other pin shares, even if others still hold
        them."""
        pool = self._ledger.pool
        for block in table.blocks:
            if pool.name_of[block] not in self.shared_names:
                pool.hand_over(block, self._ledger.quotas.once_shared)

    def _count(self, pin: Pin, change: int) -> None:
        self.version += 1
        self.num_blocks += change
        self._by_tenant[pin.tenant] += change
        if pin.is_soft:
            self.num_soft += change
            self._soft_by_tenant[pin.tenant] += change
