"""The table of slots: which replica has which one. An actor of the cluster keeps it.

    slot   holder        node     state
    0      Engine#a1     n1       runs
    1      Engine#b7     n2       drains: its successor Engine#c3 waits
    2      -             n1       free, last on n1

A replica takes a free slot while fewer slots are held than replicas are wanted. So the successor of a dead or
draining replica waits until that has ended, then takes its slot and serves its ids. Of several free slots it
takes the one that was freed last, else one that was last on its node, where the slot's disk cache may be.

Invariant: a slot has at most one holder, and a holder one slot. Pure: the living holders are an argument.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec


class SlotHolder(msgspec.Struct):
    """A slot; `holder` "": it is free."""

    holder: str = ""
    node: str = ""
    base_url: str = ""
    pid: int = 0  # of its child
    since: float = 0.0  # seconds of the epoch
    freed: float = 0.0  # when the last holder ended or was found dead

    def free(self, now: float) -> None:
        """Remove the holder, which has ended."""
        self.holder, self.base_url, self.pid, self.freed = "", "", 0, now


class SlotTable(msgspec.Struct):
    """Slots by number, encoded as one value for Ray's store."""

    slots: list[SlotHolder] = []

    def claim(
        self, holder: str, node: str, num_replicas: int, alive: Container[str], now: float
    ) -> int | None:
        """A slot for a replica, or None: it must wait. A holder gets its own slot again. Slots of dead
        holders are freed. O(slots)."""
        while len(self.slots) < num_replicas:
            self.slots.append(SlotHolder())
        for slot in self.slots:
            if slot.holder not in (holder, "") and slot.holder not in alive:
                slot.free(now)
        free = []
        for number, slot in enumerate(self.slots):
            if slot.holder == holder:
                return number
            if not slot.holder:
                free.append(number)
        if len(self.slots) - len(free) >= num_replicas:
            return None

        def by_fit(number: int) -> tuple[float, bool, int]:
            slot = self.slots[number]
            return -slot.freed, slot.node not in (node, ""), number

        chosen = min(free, key=by_fit)
        self.slots[chosen] = SlotHolder(holder, node, since=now)
        return chosen

    def on_ready(self, holder: str, base_url: str, pid: int) -> None:
        """The holder's child serves."""
        for slot in self.slots:
            if slot.holder == holder:
                slot.base_url, slot.pid = base_url, pid

    def release(self, holder: str, now: float) -> None:
        """The holder has ended. Idempotent."""
        for slot in self.slots:
            if slot.holder == holder:
                slot.free(now)
