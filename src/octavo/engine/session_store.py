"""What is remembered of chat sessions: whose they are, and the token ids of all that was said.

    sessions.sqlite    sessions: id | tenant | tokens | ttl_ms | created_ms | used_ms

It answers from memory. With a file, which lies in the disk cache's namespace and so belongs to one model and
one tokenizer, every change is written behind by a thread of its own; `sync` waits until one is on the medium.
A file that SQLite finds damaged costs the sessions in it, never an answer, and is begun afresh. Times are of
the wall clock, because they outlive the process. Any thread may call. It does not know blocks.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.errors import SessionRefused, UnknownSession, require_range
from octavo.files import Database, Files, OsFiles

log = logging.getLogger("octavo.sessions")

SESSIONS_MAX = 1024  # of a tenant
TTL_S_MAX = 30 * 86_400.0
_ID_BYTES = 18
_SCHEMA = "CREATE TABLE sessions (id PRIMARY KEY, tenant, tokens, ttl_ms, created_ms, used_ms)"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session. Times are seconds of the wall clock."""

    session_id: str
    tenant: str
    ttl_s: float
    created: float
    used: float
    tokens: tuple[int, ...] = ()  # prompt and output of its turns so far

    @property
    def expires(self) -> float:
        """When it is forgotten, unless a turn comes before."""
        return self.used + self.ttl_s


class SessionStore:
    """All sessions of a server, or of a script."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.opened_afresh = ""  # why what was in the file was given up
        self.errors = 0  # writes that failed
        self._clock = clock
        self._records: dict[str, SessionRecord] = {}  # guarded by _lock
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._writer: ThreadPoolExecutor | None = None

    @classmethod
    def open(
        cls, path: Path, files: Files | None = None, clock: Callable[[], float] = time.time
    ) -> SessionStore:
        """The sessions in a file, or a new file. Raises sqlite3.Error or OSError for trouble with the disk
        itself."""
        files, store = files or OsFiles(), cls(clock)
        if path.exists():
            try:
                store._database = _connect(files, path)
                store._load()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                store.opened_afresh = f"its file was damaged ({error})"
                store._records.clear()
                if store._database is not None:
                    with contextlib.suppress(sqlite3.Error):
                        store._database.close()
                store._database = None
        if store._database is None:
            for suffix in ("-wal", "-shm", "-journal", ""):
                files.remove(path.with_name(path.name + suffix))
            store._database = _connect(files, path)
            store._database.execute(_SCHEMA)
        store._writer = ThreadPoolExecutor(1, "octavo-sessions")
        return store

    def create(self, tenant: str, ttl_s: float) -> SessionRecord:
        """A new session, with an id that nobody can guess. Raises InvalidRequest or SessionRefused."""
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        now = self._clock()
        record = SessionRecord(secrets.token_urlsafe(_ID_BYTES), tenant, ttl_s, now, now)
        with self._lock:
            self._purge(now)
            count = sum(other.tenant == tenant for other in self._records.values())
            if count >= SESSIONS_MAX:
                raise SessionRefused(
                    f"there are {count:,} sessions; allowed: {SESSIONS_MAX:,}; delete some, or wait until "
                    "they expire"
                )
            self._records[record.session_id] = record
            self._put(record)
        return record

    def find(self, tenant: str, session_id: str) -> SessionRecord:
        """The tenant's session. Raises UnknownSession, also for one that has expired or is another's."""
        with self._lock:
            record = self._records.get(session_id)
        if record is None or record.tenant != tenant or record.expires <= self._clock():
            raise UnknownSession(
                f"there is no session {session_id[:40]!r}: it never was, has expired or was deleted",
                param="session",
            )
        return record

    def all(self, tenant: str | None = None) -> list[SessionRecord]:
        """The tenant's sessions, or everybody's, oldest first."""
        with self._lock:
            self._purge(self._clock())
            return [record for record in self._records.values() if tenant in (None, record.tenant)]

    def seconds_left(self, record: SessionRecord) -> float:
        """Until it is forgotten."""
        return max(0.0, record.expires - self._clock())

    def say(self, session_id: str, tokens: Sequence[int]) -> None:
        """A turn has ended: these are all tokens so far."""
        with self._lock:
            record = self._records.get(session_id)
            if record is None:
                return  # it was deleted meanwhile
            record = replace(record, tokens=tuple(tokens), used=self._clock())
            self._records[session_id] = record
            self._put(record)

    def delete(self, tenant: str, session_id: str) -> SessionRecord:
        """Remember nothing of it. Raises UnknownSession."""
        record = self.find(tenant, session_id)
        with self._lock:
            self._records.pop(session_id, None)
            self._remove(session_id)
        return record

    def sync(self, session_id: str) -> Future[bool]:
        """True when the session, as it is now, is on the medium; at once where there is no file."""
        with self._lock:
            record = self._records.get(session_id)
            if self._writer is not None:
                return self._writer.submit(lambda: record is not None and self._write(record, durable=True))
        done: Future[bool] = Future()
        done.set_result(self._database is None)
        return done

    def close(self) -> None:
        """Write what is left, and let go of the file. Again does nothing."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None and self._database is not None:
            writer.shutdown(wait=True)
            with contextlib.suppress(sqlite3.Error):
                self._database.close()

    def _purge(self, now: float) -> None:
        """Forget whoever has expired."""
        gone = [record.session_id for record in self._records.values() if record.expires <= now]
        for session_id in gone:
            del self._records[session_id]
            self._remove(session_id)

    # Under the lock, so that the file sees changes in the order in which they were made.

    def _put(self, record: SessionRecord) -> None:
        if self._writer is not None:
            self._writer.submit(self._write, record, durable=False)

    def _remove(self, session_id: str) -> None:
        if self._writer is not None:
            sql = "DELETE FROM sessions WHERE id = ?"
            self._writer.submit(self._execute, sql, (session_id,), durable=False)

    def _write(self, record: SessionRecord, *, durable: bool) -> bool:
        row = (
            record.session_id,
            record.tenant,
            array("I", record.tokens).tobytes(),
            int(record.ttl_s * 1000),
            int(record.created * 1000),
            int(record.used * 1000),
        )
        return self._execute(
            "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?)", row, durable=durable
        )

    def _execute(self, sql: str, row: tuple[int | str | bytes, ...], *, durable: bool) -> bool:
        """On the writer's thread. False: it is not in the file, and the log says why."""
        database = self._database
        assert database is not None
        try:
            if database.in_transaction:  # an earlier one could not even be undone
                database.rollback()
            database.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            database.execute("BEGIN IMMEDIATE")
            database.execute(sql, row)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            self.errors += 1
            log.warning("a session could not be written: %s", error)
            with contextlib.suppress(sqlite3.Error):
                database.rollback()
            return False
        return True

    def _load(self) -> None:
        """Raises sqlite3.DatabaseError for a file that is not ours."""
        database = self._database
        assert database is not None
        verdict = database.execute("PRAGMA quick_check(1)").fetchone()
        schema = database.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()
        if verdict != ("ok",) or schema != [(_SCHEMA,)]:
            raise sqlite3.DatabaseError(f"{verdict[0]}, or other tables")
        for row in database.execute("SELECT id, tenant, tokens, ttl_ms, created_ms, used_ms FROM sessions"):
            record = _record(*row)
            if record is not None:
                self._records[record.session_id] = record
        self._records = dict(sorted(self._records.items(), key=lambda item: item[1].created))


def _record(
    session_id: object, tenant: object, tokens: object, ttl_ms: object, created_ms: object, used_ms: object
) -> SessionRecord | None:
    """A row as a record, unless it makes no sense."""
    if not (isinstance(session_id, str) and isinstance(tenant, str) and isinstance(tokens, bytes)):
        return None
    if not (isinstance(ttl_ms, int) and isinstance(created_ms, int) and isinstance(used_ms, int)):
        return None
    if len(tokens) % 4 or not 0 < ttl_ms <= TTL_S_MAX * 1000:
        return None
    said = array("I")
    said.frombytes(tokens)
    return SessionRecord(session_id, tenant, ttl_ms / 1000, created_ms / 1000, used_ms / 1000, tuple(said))


def _connect(files: Files, path: Path) -> Database:
    database = files.connect(path)
    try:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
    except BaseException:
        database.close()
        raise
    return database
