"""The store of chat sessions: their tenants, and the token ids of all their turns. Also of stored responses,
which are sessions with a document, and which clients do not see as sessions.

It answers from memory; with a file, every change is written behind (`file`). `sync` waits until one is on the
medium, as may the caller of a deletion. A damaged SQLite file costs its sessions, never an answer, and is
replaced. With too many sessions a new one is refused, because clients delete them. Clients do not delete
responses: the least recently used one without a running turn is deleted. Times are seconds since 1970,
because they outlive the process (`steady_clock`). Any thread may call. The store does not know blocks:
`num_shared` and `num_suspended` are numbers from the scheduler, which receives them back with the tokens.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.conversations.file import SESSIONS_FILE, RecordFile, longest_ttl, open_file
from octavo.conversations.record import TTL_S_MAX, ConversationKind, Record
from octavo.engine.steady_clock import SteadyClock
from octavo.errors import (
    ConfigError,
    InvalidRequest,
    RequestTooLarge,
    SessionBusy,
    SessionRefused,
    UnknownSession,
    require_range,
)
from octavo.files import Files
from octavo.routing.slots import with_slot
from octavo.units import format_age

log = logging.getLogger("octavo.start")
SESSIONS_MAX = 1024  # per tenant
RESPONSES_MAX = 1000  # per tenant
DOCUMENTS_BYTES_MAX = 64 * 2**20  # for a tenant's responses together
GRACE_S = 3600.0
_ID_BYTES = 18


@dataclass(frozen=True, slots=True)
class NewResponse:
    """The parameters of a session that is a response."""

    response_id: str
    document: bytes


class ConversationStore:
    """All sessions of a server, or of a script."""

    def __init__(self, clock: Callable[[], float] | None = None, slot: int | None = None) -> None:
        """`slot`: the replica's in a cluster, contained in the ids of its sessions."""
        self._slot = slot
        self.num_graced = 0  # records that were expired when they were read from the file
        self._clock = clock or SteadyClock()
        self._records: dict[str, Record] = {}  # guarded by _lock
        self._turns: dict[str, str] = {}  # guarded by _lock: running turns, and the ids of their sessions
        self._lock = threading.Lock()
        self._file: RecordFile | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        files: Files | None = None,
        clock: Callable[[], float] | None = None,
        slot: int | None = None,
    ) -> ConversationStore:
        """The sessions in a file, or a new file. One that seems to have expired is kept for its ttl once
        more, at most `GRACE_S`: the clock may be wrong, and what is deleted does not come back. Raises as
        `open_file`."""
        store = cls(clock, slot)
        store._file, records = open_file(path, files or Files())
        now = store._clock()
        store.num_graced = sum(record.expires <= now for record in records)
        store._records = {record.session_id: _graced(record, now) for record in records}
        return store

    @property
    def reset_reason(self) -> str:
        """Why the content of the file was dropped; "" if it was not."""
        return "" if self._file is None else self._file.reset_reason

    @property
    def errors(self) -> int:
        """Writes that failed."""
        return 0 if self._file is None else self._file.errors

    def create(self, tenant: str, ttl_s: float, response: NewResponse | None = None) -> Record:
        """A new session, with an id that cannot be guessed, or a new response. Raises InvalidRequest or
        SessionRefused."""
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        now = self._clock()
        return self._add(Record(self._new_id(), tenant, ttl_s, now, now), response)

    def fork(
        self,
        source: Record,
        turn: int | None = None,
        ttl_s: float | None = None,
        response: NewResponse | None = None,
    ) -> Record:
        """A new session of its tenant with the first `turn` turns of that record, or all, and the same ttl
        unless one is given. Raises InvalidRequest or SessionRefused. O(tokens)."""
        if not source.tokens:
            raise InvalidRequest(
                f"nothing was said in session {source.session_id}; allowed: to fork one in which a turn has "
                "ended",
                param="session",
            )
        ttl_s = source.ttl_s if ttl_s is None else ttl_s
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        ends, now = source.turn_ends.until(turn), self._clock()
        session_id, tokens = self._new_id(), source.tokens[: ends.ends[-1]]
        num_shared = min(source.num_shared, len(tokens))
        made = Record(session_id, source.tenant, ttl_s, now, now, tokens, num_shared, turn_ends=ends)
        return self._add(made, response)

    def _new_id(self) -> str:
        made = secrets.token_urlsafe(_ID_BYTES)
        return made if self._slot is None else with_slot(self._slot, made)

    def _add(self, record: Record, response: NewResponse | None) -> Record:
        if response is not None:
            record = replace(record, session_id=response.response_id, document=response.document)
        with self._lock:
            self._purge(record.created)
            if record.kind is ConversationKind.SESSION:
                self._check_room(record.tenant)
            self._records[record.session_id] = record
            self._put(record)
        return record

    def _check_room(self, tenant: str) -> None:
        count = sum(r.tenant == tenant and r.kind is ConversationKind.SESSION for r in self._records.values())
        if count >= SESSIONS_MAX:
            raise SessionRefused(
                f"there are {count:,} sessions; allowed: {SESSIONS_MAX:,}; delete some, or wait until they "
                "expire"
            )

    def make_room(self, tenant: str, response: NewResponse, spared: str = "") -> list[Record]:
        """Delete responses of the tenant until there is room for this one, or for its new document: the least
        recently used without a running turn, never itself or `spared`. Returns them. Raises SessionRefused if
        that is not enough, RequestTooLarge if it alone is too large. O(n log n)."""
        if len(response.document) > DOCUMENTS_BYTES_MAX:
            raise RequestTooLarge(
                f"the response takes {len(response.document):,} bytes with all that was said before it; "
                f"allowed: {DOCUMENTS_BYTES_MAX:,}; send less, or use store false",
                param="input",
                code="response_too_large",
            )
        ours = {response.response_id, spared}
        with self._lock:
            held = [
                r
                for r in self._records.values()
                if r.tenant == tenant and r.kind is ConversationKind.RESPONSE
            ]
            others = [r for r in held if r.session_id != response.response_id]
            count, size = len(others) + 1, len(response.document) + sum(len(r.document) for r in others)
            busy, gone = set(self._turns.values()) | ours, list[Record]()
            for record in sorted(others, key=lambda r: r.used):
                if count <= RESPONSES_MAX and size <= DOCUMENTS_BYTES_MAX:
                    break
                if record.session_id not in busy:
                    gone.append(record)
                    count, size = count - 1, size - len(record.document)
            if count > RESPONSES_MAX or size > DOCUMENTS_BYTES_MAX:
                raise SessionRefused(
                    f"{count:,} stored responses of {size:,} bytes are left, which run or are needed; "
                    f"allowed: {RESPONSES_MAX:,} of {DOCUMENTS_BYTES_MAX:,} bytes; use store false, or wait "
                    "until some have ended"
                )
            for record in gone:
                self._drop(record.session_id)
        return gone

    def attach(self, response: NewResponse) -> bool:
        """Set the document of that response. Returns False if it was deleted meanwhile."""
        with self._lock:
            record = self._records.get(response.response_id)
            if record is None:
                return False
            self._records[record.session_id] = record = replace(record, document=response.document)
            self._put(record)
        return True

    def find(self, tenant: str, session_id: str, kind: ConversationKind = ConversationKind.SESSION) -> Record:
        """The tenant's conversation of that kind. Raises UnknownSession, also for one that has expired, or is
        of another tenant or kind."""
        with self._lock:
            record = self._records.get(session_id)
            is_busy = session_id in self._turns.values()
        if record is None or (record.tenant, record.kind) != (tenant, kind):
            raise _unknown(session_id, kind)
        if record.expires <= self._clock() and not is_busy:
            raise _unknown(session_id, kind)
        return record

    def has(self, session_id: str) -> bool:
        """Whether its record exists."""
        with self._lock:
            return session_id in self._records

    def find_again(self, record: Record) -> Record:
        """The current record. Raises UnknownSession if it was deleted."""
        return self.find(record.tenant, record.session_id, record.kind)

    def is_active(self, record: Record) -> bool:
        """Whether a turn of it runs."""
        with self._lock:
            return record.session_id in self._turns.values()

    def records(self) -> list[Record]:
        """Every session and every response, oldest first."""
        with self._lock:
            self._purge(self._clock())
            return list(self._records.values())

    def all(self, tenant: str | None = None) -> list[Record]:
        """The tenant's sessions, or all tenants', oldest first; no responses."""
        return [
            r for r in self.records() if tenant in (None, r.tenant) and r.kind is ConversationKind.SESSION
        ]

    def count(self, tenant: str | None = None) -> int:
        """The length of `all`."""
        return len(self.all(tenant))

    def latest(self, tenant: str | None, limit: int) -> list[Record]:
        """Up to `limit` of `all`, oldest first: those with a running turn, then the most recently used."""
        records = self.all(tenant)
        with self._lock:
            busy = set(self._turns.values())
        ranked = sorted(records, key=lambda r: (r.session_id in busy, r.used), reverse=True)
        chosen = {record.session_id for record in ranked[:limit]}
        return [record for record in records if record.session_id in chosen]

    def now(self) -> float:
        """The time by its clock."""
        return self._clock()

    def seconds_left(self, record: Record) -> float:
        """Seconds until it expires."""
        return max(0.0, record.expires - self._clock())

    def begin_turn(self, record: Record, turn: str) -> Record:
        """Begin a turn that continues this record: until it ends, the session does not expire, and no other
        turn begins. Returns the current record. `turn` is any key of the turn; `end_turn` or `withdraw_turn`
        follows.

        Raises UnknownSession if it was deleted, SessionBusy if another turn has not recorded its tokens yet,
        or has done so since.
        """
        self.find_again(record)
        with self._lock:
            is_active = record.session_id in self._turns.values()
            now = self._records.get(record.session_id, record)
            if is_active or now.num_said != record.num_said:
                what = (
                    "session {} is active" if is_active else "another turn has ended meanwhile in session {}"
                )
                raise SessionBusy(
                    f"{what.format(record.session_id)}; allowed: one turn at a time, which sends what was "
                    "said in the one before it"
                )
            self._turns[turn] = record.session_id
        return now

    def withdraw_turn(self, turn: str) -> None:
        """The engine did not accept the turn: the session was not used."""
        with self._lock:
            self._turns.pop(turn, None)

    def use(self, session_id: str) -> None:
        """Restart its ttl now, if it exists."""
        with self._lock:
            self._use(session_id)

    def end_turn(self, turn: str) -> None:
        """The turn has ended. Idempotent, also for one that never began."""
        with self._lock:
            session_id = self._turns.pop(turn, None)
            if session_id is not None:
                self._use(session_id)

    def say(self, session_id: str, tokens: Sequence[int], num_shared: int = 0) -> bool:
        """A turn has ended well: set all tokens so far, of which `num_shared` leading blocks have names that
        all tenants share. If they do not extend the earlier tokens, earlier turns can no longer be forked.
        Returns False if the conversation was deleted meanwhile."""
        with self._lock:
            return self._use(session_id, array("I", tokens), num_shared)

    def record_suspended(self, record: Record, num_blocks: int) -> None:
        """The state of this record was suspended, with so many blocks: a restart keeps these first. Does
        nothing if a turn has ended well since, or it was deleted."""
        with self._lock:
            now = self._records.get(record.session_id)
            if now is not None and now.num_said == record.num_said and now.num_suspended != num_blocks:
                self._records[now.session_id] = now = replace(now, num_suspended=num_blocks)
                self._put(now)

    def is_suspended(self, record: Record) -> bool:
        """Whether it is suspended in the state of this record."""
        with self._lock:
            now = self._records.get(record.session_id)
            return now is not None and now.num_said == record.num_said and now.num_suspended > 0

    def delete(self, record: Record) -> Future[bool]:
        """Delete it. True when it is off the medium too: no crash restores it. Raises UnknownSession if it
        was deleted before."""
        self.find_again(record)
        with self._lock:
            return self._drop(record.session_id, durable=True)

    def sync(self, session_id: str) -> Future[bool]:
        """True when the session's current state is on the medium; immediately without a file. Raises
        SessionRefused if the file is missing from its path."""
        with self._lock:
            return _at_once() if self._file is None else self._file.sync(self._records.get(session_id))

    def close(self) -> None:
        """Write the rest, and close the file. Idempotent."""
        if self._file is not None:
            self._file.close()

    # Under the lock, so the file receives changes in order.

    def _drop(self, session_id: str, *, durable: bool = False) -> Future[bool]:
        self._records.pop(session_id, None)
        return _at_once() if self._file is None else self._file.erase(session_id, durable=durable)

    def _put(self, record: Record) -> None:
        if self._file is not None:
            self._file.put(record)

    def _purge(self, now: float) -> None:
        """Forget sessions that have expired, unless a turn runs."""
        busy = set(self._turns.values())
        gone = [r.session_id for r in self._records.values() if r.expires <= now and r.session_id not in busy]
        for session_id in gone:
            self._drop(session_id)  # if it reappears after a crash, it is expired

    def _use(self, session_id: str, tokens: array[int] | None = None, num_shared: int = 0) -> bool:
        """Set its time of use, and its tokens if given. Returns False if it does not exist."""
        record = self._records.get(session_id)
        if record is None:
            return False
        record = replace(record, used=self._clock())
        if tokens is not None:
            said = len(record.tokens)
            goes_on = len(tokens) > said and tokens[:said] == record.tokens
            ends = record.turn_ends.with_turn(len(tokens), goes_on=goes_on)
            record = replace(
                record,
                tokens=tokens,
                num_shared=num_shared,
                num_suspended=0,
                turn_ends=ends,
                num_said=record.num_said + 1,
            )
            self._put(record)
        elif self._file is not None:
            self._file.touch(record)
        self._records[session_id] = record
        return True


def needed_s(namespace: Path, now: float) -> float:
    """Seconds from `now` for which a conversation in that folder of the disk cache may need its blocks."""
    return longest_ttl(namespace / SESSIONS_FILE, now - GRACE_S) + GRACE_S


def _graced(record: Record, now: float) -> Record:
    """The record with a time of use in the past that keeps it for the grace period."""
    least = now - record.ttl_s + min(record.ttl_s, GRACE_S) if record.expires <= now else record.used
    return replace(record, used=min(least, now))


def _unknown(session_id: str, kind: ConversationKind) -> UnknownSession:
    if kind is ConversationKind.SESSION:
        text = f"there is no session {session_id[:40]!r}: it never was, has expired or was deleted"
        return UnknownSession(text, param="session")
    return UnknownSession(
        f"there is no response {session_id[:80]!r}: it never was, was not stored, has expired, gave way to "
        "newer ones or was deleted",
        param="response_id",
        code="response_not_found",
    )


def _at_once() -> Future[bool]:
    """The result without a file."""
    done: Future[bool] = Future()
    done.set_result(True)
    return done


def open_sessions(
    namespace: Path | None, clock: SteadyClock | None = None, slot: int | None = None
) -> ConversationStore:
    """The sessions stored with the blocks on disk; without a disk cache they end with the process. `slot`:
    see `ConversationStore`."""
    if namespace is None:
        return ConversationStore(clock, slot)
    path = namespace / SESSIONS_FILE
    try:
        sessions = ConversationStore.open(path, clock=clock, slot=slot)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"the sessions in {path} cannot be used: {error}; make room, or move it") from None
    if sessions.reset_reason:
        log.warning("the sessions in %s are lost: %s", path, sessions.reset_reason)
    if sessions.num_graced:
        log.warning(
            "%s sessions or responses in %s seem to have expired meanwhile; they are kept for up to %s more",
            f"{sessions.num_graced:,}",
            path,
            format_age(GRACE_S),
        )
    return sessions
