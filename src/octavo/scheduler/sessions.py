"""Sessions as the scheduler sees them: whose turn runs, and the blocks that are kept between two turns.

    idle --- turn --> active --- ends well --> idle          its full blocks are a warm pin's (holding.py)
     |  ^
     |  +---- resume: a hot pin, filled by an ordinary request that finds the blocks below --- resuming <-+
     |                                                                                                   |
     +--- suspend --> suspending --- all of it stored below under kept names --> suspended --------------+
                                                                                     |
                                                         turn: an ordinary fetch  <--+

A session holds nothing by itself: it owns a warm pin, and a hot one after it was resumed, so budgets, checks
and resizes know of pins alone. A turn that fails or is cancelled changes nothing. A session whose blocks find
no room in the pins' budget is kept by best effort, and says why. It does not know tokens, only their names;
who asks, and what a disk has synced, is `octavo.engine.sessions`' business.
"""

from __future__ import annotations

import enum
import heapq
from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from octavo.errors import InvalidRequest, PinRefused, SessionBusy, SessionRefused, UnknownSession
from octavo.memory.names import NameChain
from octavo.memory.pins import IDLE, Pin, Strength
from octavo.memory.quota import SHARED
from octavo.scheduler.events import Event, EventKind
from octavo.scheduler.limits import tokens_that_fit
from octavo.scheduler.pinning import BEYOND_MAXIMUM, resumed_name, session_of
from octavo.scheduler.sequence import Sequence
from octavo.types import Request

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler

_NEVER = float("inf")
_BUSY_RETRY_S = 1.0  # a session that should expire while its blocks are on their way is looked at again


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


class Sessions:
    """Acts on the scheduler's pins; called on its thread, through it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._sessions: dict[str, Session] = {}
        self._expiries: list[tuple[float, str]] = []  # a heap; one that says another time is stale

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        """Every session, oldest first."""
        return list(self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        """Whosoever it is."""
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
        pins = self._scheduler.pins
        resumed = pins.find(session.tenant, resumed_name(session.session_id))
        return resumed, pins.find(session.tenant, hold_name(session.session_id))

    # -- turns -----------------------------------------------------------------------------------------------

    def check_turn(self, request: Request) -> None:
        """Raise SessionBusy, UnknownSession or InvalidRequest unless this turn may begin."""
        if request.n != 1:
            raise InvalidRequest(f"n is {request.n}; allowed with a session: 1", param="n")
        if request.params.beams is not None:
            raise InvalidRequest(
                "beam search is not for a session's turn; allowed with a session: use_beam_search false",
                param="use_beam_search",
            )
        if request.session in self._sessions:
            self._check_still(self.find(request.tenant, request.session))

    def chain_for(self, request: Request) -> NameChain:
        """The names of a request's full blocks; a turn, or one that resumes a session, goes on under those
        that the session has. O(tokens)."""
        session_id = request.session or session_of(request.fills_pin)
        return self.chain_of(request.tenant, session_id, array("I", request.prompt))

    def chain_of(self, tenant: str, session_id: str, tokens: array[int]) -> NameChain:
        """The same for tokens that a session may have said; "": none has."""
        session = self._sessions.get(session_id)
        if session is None or session.tenant != tenant:
            return self._scheduler.tenancy.chain_for(tenant, tokens)
        return self._scheduler.tenancy.chain_for(tenant, tokens, session.names, session.num_shared)

    def own_blocks(self, request: Request, names: Many[bytes], *, firm: bool = False) -> int:
        """Blocks of the pins' budget that this turn, whose tokens have these names, finds and shares: it
        needs no others for them. `firm`: only of pins that do not give way. O(blocks)."""
        session = self._sessions.get(request.session)
        if session is None or request.params.prompt_logprobs is not None:
            return 0
        num_own, pool = 0, self._scheduler.memory.pool
        for pin in self.pins_of(session)[: 1 if firm else 2]:
            held = set(pin.table.blocks) if pin is not None and pin.table is not None else set()
            for name in names[: self._num_hits_max(request)]:
                if pool.find(name) not in held:
                    break
                num_own += 1
        return num_own

    def fitted(self, request: Request) -> Request:
        """The same turn, which has not begun, with no more max_tokens than there is room for. O(tokens)."""
        tenancy, size = self._scheduler.tenancy, self._scheduler.memory.block_size
        chain = self.chain_for(request)
        room = tenancy.room(request.tenant, own=self.own_blocks(request, chain.names))
        fits = tokens_that_fit(len(request.prompt), request.params, room, size)
        if fits < 1:  # what is kept of other sessions gives way
            own = self.own_blocks(request, chain.names, firm=True)
            room = tenancy.room(request.tenant, own=own, firm=True)
            fits = tokens_that_fit(len(request.prompt), request.params, room, size)
        return replace(request, max_tokens=max(1, min(request.max_tokens, fits)))

    def own_blocks_of(self, request: Request, *, firm: bool = False) -> int:
        """The same for a turn that was taken."""
        session = self._turn_of(request)
        return 0 if session is None else self.own_blocks(request, session.shared, firm=firm)

    def begin_turn(self, request: Request, names: Many[bytes], now: float) -> None:
        """Its request was taken. A session that is not known here (it was made just now, or the engine began
        afresh) is from now on."""
        session = self._sessions.get(request.session)
        if session is None:
            session = self.restore(request.session, request.tenant, (), request.session_ttl, now)
        session.turn = request.request_id
        session.ttl_s = request.session_ttl
        session.shared = list(names[: self._num_hits_max(request)])
        session.num_told = None

    def stop_turn(self, session_id: str, request_id: int, num_told: int) -> None:
        """The client found a stop string and will cancel: what it was told, `num_told` tokens, counts as
        said."""
        session = self._sessions.get(session_id)
        if session is not None and session.turn == request_id:
            session.num_told = num_told

    def end_turn(self, sequence: Sequence) -> None:
        """The turn has just ended well, and its blocks are unheld: keep the full ones."""
        session = self._turn_of(sequence.request)
        if session is None:
            return  # it was deleted meanwhile
        num_tokens = len(sequence.tokens) - 1  # the last one's K and V were never computed
        if session.num_told is not None:
            num_tokens = min(num_tokens, session.num_told)
        session.names = sequence.chain.names[: num_tokens // self._scheduler.memory.block_size]
        session.num_shared = min(sequence.chain.num_shared, len(session.names))
        session.is_suspended = session.is_promised = session.may_lack_last = False
        self._close_turn(session)
        self._hold(session)

    def give_up_turn(self, sequence: Sequence) -> None:
        """The turn ended otherwise: nothing has changed, unless its client stopped it on purpose."""
        session = self._turn_of(sequence.request)
        if session is None:
            return
        if session.num_told is not None:
            self.end_turn(sequence)
        else:
            self._close_turn(session)

    # -- suspend, resume, delete -----------------------------------------------------------------------------

    def restore(
        self,
        session_id: str,
        tenant: str,
        tokens: Many[int],
        ttl_s: float,
        now: float,
        left_s: float = 0.0,
        num_shared: int = 0,
        num_suspended: int = 0,
    ) -> Session:
        """A session that this scheduler does not know, with what is still below of the blocks of its tokens
        kept there: of all, or of the first `num_suspended`, if it was suspended with so many. The first
        `num_shared` of them have names that all tenants have in common, whether they are pinned now or not.
        It counts as suspended. Those that were come first, else others may take the room that they had."""
        assert session_id not in self._sessions
        session = Session(session_id, tenant, ttl_s, now + (left_s or ttl_s))
        self._sessions[session_id] = session
        session.names = self._scheduler.tenancy.chain_as_named(tenant, array("I", tokens), num_shared).names
        session.num_shared = min(num_shared, len(session.names))
        session.is_suspended, session.is_promised = True, num_suspended > 0
        session.may_lack_last = len(tokens) % self._scheduler.memory.block_size == 0
        self._push(session)
        tier = self._scheduler.transfers.tier
        names = session.names[: num_suspended or None]
        below = [name for name in names if tier is not None and tier.can_keep(name)]
        if below:
            why_not = self._beyond_maximum(session, len(below))
            session.note = why_not or self._scheduler.holding.keep(tenant, below)
            if not session.note:
                self._replace(session, below, [], is_kept=True)
        return session

    def suspend(self, tenant: str, session_id: str) -> Session:
        """Send all its blocks below; `state_of` says when they are. O(blocks).

        Raises UnknownSession, SessionBusy, SessionRefused without a tier, where it keeps too many already or
        blocks are nowhere any more, PinRefused where there is no room to hold what is not below yet.
        """
        session, scheduler = self.find(tenant, session_id), self._scheduler
        tier, pool = scheduler.transfers.tier, scheduler.memory.pool
        if tier is None:
            raise SessionRefused("a session is suspended to disk, and there is none (setting disk_cache)")
        scheduler.holding.try_again()  # the disk may work again
        names, (resumed, hold) = self._all_of(session), self.pins_of(session)
        if self.state_of(session) is not SessionState.SUSPENDING:
            self._check_still(session)
        if self._is_beyond_what_shared_may_store(session):
            raise SessionRefused(
                f"session {session_id} begins with a prefix that the operator shares, and what is shared may "
                f"not take that many blocks on disk (`disk` of tenant {SHARED!r} in the tenants file)"
            )
        if hold is not None and hold.is_kept and hold.names == names:
            if resumed is not None:
                scheduler.pinning.remove(resumed)
            session.is_suspended = session.is_promised = True
            return session
        missing = [name for name in names if not tier.can_keep(name)]
        num_lost = sum(pool.find(name) is None for name in missing)
        if num_lost:
            raise SessionRefused(
                f"{num_lost:,} of the {len(names):,} blocks of session {session_id} are neither in memory "
                "nor on disk; resume it, which computes them, then suspend it"
            )
        reason = self._shortage(session, len(missing))
        if not reason and not scheduler.tenancy.may_hold(tenant, missing):
            reason = BEYOND_MAXIMUM
        if reason:
            raise PinRefused(reason)
        why_not = self._beyond_maximum(session, len(names))
        why_not = why_not or scheduler.holding.keep_asked(tenant, names, session_id)
        if why_not:
            raise SessionRefused(
                f"session {session_id} has {len(names):,} blocks, and {why_not} (setting disk_size); delete "
                "other suspended sessions"
            )
        self._replace(session, names, missing, is_kept=True)
        session.is_suspended = session.is_promised = True
        session.note = ""
        return session

    def _all_of(self, session: Session) -> list[bytes]:
        """The names of all blocks that it ever had."""
        names, pool = session.names, self._scheduler.memory.pool
        if not names or not session.may_lack_last or self._scheduler.transfers.is_below(names[-1]):
            return names
        return names[:-1] if pool.find(names[-1]) is None else names

    def _is_beyond_what_shared_may_store(self, session: Session) -> bool:
        """A shared prefix takes room below of `shared`, whoever's session keeps it: without any it would wait
        to be stored for ever."""
        scheduler, quotas = self._scheduler, self._scheduler.memory.quotas
        tier, pool, limit = (
            scheduler.transfers.tier,
            scheduler.memory.pool,
            quotas.disk_maximum(quotas.shared),
        )
        names = session.names[: session.num_shared]
        if tier is None or limit is None or all(name in tier for name in names):
            return False
        blocks = [pool.find(name) for name in names]
        return sum(b is None or quotas.owner_below(pool.owner[b]) == quotas.shared for b in blocks) > limit

    def num_suspended(self, session: Session) -> int:
        """Its first blocks that a restart finds, as far as they stay undamaged; 0: it is not suspended."""
        _, hold = self.pins_of(session)
        if self.state_of(session) is not SessionState.SUSPENDED or hold is None or not hold.names:
            return 0
        return session.names.index(hold.names[-1]) + 1

    def is_stuck(self, session: Session) -> bool:
        """True while blocks of it could not be stored."""
        _, hold = self.pins_of(session)
        return hold is not None and self._scheduler.holding.is_stuck(hold)

    def give_up_suspending(self, session_id: str) -> None:
        """It was not suspended after all: it stays in the pool and below as far as it is there."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.is_suspended = session.is_promised = False

    def slots(self, session_id: str) -> list[tuple[int, bytes]]:
        """Where the blocks that are kept of it are below, and under which names; none of one that is not
        known."""
        session = self._sessions.get(session_id)
        if session is None:
            return []
        tier, (_, hold) = self._scheduler.transfers.tier, self.pins_of(session)
        names = hold.names if hold is not None and tier is not None else []
        pairs = [(tier.slot_of(name), name) for name in names] if tier is not None else []
        return [(slot, name) for slot, name in pairs if slot is not None]

    def check_resume(self, session: Session) -> None:
        """Raise SessionBusy unless a request may now bring its blocks up."""
        self._check_still(session)

    def note_resumed(self, pin: Pin) -> None:
        """A session's blocks are in the pool, by a hot pin, until its next turn ends."""
        session = self.find(pin.tenant, session_of(pin.name))
        session.is_suspended = False
        self._note(EventKind.SESSION_RESUMED, session, f"session {session.session_id} was resumed")

    def delete(self, tenant: str, session_id: str) -> Session:
        """Keep nothing of it; a turn that runs goes on as a plain request. Raises UnknownSession."""
        session = self.find(tenant, session_id)
        for pin in self.pins_of(session):
            if pin is not None:
                self._scheduler.pinning.remove(pin)
        del self._sessions[session_id]
        return session

    def expire(self, now: float) -> None:
        """Delete idle sessions whose time has passed: their blocks serve the next plan."""
        while self._expiries and self._expiries[0][0] <= now:
            at, session_id = heapq.heappop(self._expiries)
            session = self._sessions.get(session_id)
            if session is None or session.expires != at or session.turn is not None:
                continue
            if self.state_of(session) in (SessionState.SUSPENDING, SessionState.RESUMING):
                session.expires = now + _BUSY_RETRY_S
                self._push(session)
                continue
            self.delete(session.tenant, session_id)
            self._note(EventKind.SESSION_EXPIRED, session, f"session {session_id} expired")

    def next_time(self) -> float | None:
        """When the next one may expire; None: never."""
        return self._expiries[0][0] if self._expiries else None

    # -- what it keeps ---------------------------------------------------------------------------------------

    def kept_unasked(self, tenant: str, session_id: str) -> list[Pin]:
        """The holds that the tier keeps of sessions that nobody suspended, but for that one's: who can best
        be spared for something of `tenant` in front, the longest idle first. O(sessions)."""
        found: list[tuple[tuple[bool, bool, float], int, Pin]] = []
        for session in self._sessions.values():
            hold = self.pins_of(session)[1]
            if hold is None or not hold.is_kept or session.is_promised or session.session_id == session_id:
                continue
            is_busy = self.state_of(session) in (SessionState.ACTIVE, SessionState.RESUMING)
            key = (session.tenant != tenant, is_busy, session.expires - session.ttl_s)
            found.append((key, len(found), hold))
        return [hold for _, _, hold in sorted(found)]

    def keep_no_more(self, hold: Pin) -> None:
        """A session's place below goes to what somebody asked for; its blocks stay there as any others do."""
        session = self.find(hold.tenant, session_of(hold.name))
        self._scheduler.pinning.remove(hold)
        session.is_suspended = False
        session.note = "its place below was needed for what somebody asked to keep there"
        text = f"session {session.session_id}: {hold.num_blocks:,} blocks may be dropped: {session.note}"
        self._note(EventKind.SESSION_GAVE_WAY, session, text)

    def _hold(self, session: Session) -> None:
        """A warm pin on its published blocks takes the place of what it had; without room for it, what it had
        stays, but for what a client's resuming held until now."""
        scheduler = self._scheduler
        names = session.names[: scheduler.memory.find_prefix(session.names)]
        session.note = self._beyond_maximum(session, len(names)) or self._shortage(session, len(names))
        if not session.note and not scheduler.tenancy.may_hold(session.tenant, names):
            session.note = BEYOND_MAXIMUM
        if not names:
            session.note = "its turns fill no block, or prefix caching is off (setting prefix_caching)"
        if not session.note:
            self._replace(session, names, names, is_kept=False)
            return
        resumed, _ = self.pins_of(session)
        if resumed is not None:
            self._scheduler.pinning.remove(resumed)
        self._note(EventKind.SESSION_BEST_EFFORT, session, session.note)

    def _replace(self, session: Session, names: list[bytes], held: list[bytes], *, is_kept: bool) -> None:
        """One warm pin, which holds `held`, for all that it had. `is_kept`: the tier keeps the names
        already."""
        scheduler = self._scheduler
        turn = -1 if session.turn is None else session.turn
        old = self.pins_of(session)
        pin = Pin(
            session.tenant,
            hold_name(session.session_id),
            Strength.WARM,
            list(names),
            turn,
            len(names) * scheduler.memory.block_size,
            scheduler.now,
            _NEVER,
        )
        for one in old:
            if one is not None:
                scheduler.pinning.remove(one)
        scheduler.pins.add(pin)
        scheduler.pins.hold(pin, held)
        if is_kept:
            scheduler.holding.send_down(pin)
        else:
            scheduler.holding.begin(pin)

    def _beyond_maximum(self, session: Session, num_blocks: int) -> str:
        """Why its tenant may not keep as many for one session, or ""."""
        limit = self._scheduler.tenancy.quotas.policy(session.tenant).session_maximum
        if limit is None or num_blocks <= limit:
            return ""
        return f"a session of this tenant may keep {limit:,} blocks, and it has {num_blocks:,}"

    def _shortage(self, session: Session, num_blocks: int) -> str:
        given_up = sum(pin.num_held for pin in self.pins_of(session) if pin is not None)
        what = f"session {session.session_id}"
        return self._scheduler.pinning.shortage(num_blocks, session.tenant, what, given_up)

    def _check_still(self, session: Session) -> None:
        state = self.state_of(session)
        if state in (SessionState.ACTIVE, SessionState.SUSPENDING, SessionState.RESUMING):
            raise SessionBusy(
                f"session {session.session_id} is {state.value}; allowed: one turn at a time, and none while "
                "it is suspended or resumed; try again when that has ended"
            )

    def _turn_of(self, request: Request) -> Session | None:
        session = self._sessions.get(request.session)
        return session if session is not None and session.turn == request.request_id else None

    def _close_turn(self, session: Session) -> None:
        session.turn, session.shared, session.num_told = None, [], None
        session.expires = self._scheduler.now + session.ttl_s
        self._push(session)

    def _push(self, session: Session) -> None:
        heapq.heappush(self._expiries, (session.expires, session.session_id))
        if len(self._expiries) > 64 + 2 * len(self._sessions):  # mostly stale
            self._expiries = [(s.expires, s.session_id) for s in self._sessions.values()]
            heapq.heapify(self._expiries)

    def _num_hits_max(self, request: Request) -> int:
        return (len(request.prompt) - 1) // self._scheduler.memory.block_size

    def _note(self, kind: EventKind, session: Session, text: str) -> None:
        self._scheduler.events.note(Event(self._scheduler.now, kind, text, session.turn, session.tenant))
