"""Sessions by id, each with its pins."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.errors import SessionBusy, UnknownSession
from octavo.retention.pins import Pin
from octavo.types import Request


class SessionState(enum.StrEnum):
    """The state of a session."""

    ACTIVE = "active"  # a turn runs
    IDLE = "idle"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"  # all its kept blocks are in an offload tier
    RESUMING = "resuming"


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session from the store of conversations, for a scheduler that does not know it."""

    session_id: str
    tenant: str
    tokens: bytes  # uint32, native order: the whole conversation
    ttl_s: float
    left_s: float  # until it expires
    num_shared: int = 0  # leading blocks under names that all tenants share
    num_suspended: int = 0  # leading blocks that a client suspended
    is_response: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """One session. `names`: the full blocks that its last turn left."""

    session_id: str
    tenant: str
    ttl_s: float
    expires: float
    is_response: bool = False  # its blocks are released before those of sessions
    names: list[bytes] = field(default_factory=list)
    num_shared: int = 0  # of these, the leading ones that all tenants share
    turn: int | None = None  # id of the request that runs
    shared: list[bytes] = field(default_factory=list)  # of that turn: names of blocks that can be hits
    num_sent: int | None = None  # of that turn, if its client stopped it: tokens that the client received
    is_suspended: bool = False  # or will be, once its blocks are in an offload tier
    is_promised: bool = False  # a client suspended it, and no turn has ended well since
    may_lack_last: bool = False  # it was restored: K and V of its last token may be missing
    note: str = ""  # why nothing keeps its blocks
    resumed: Pin | None = None  # hot: from `resume` until the next turn ends
    hold: Pin | None = None  # warm, soft: between two turns

    @property
    def pins(self) -> list[Pin]:
        """The pins that it owns."""
        return [pin for pin in (self.resumed, self.hold) if pin is not None]

    @property
    def used(self) -> float:
        """When its last turn ended."""
        return self.expires - self.ttl_s

    @property
    def state(self) -> SessionState:
        """The session's state, which follows from its turn and pins."""
        if self.turn is not None:
            return SessionState.ACTIVE
        if self.resumed is not None:
            return SessionState.RESUMING if self.resumed.table is None else SessionState.IDLE
        if not self.is_suspended:
            return SessionState.IDLE
        is_on_its_way = self.hold is not None and self.hold.missing
        return SessionState.SUSPENDING if is_on_its_way else SessionState.SUSPENDED

    @property
    def num_suspended(self) -> int:
        """The session's leading blocks that survive a restart, if undamaged; 0: not suspended. O(blocks)."""
        if self.state is not SessionState.SUSPENDED or self.hold is None or not self.hold.names:
            return 0
        return self.names.index(self.hold.names[-1]) + 1

    def check_not_busy(self) -> None:
        """Raise SessionBusy while a turn runs or its blocks are in transfer."""
        if self.state in (SessionState.ACTIVE, SessionState.SUSPENDING, SessionState.RESUMING):
            raise SessionBusy(
                f"session {self.session_id} is {self.state.value}; allowed: one turn at a time, and none "
                "while it is suspended or resumed; try again when that has ended"
            )


class SessionTable:
    """All sessions, oldest first. Decides nothing."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def newest_first(self) -> Iterator[Session]:
        """All sessions, newest first."""
        return reversed(self._sessions.values())

    def add(self, session: Session) -> None:
        """Add a session."""
        assert session.session_id not in self._sessions
        self._sessions[session.session_id] = session

    def remove(self, session: Session) -> None:
        """Remove a session."""
        del self._sessions[session.session_id]

    def get(self, session_id: str) -> Session | None:
        """The session of that id, of any tenant."""
        return self._sessions.get(session_id)

    def find(self, tenant: str, session_id: str) -> Session:
        """The tenant's session. Raises UnknownSession."""
        session = self._sessions.get(session_id)
        if session is None or session.tenant != tenant:
            raise UnknownSession(f"there is no session {session_id[:40]!r}", param="session")
        return session

    def names_of(self, tenant: str, session_id: str) -> tuple[list[bytes], int]:
        """The names of the tenant's session, and how many of them all tenants share; none for an unknown
        session."""
        session = self._sessions.get(session_id)
        return ([], 0) if session is None or session.tenant != tenant else (session.names, session.num_shared)

    def owner_of(self, pin: Pin) -> Session:
        """The session that owns this pin; one does."""
        return self._sessions[pin.session_id]

    def turn_of(self, request: Request) -> Session | None:
        """The session that this request is the running turn of."""
        session = self._sessions.get(request.session)
        return session if session is not None and session.turn == request.request_id else None
