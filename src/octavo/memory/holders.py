"""Holders of blocks. A block's holder count is the number of holders whose tables list it.

    kind       may lose its blocks                                         else holds them until
    sequence   to one of better rank that lacks blocks: it is preempted    it ends
    fetch      likewise, once it is complete                               a waiting sequence is admitted
    session    soft: to a request that cannot run otherwise;               its next turn, or expiry
               hard once it was resumed: never
    pin        never, if a client requested it                             its client deletes it, or expiry
    store      never                                                       its copy to an offload tier is made

Every holder registers a record with the ledger, so counting, drawing and reclaiming read one list. The ledger
opens and closes tables; the owner of a holder knows its purpose.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.memory.pool import BlockPool
from octavo.memory.table import BlockTable


class HolderKind(enum.StrEnum):
    """The purpose of a holder."""

    SEQUENCE = "sequence"
    FETCH = "fetch"
    SESSION = "session"
    PIN = "pin"
    STORE = "store"


@dataclass(slots=True, eq=False)
class Holder:
    """The public record of one holder. `table` is None while it holds nothing and is not registered."""

    kind: HolderKind
    tenant: str = ""
    label: str = ""  # for people
    is_soft: bool = False  # released when a request could not run otherwise; else hard
    is_fixed: bool = False  # no running request takes its blocks: pins, copies in flight
    rank: tuple[int, ...] = ()  # smaller ranks run first, and lose their blocks last
    group: int = 0  # a sequence's request, whose sequences go together; a fetch's sequence
    request_id: int | None = None  # the request that it takes blocks for; None: not a single one
    # Of a sequence, as of the last `Sequence.as_holder`:
    num_planned: int = 0  # positions handed to the executor
    is_findable: bool = True  # False: it will not look up again what it computed
    table: BlockTable | None = None

    @property
    def blocks(self) -> list[int]:
        """The blocks that it holds now."""
        return [] if self.table is None else self.table.blocks


class HypotheticalRelease:
    """The pool as it would be without some holders. `release` leaves out one more."""

    def __init__(self, pool: BlockPool) -> None:
        self.freed: set[int] = set()  # blocks that no other holder lists
        self._pool = pool
        self._listed: Counter[int] = Counter()
        self._uncharged: Counter[int] = Counter()  # by owner: of the freed blocks

    def release(self, tables: Iterable[BlockTable | None]) -> HypotheticalRelease:
        """Leave out these holders too. O(blocks that they list)."""
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
