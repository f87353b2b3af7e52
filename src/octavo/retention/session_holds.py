"""Sessions in the ledger: the running turn of each, and the blocks kept between two turns.

    idle --- turn --> active --- ends well --> idle          a warm pin keeps its full blocks (warm_pins.py)
     |  ^
     |  +---- resume: a hot pin, filled by an ordinary request that loads the blocks --------- resuming <-+
     |                                                                                                   |
     +--- suspend --> suspending --- all of it offloaded under kept names -----------> suspended --------+
                                                                                     |
                                                         turn: an ordinary fetch  <--+

A session holds nothing by itself: it owns a warm pin, and a hot one after it was resumed, so budgets, checks
and resizes only know pins. A turn that fails or is cancelled changes nothing. A session whose blocks exceed
the pins' budget is kept by best effort, and its note says why. This module knows the names of tokens, not the
tokens; `octavo.conversations` has the text and knows what a disk has synced.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.errors import InvalidRequest, PinRefused, SessionRefused
from octavo.memory.block_namer import BlockNamer
from octavo.memory.names import NameChain
from octavo.memory.quota import SHARED
from octavo.memory.tiers import OffloadTier
from octavo.retention.client_pins import BEYOND_MAXIMUM
from octavo.retention.pins import Pin, Pins, Strength
from octavo.retention.room import Room
from octavo.retention.session_table import Session, SessionState, SessionTable, StoredSession
from octavo.retention.warm_pins import WarmPins
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.step.timers import TimerKind, Timers
from octavo.types import Request

_NEVER = float("inf")
_BUSY_RETRY_S = 1.0  # delay before the next attempt to expire a session whose blocks are in transfer


@dataclass(eq=False)
class SessionHolds:
    """Begins and ends turns; keeps, suspends and deletes sessions."""

    _context: Context
    _pins: Pins
    _table: SessionTable
    _namer: BlockNamer
    _room: Room
    _warm_pins: WarmPins
    _tier: OffloadTier | None
    _timers: Timers

    # -- turns -----------------------------------------------------------------------------------------------

    def check_turn(self, request: Request) -> None:
        """Raise SessionBusy, UnknownSession or InvalidRequest if this turn may not begin."""
        if request.n != 1:
            raise InvalidRequest(f"n is {request.n}; allowed with a session: 1", param="n")
        if request.params.beams is not None:
            raise InvalidRequest(
                "beam search is not for a session's turn; allowed with a session: use_beam_search false",
                param="use_beam_search",
            )
        if request.session in self._table:
            self._table.find(request.tenant, request.session).check_not_busy()

    def begin_turn(self, request: Request, names: Many[bytes], now: float) -> None:
        """The turn's request was accepted. An unknown session (just made, or lost by a restart of the engine)
        is added."""
        session = self._table.get(request.session)
        if session is None:
            ttl_s = request.session_ttl
            session = self.restore(StoredSession(request.session, request.tenant, b"", ttl_s, ttl_s), now)
        session.turn = request.request_id
        session.ttl_s = request.session_ttl
        session.shared = list(names[: self._room.num_hits_max(request)])
        session.num_sent = None

    def stop_turn(self, session_id: str, request_id: int, num_sent: int) -> None:
        """The client found a stop string and will cancel: the first `num_sent` tokens, which it has received,
        count as said."""
        session = self._table.get(session_id)
        if session is not None and session.turn == request_id:
            session.num_sent = num_sent

    def on_last_token(self, request: Request) -> str:
        """Keeps nothing: its blocks are still held."""
        return ""

    def on_end(self, request: Request, num_computed: int, chain: NameChain, *, is_well: bool) -> None:
        """A turn has ended. If it ended well, or its client stopped it on purpose, keep its full blocks; else
        change nothing."""
        session = self._table.turn_of(request)
        if session is None:
            return  # deleted meanwhile
        if not is_well and session.num_sent is None:
            self._close_turn(session)
            return
        if session.num_sent is not None:
            num_computed = min(num_computed, session.num_sent)
        session.names = chain.names[: num_computed // self._context.ledger.block_size]
        session.num_shared = min(chain.num_shared, len(session.names))
        session.is_suspended = session.is_promised = session.may_lack_last = False
        self._close_turn(session)
        self._hold(session)

    # -- fork, suspend, resume, delete -----------------------------------------------------------------------

    def restore(self, stored: StoredSession, now: float) -> Session:
        """Add a session that this scheduler does not know. Keep those of its blocks that are still in the
        tier: of all tokens, or of the first `num_suspended` blocks, if it was suspended. The first
        `num_shared` blocks have names that all tenants share, whether they are pinned now or not. The session
        counts as suspended. Restore suspended sessions first, or others may take their room. O(tokens)."""
        session, num_suspended = self._new(stored, now), stored.num_suspended
        session.is_suspended, session.is_promised = True, num_suspended > 0
        self._keep(session, [name for name in session.names[: num_suspended or None] if self._can_keep(name)])
        return session

    def fork(self, stored: StoredSession, source: Session, now: float) -> Session:
        """Add a session that this scheduler does not know, whose tokens the source has too. It becomes one
        more holder of their blocks, in the tier if they are there, else in the pool. The fork of a suspended
        source is suspended, if there is room. The source does not change. O(tokens)."""
        session = self._new(stored, now)
        pool, is_suspended = self._context.ledger.pool, source.state is SessionState.SUSPENDED
        names = [
            name
            for name in session.names
            if self._can_keep(name) or (pool.find(name) is not None and not is_suspended)
        ]
        if self._tier is not None and self._keep(session, names):
            session.is_suspended = is_suspended
            session.is_promised = is_suspended and source.is_promised
        else:
            self._hold(session)
        return session

    def _new(self, stored: StoredSession, now: float) -> Session:
        """A session that keeps none of its tokens' blocks yet. O(tokens)."""
        tokens, tenant = array("I", stored.tokens), stored.tenant
        expires = now + stored.left_s
        session = Session(stored.session_id, tenant, stored.ttl_s, expires, stored.is_response)
        self._table.add(session)
        session.names = self._namer.restored_chain(tenant, tokens, stored.num_shared).names
        session.num_shared = min(stored.num_shared, len(session.names))
        session.may_lack_last = len(tokens) % self._context.ledger.block_size == 0
        self._set_timer(session)
        return session

    def _can_keep(self, name: bytes) -> bool:
        return self._tier is not None and self._tier.can_keep(name)

    def _keep(self, session: Session, names: list[bytes]) -> bool:
        """Keep these names in the tier, and hold those in the pool that are not stored yet. Returns False
        without room or names; the session's note says why."""
        missing = [name for name in names if not self._can_keep(name)]
        if not names:
            return False
        session.note = self._beyond_maximum(session, len(names))
        if missing and not session.note:
            session.note = self._shortage(session, len(missing))
            if not session.note and not self._room.may_hold(session.tenant, missing):
                session.note = BEYOND_MAXIMUM
        session.note = session.note or self._warm_pins.keep(session.tenant, names)
        if not session.note:
            self._replace(session, names, missing, is_kept=True)
        return not session.note

    def suspend(self, tenant: str, session_id: str) -> Session:
        """Offload all blocks of the session. Its state is SUSPENDING until all are stored. O(blocks).

        Raises UnknownSession, SessionBusy, SessionRefused (no tier, too much kept already, or lost blocks),
        or PinRefused (no room in the pool to hold the blocks until they are stored).
        """
        session = self._table.find(tenant, session_id)
        tier, pool = self._tier, self._context.ledger.pool
        if tier is None:
            raise SessionRefused("a session is suspended to disk, and there is none (setting disk_cache)")
        self._warm_pins.try_again()  # stores that failed: the disk may work again
        names, hold = self._names_to_keep(session), session.hold
        if session.state is not SessionState.SUSPENDING:
            session.check_not_busy()
        if self._exceeds_disk_bound_of_shared(session):
            raise SessionRefused(
                f"session {session_id} begins with a prefix that the operator shares, and what is shared may "
                f"not take that many blocks on disk (`disk` of tenant {SHARED!r} in the tenants file)"
            )
        if hold is not None and hold.is_kept and hold.names == names:  # its pin already offloads them
            if session.resumed is not None:
                self._warm_pins.remove(session.resumed)
            session.is_suspended = session.is_promised = True
            return session
        missing = [name for name in names if not tier.can_keep(name)]
        num_lost = sum(pool.find(name) is None for name in missing)
        if num_lost:
            raise SessionRefused(
                f"{num_lost:,} of the {len(names):,} blocks of session {session_id} are neither in memory "
                "nor on disk; resume it, which computes them, then suspend it"
            )
        pool_refusal = self._shortage(session, len(missing))
        if not pool_refusal and not self._room.may_hold(tenant, missing):
            pool_refusal = BEYOND_MAXIMUM
        if pool_refusal:
            raise PinRefused(pool_refusal)
        tier_refusal = self._beyond_maximum(session, len(names))
        tier_refusal = tier_refusal or self._warm_pins.pin_requested(tenant, names, session_id)
        if tier_refusal:
            raise SessionRefused(
                f"session {session_id} has {len(names):,} blocks, and {tier_refusal} (setting disk_size); "
                "delete other suspended sessions"
            )
        self._replace(session, names, missing, is_kept=True)
        session.is_suspended = session.is_promised = True
        session.note = ""
        return session

    def _names_to_keep(self, session: Session) -> list[bytes]:
        """The names of its blocks. A restored session may lack the last one, which is then left out."""
        names, pool = session.names, self._context.ledger.pool
        if not names or not session.may_lack_last or self._is_offloaded(names[-1]):
            return names
        return names[:-1] if pool.find(names[-1]) is None else names

    def _exceeds_disk_bound_of_shared(self, session: Session) -> bool:
        """Blocks of a shared prefix count for `shared` in the tier, whichever tenant's session keeps them.
        Without room for `shared`, their store would wait for ever."""
        tier, pool, quotas = self._tier, self._context.ledger.pool, self._context.ledger.quotas
        limit = quotas.disk_maximum(quotas.shared)
        names = session.names[: session.num_shared]
        if tier is None or limit is None or all(name in tier for name in names):
            return False
        blocks = [pool.find(name) for name in names]
        return sum(b is None or quotas.owner_in_tier(pool.owner[b]) == quotas.shared for b in blocks) > limit

    def give_up_suspending(self, session_id: str) -> None:
        """Undo a suspension: its blocks stay in the pool and in the tier as they are."""
        session = self._table.get(session_id)
        if session is not None:
            session.is_suspended = session.is_promised = False

    def slots(self, session_id: str) -> list[tuple[int, bytes]]:
        """The slots and names of its blocks that the tier keeps; none for an unknown session."""
        session = self._table.get(session_id)
        if session is None:
            return []
        tier, hold = self._tier, session.hold
        names = hold.names if hold is not None and tier is not None else []
        pairs = [(tier.slot_of(name), name) for name in names] if tier is not None else []
        return [(slot, name) for slot, name in pairs if slot is not None]

    def delete(self, tenant: str, session_id: str) -> Session:
        """Remove the session; a running turn continues as a plain request. Raises UnknownSession."""
        session = self._table.find(tenant, session_id)
        for pin in session.pins:
            self._warm_pins.remove(pin)
        self._table.remove(session)
        self._timers.cancel(TimerKind.SESSION, (0, session_id))
        return session

    def renew(self, session_id: str, now: float) -> None:
        """Restart its ttl now, if it is known."""
        session = self._table.get(session_id)
        if session is not None:
            session.expires = now + session.ttl_s
            self._set_timer(session)

    def expire(self, session_id: str, now: float) -> None:
        """Delete a session whose time has passed, unless a turn runs: the next plan may take its blocks."""
        session = self._table.get(session_id)
        if session is None or session.turn is not None or session.expires > now:
            return
        if session.state in (SessionState.SUSPENDING, SessionState.RESUMING):
            session.expires = now + _BUSY_RETRY_S
            self._set_timer(session)
            return
        self.delete(session.tenant, session_id)
        self._record(EventKind.SESSION_EXPIRED, session, f"session {session_id} expired")

    # -- what a session keeps --------------------------------------------------------------------------------

    def _hold(self, session: Session) -> None:
        """Replace its holds by one warm pin on its published blocks. Without room for that pin, only the hot
        pin of a resumed session is released."""
        names = session.names[: self._context.ledger.find_prefix(session.names)]
        self._release_responses(session, names)
        session.note = self._beyond_maximum(session, len(names)) or self._shortage(session, len(names))
        if not session.note and not self._room.may_hold(session.tenant, names):
            session.note = BEYOND_MAXIMUM
        if not names:
            session.note = (
                "none of its blocks is cached: its turns fill none, they were taken for others, or prefix "
                "caching is off (setting prefix_caching)"
            )
        if not session.note:
            self._replace(session, names, names, is_kept=False)
            return
        if session.resumed is not None:
            self._warm_pins.remove(session.resumed)
        self._record(EventKind.SESSION_BEST_EFFORT, session, session.note)

    def _release_responses(self, session: Session, names: list[bytes]) -> None:
        """Release idle responses of its tenant, least recently used first, if that makes room for these
        names. O(sessions) without room."""
        if not names or self._beyond_maximum(session, len(names)) or not self._shortage(session, len(names)):
            return
        idle = [s for s in self._table if s.is_response and s.tenant == session.tenant and s.turn is None]
        spare = sorted((s for s in idle if s is not session and s.hold is not None), key=lambda s: s.used)
        held = sum(s.hold.num_held for s in spare if s.hold is not None)
        given_up = held + sum(pin.num_held for pin in session.pins)
        if self._room.shortage(len(names), session.tenant, "", given_up):
            return
        for other in spare:
            if other.hold is None or not other.hold.num_held:
                continue
            num_blocks = other.hold.num_held
            self._warm_pins.remove(other.hold)
            other.is_suspended, other.note = False, "its blocks were needed for what is newer"
            text = f"response {other.session_id} released {num_blocks:,} blocks: {other.note}"
            self._record(EventKind.SESSION_RELEASED, other, text)
            if not self._shortage(session, len(names)):
                return

    def _replace(self, session: Session, names: list[bytes], held: list[bytes], *, is_kept: bool) -> None:
        """Replace all its pins by one warm pin that holds `held`. `is_kept`: the tier keeps the names
        already."""
        pin = Pin(
            session.tenant,
            f"session:{session.session_id}",
            Strength.WARM,
            list(names),
            -1,  # no request fills it
            len(names) * self._context.ledger.block_size,
            self._context.now,
            _NEVER,
            session.session_id,
            is_soft=True,
        )
        for old in session.pins:
            self._warm_pins.remove(old)
        self._pins.add(pin)
        self._pins.hold(pin, held)
        session.hold = pin
        if is_kept:
            self._warm_pins.offload(pin)
        else:
            self._warm_pins.begin(pin)

    def _is_offloaded(self, name: bytes) -> bool:
        return self._tier is not None and (name in self._tier or self._tier.is_storing(name))

    def _beyond_maximum(self, session: Session, num_blocks: int) -> str:
        """Why its tenant may not keep `num_blocks` for one session, or ""."""
        limit = self._context.ledger.quotas.policy(session.tenant).session_maximum
        if limit is None or num_blocks <= limit:
            return ""
        return f"a session of this tenant may keep {limit:,} blocks, and it has {num_blocks:,}"

    def _shortage(self, session: Session, num_blocks: int) -> str:
        given_up = sum(pin.num_held for pin in session.pins)
        what = f"session {session.session_id}"
        return self._room.shortage(num_blocks, session.tenant, what, given_up)

    def _close_turn(self, session: Session) -> None:
        session.turn, session.shared, session.num_sent = None, [], None
        session.expires = self._context.now + session.ttl_s
        self._set_timer(session)

    def _set_timer(self, session: Session) -> None:
        self._timers.set(TimerKind.SESSION, (0, session.session_id), session.expires)

    def _record(self, kind: EventKind, session: Session, text: str) -> None:
        self._context.events.record(Event(self._context.now, kind, text, session.turn, session.tenant))
