"""The map of the pool, drawn from a glimpse: one letter for each block."""

from __future__ import annotations

from octavo.inspect.views import Glimpse, MapView
from octavo.memory.holders import HolderKind

_LETTERS = {  # a later kind is drawn over an earlier one; an unlisted one as a pin
    HolderKind.FETCH: "t",
    HolderKind.STORE: "t",
    HolderKind.SEQUENCE: "s",
    HolderKind.SESSION: "p",
    HolderKind.PIN: "p",
}


def draw_map(glimpse: Glimpse) -> MapView:
    """As long as the pool. Of a tenant's glimpse its own blocks, then ".". O(blocks)."""
    states = ["." if name is None else "c" for name in glimpse.names[: glimpse.pool.num_blocks]]
    order = {kind: place for place, kind in enumerate(_LETTERS)}
    owner, owners = [-1] * len(states), dict[tuple[str, str], int]()
    for table in sorted(glimpse.tables, key=lambda table: order.get(table.kind, len(order))):
        number = owners.setdefault((table.tenant, table.label), len(owners))
        letter = _LETTERS.get(table.kind, "p")
        for block in table.blocks:
            before = states[block]
            if letter == "p" or before not in (letter, "S"):
                owner[block] = number
            states[block] = "S" if letter == "s" and before not in ".c" else letter
    return MapView("".join(states), tuple(owner), tuple(label for _, label in owners))
