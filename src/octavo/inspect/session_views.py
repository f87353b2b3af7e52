"""What a person may ask of a session's blocks, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.memory.tiers import OffloadTier
from octavo.retention.session_table import SessionState, SessionTable
from octavo.retention.warm_pins import WarmPins
from octavo.step.context import Context


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
    num_suspended: int = 0  # the leading ones that a restart finds
    is_resumed: bool = False  # a client's resuming holds all of them

    @property
    def tier(self) -> str:
        """ "pool", "disk", "pool and disk" or "none"."""
        places = [place for place, count in (("pool", self.in_pool), ("disk", self.below)) if count]
        return " and ".join(places) or "none"


NO_BLOCKS = SessionBlocks(SessionState.IDLE, 0, 0, 0, 0, 0, 0)


def view_session(
    context: Context,
    sessions: SessionTable,
    warm_pins: WarmPins,
    tier: OffloadTier | None,
    session_id: str,
) -> SessionBlocks:
    """The session's blocks; none of one that is not known (yet). O(blocks)."""
    session = sessions.get(session_id)
    if session is None:
        return NO_BLOCKS
    pool, hold = context.ledger.pool, session.hold
    return SessionBlocks(
        session.state,
        len(session.names),
        sum(pool.find(name) is not None for name in session.names),
        len({block for pin in session.pins for block in pin.holder.blocks}),
        0 if tier is None else sum(name in tier for name in session.names),
        len(hold.names) - len(hold.missing) if hold is not None and hold.is_kept else 0,
        context.config.bytes_per_block,
        session.note,
        hold is not None and warm_pins.is_stuck(hold),
        session.num_suspended,
        session.resumed is not None and session.resumed.table is not None,
    )
