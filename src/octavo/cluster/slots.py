"""Which replica has which slot: a table that one actor of a cluster keeps.

    slot   holder        node     what it is
    0      Engine#a1     n1       runs
    1      Engine#b7     n2       drains: Engine#c3, started for it, waits
    2      -             n1       free, last on n1

A replica takes a free slot while fewer are held than there are to be replicas; so one that is started for a
dead or draining one waits until that has ended, and gets its slot, whose ids it then serves: of several free
ones the one that was freed last, else one that was last on its node, where the disk cache of the slot may be.

Invariant: a slot has at most one holder, and a holder one slot. Pure: who lives is an argument.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec


class SlotHolder(msgspec.Struct):
    """What is known of a slot; `holder` "": none."""

    holder: str = ""
    node: str = ""
    base_url: str = ""
    pid: int = 0  # of its child
    since: float = 0.0  # seconds of the epoch
    freed: float = 0.0  # when its last holder ended, or was found dead

    def free(self, now: float) -> None:
        """Its holder has ended."""
        self.holder, self.base_url, self.pid, self.freed = "", "", 0, now


class SlotTable(msgspec.Struct):
    """Slots by number. It is encoded whole, so that it survives its actor."""

    slots: list[SlotHolder] = []

    def claim(
        self, holder: str, node: str, num_replicas: int, alive: Container[str], now: float
    ) -> int | None:
        """A slot for a replica, or None: it has to wait. The same again for the same holder. Slots of holders
        that do not live are free. O(slots)."""
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
        """Its child serves."""
        for slot in self.slots:
            if slot.holder == holder:
                slot.base_url, slot.pid = base_url, pid

    def release(self, holder: str, now: float) -> None:
        """It has ended. Again does nothing."""
        for slot in self.slots:
            if slot.holder == holder:
                slot.free(now)
