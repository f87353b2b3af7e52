"""What a person may ask of a session's blocks, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.scheduler.session_table import SessionState

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class SessionBlocks:
    """Where a session's full blocks are now: a block in the pool may be below as well."""

    state: SessionState
    num_blocks: int
    in_pool: int  # held for it, or cached
    held: int  # of those: held for it, counted in the pins' budget
    below: int
    kept: int  # of those: nothing but damage drops them
    bytes_per_block: int  # 0: not known
    note: str = ""  # why nothing keeps its blocks
    stuck: bool = False  # some could not be stored

    @property
    def tier(self) -> str:
        """ "pool", "disk", "pool and disk" or "none"."""
        places = [place for place, count in (("pool", self.in_pool), ("disk", self.below)) if count]
        return " and ".join(places) or "none"


NO_BLOCKS = SessionBlocks(SessionState.IDLE, 0, 0, 0, 0, 0, 0)


def view_session(scheduler: Scheduler, session_id: str) -> SessionBlocks:
    """The session's blocks; none of one that the scheduler does not know (yet). O(blocks)."""
    session = scheduler.session_table.get(session_id)
    if session is None:
        return NO_BLOCKS
    tier, pool = scheduler.transfers.tier, scheduler.ledger.pool
    pins = [pin for pin in scheduler.session_table.pins_of(session) if pin is not None]
    hold = scheduler.session_table.pins_of(session)[1]
    held = {block for pin in pins if pin.table is not None for block in pin.table.blocks}
    return SessionBlocks(
        scheduler.session_table.state_of(session),
        len(session.names),
        sum(pool.find(name) is not None for name in session.names),
        len(held),
        0 if tier is None else sum(name in tier for name in session.names),
        len(hold.names) - len(hold.missing) if hold is not None and hold.is_kept else 0,
        scheduler.config.bytes_per_block,
        session.note,
        scheduler.sessions.is_stuck(session),
    )
