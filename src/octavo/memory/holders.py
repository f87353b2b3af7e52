"""Holders: whatever keeps blocks. A block's holder count is the number of holders whose tables list it.

    kind       may lose its blocks to others                               else holds them until
    sequence   when one that ranks before it finds none: it is preempted   it ends
    fetch      likewise, once it is complete                               a waiting sequence is admitted
    session    soft: when a request could not run beside it; if it was     its next turn, or expiry
               resumed it is hard: never
    pin        never, if a client asked for it                             its client deletes it, or expiry
    store      never                                                       its copy to an offload tier is made

Every holder registers with the ledger by a record, so what counts, draws or makes room reads one list. The
ledger opens and closes tables; what a holder is for, its owner knows.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.memory.pool import BlockPool
from octavo.memory.table import BlockTable


class HolderKind(enum.StrEnum):
    """What a holder is for."""

    SEQUENCE = "sequence"
    FETCH = "fetch"
    SESSION = "session"
    PIN = "pin"
    STORE = "store"


@dataclass(slots=True, eq=False)
class Holder:
    """One holder, as others may know it. `table` is None while it holds nothing and is not registered."""

    kind: HolderKind
    tenant: str = ""
    label: str = ""  # for people
    is_soft: bool = False  # kept until a request could not run beside it; else hard
    is_fixed: bool = False  # nothing that runs takes its blocks: pins, copies on their way
    rank: tuple[int, ...] = ()  # smaller runs first, and loses its blocks last
    group: int = 0  # of a sequence its request: those of one go together; of a fetch its sequence
    request_id: int | None = None  # that it takes blocks for; None: not for a single one
    # Of a sequence, as they were when it was last asked for its record (`Sequence.as_holder`):
    num_planned: int = 0  # positions that were handed to the executor
    is_findable: bool = True  # False: what it computed it will not look up again
    table: BlockTable | None = None

    @property
    def blocks(self) -> list[int]:
        """What it holds now."""
        return [] if self.table is None else self.table.blocks


class HypotheticalRelease:
    """The pool as it would be without some holders, which are left out one after the other."""

    def __init__(self, pool: BlockPool) -> None:
        self.freed: set[int] = set()  # blocks that no other holder lists
        self._pool = pool
        self._listed: Counter[int] = Counter()
        self._uncharged: Counter[int] = Counter()  # by owner: of what is freed

    def release(self, tables: Iterable[BlockTable | None]) -> HypotheticalRelease:
        """Without these holders, too. O(blocks that they list)."""
        pool, listed = self._pool, self._listed
        for table in tables:
            for block in table.blocks if table is not None else ():
                listed[block] += 1
                if listed[block] == pool.holders[block]:
                    self.freed.add(block)
                    if block not in pool.uncharged:
                        self._uncharged[pool.owner[block]] += 1
        return self

    def charged(self, owner: int) -> int:
        """Blocks that the owner would be charged for."""
        return self._pool.charged[owner] - self._uncharged[owner]
