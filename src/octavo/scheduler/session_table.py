"""Sessions by id, and the pins that they own."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.errors import SessionBusy, UnknownSession
from octavo.memory.pins import IDLE, Pin, Pins
from octavo.types import Request


class SessionState(enum.StrEnum):
    """Where a session is."""

    ACTIVE = "active"  # a turn runs
    IDLE = "idle"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"  # all that is kept of it is below
    RESUMING = "resuming"


@dataclass(slots=True, eq=False)
class Session:
    """One session. `names` are those of the full blocks that its last turn left."""

    session_id: str
    tenant: str
    ttl_s: float
    expires: float
    names: list[bytes] = field(default_factory=list)
    num_shared: int = 0  # of these, the leading ones that all tenants have in common
    turn: int | None = None  # id of the request that runs
    shared: list[bytes] = field(default_factory=list)  # of that turn: names of blocks that can be hits
    num_told: int | None = None  # of that turn: tokens that its client was told, where it was stopped there
    is_suspended: bool = False  # or will be, when its blocks are below
    is_promised: bool = False  # a client asked for that, and no turn has ended well since
    may_lack_last: bool = False  # it was restored: its last token's K and V may never have been computed
    note: str = ""  # why nothing keeps its blocks


def hold_name(session_id: str) -> str:
    """The warm pin that keeps a session's blocks between its turns."""
    return IDLE + session_id


def resumed_name(session_id: str) -> str:
    """The hot pin that a resumed session holds its blocks with."""
    return f"resumed:{session_id}"


def session_of(pin_name: str) -> str:
    """Whose blocks a resumed session's pin holds; "" for one that clients have named."""
    return pin_name.partition(":")[2]


class SessionTable:
    """Every session there is, oldest first. Decides nothing."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def add(self, session: Session) -> None:
        """One that is not in it."""
        assert session.session_id not in self._sessions
        self._sessions[session.session_id] = session

    def remove(self, session: Session) -> None:
        """One that is in it."""
        del self._sessions[session.session_id]

    def get(self, session_id: str) -> Session | None:
        """That session, of whichever tenant."""
        return self._sessions.get(session_id)

    def find(self, tenant: str, session_id: str) -> Session:
        """The tenant's session. Raises UnknownSession."""
        session = self._sessions.get(session_id)
        if session is None or session.tenant != tenant:
            raise UnknownSession(f"there is no session {session_id[:40]!r}", param="session")
        return session

    def state_of(self, session: Session) -> SessionState:
        """Where it is. O(1)."""
        if session.turn is not None:
            return SessionState.ACTIVE
        resumed, hold = self.pins_of(session)
        if resumed is not None:
            return SessionState.RESUMING if resumed.table is None else SessionState.IDLE
        if not session.is_suspended:
            return SessionState.IDLE
        return SessionState.SUSPENDING if hold is not None and hold.missing else SessionState.SUSPENDED

    def pins_of(self, session: Session) -> tuple[Pin | None, Pin | None]:
        """Its hot pin, if it was resumed, and its warm one."""
        pins = self._pins
        resumed = pins.find(session.tenant, resumed_name(session.session_id))
        return resumed, pins.find(session.tenant, hold_name(session.session_id))

    def turn_of(self, request: Request) -> Session | None:
        """The session whose running turn this request is."""
        session = self._sessions.get(request.session)
        return session if session is not None and session.turn == request.request_id else None

    def check_still(self, session: Session) -> None:
        """Raise SessionBusy while a turn runs, or blocks of it are on their way."""
        state = self.state_of(session)
        if state in (SessionState.ACTIVE, SessionState.SUSPENDING, SessionState.RESUMING):
            raise SessionBusy(
                f"session {session.session_id} is {state.value}; allowed: one turn at a time, and none while "
                "it is suspended or resumed; try again when that has ended"
            )
