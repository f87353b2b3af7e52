"""What is remembered of chat sessions: whose they are, and the token ids of all that was said.

    sessions.sqlite    sessions: id | tenant | tokens | ttl_ms | created_ms | used_ms
                                 | num_shared | num_suspended | turn_ends

It answers from memory. With a file, which lies in the disk cache's namespace and so belongs to one model and
one tokenizer, every change is written behind by a thread of its own; `sync` waits until one is on the medium,
and so may a caller that deletes one. Rows that could not be deleted are tried again with the next one, and at
the end. A file that SQLite finds damaged costs the sessions in it, never an answer, and is begun afresh.
Times are of the wall clock, because they outlive the process. Any thread may call. It does not know blocks:
`num_shared` and `num_suspended` are numbers that the scheduler gave it, and gets back with the tokens.
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
from dataclasses import dataclass, field, replace
from pathlib import Path

from octavo.engine.turn_ends import TurnEnds
from octavo.errors import InvalidRequest, SessionBusy, SessionRefused, UnknownSession, require_range
from octavo.executor.disk_index import is_trouble
from octavo.files import Database, Files, OsFiles, Whereabouts, vanished_in_words

log = logging.getLogger("octavo.sessions")

SESSIONS_FILE = "sessions.sqlite"  # in the disk cache's namespace
SESSIONS_MAX = 1024  # of a tenant
TTL_S_MAX = 30 * 86_400.0
_ID_BYTES = 18
_COLUMNS = "id PRIMARY KEY, tenant, tokens, ttl_ms, created_ms, used_ms"
# Columns that older files lack, as they came.
_LATER = ("num_shared DEFAULT 0", "num_suspended DEFAULT 0", "turn_ends DEFAULT x''")
_SCHEMAS = [f"CREATE TABLE sessions ({', '.join((_COLUMNS, *_LATER[:n]))})" for n in range(len(_LATER) + 1)]


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session. Times are seconds of the wall clock. The tokens never change."""

    session_id: str
    tenant: str
    ttl_s: float
    created: float
    used: float
    # Prompt and output of its turns so far. An array, because there may be very many: 4 bytes each.
    tokens: array[int] = field(default_factory=lambda: array("I"))
    num_shared: int = 0  # of the blocks that they fill, the leading ones under names of all tenants
    num_suspended: int = 0  # of these blocks, those that were suspended, and no turn has ended well since
    turn_ends: TurnEnds = field(default_factory=TurnEnds)

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
        self._turns: dict[object, str] = {}  # guarded by _lock: turns that run, and the ids of their sessions
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._undeleted: set[str] = set()  # rows that should not be there; the writer's
        self._where = Whereabouts(OsFiles(), [])
        self._vanished: Path | None = None  # what was told of last; the writer's

    @classmethod
    def open(
        cls, path: Path, files: Files | None = None, clock: Callable[[], float] = time.time
    ) -> SessionStore:
        """The sessions in a file, or a new file. Raises sqlite3.Error or OSError for trouble with the disk
        itself, or where another process has the file; then it is left as it is."""
        files, store = files or OsFiles(), cls(clock)
        if path.exists():
            try:
                store._database = _connect(files, path)
                store._load()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if store._database is not None:
                    with contextlib.suppress(sqlite3.Error):
                        store._database.close()
                if isinstance(error, sqlite3.Error) and is_trouble(error):
                    raise
                store.opened_afresh = f"its file was damaged ({error})"
                store._records.clear()
                store._database = None
        if store._database is None:
            for suffix in ("-wal", "-shm", "-journal", ""):
                files.remove(path.with_name(path.name + suffix))
            store._database = _connect(files, path)
            store._database.execute(_SCHEMAS[-1])
        store._where = Whereabouts(files, [path, path.with_name(path.name + "-wal")])
        store._writer = ThreadPoolExecutor(1, "octavo-sessions")
        return store

    def create(self, tenant: str, ttl_s: float) -> SessionRecord:
        """A new session, with an id that cannot be guessed. Raises InvalidRequest or SessionRefused."""
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        now = self._clock()
        return self._add(SessionRecord(secrets.token_urlsafe(_ID_BYTES), tenant, ttl_s, now, now))

    def fork(
        self, source: SessionRecord, turn: int | None = None, ttl_s: float | None = None
    ) -> SessionRecord:
        """A new session of its tenant, in which the first `turn` turns of that record were said, or all; its
        ttl is the same where none is given. Raises InvalidRequest or SessionRefused. O(tokens)."""
        if not source.tokens:
            raise InvalidRequest(
                f"nothing was said in session {source.session_id}; allowed: to fork one in which a turn has "
                "ended",
                param="session",
            )
        ttl_s = source.ttl_s if ttl_s is None else ttl_s
        require_range("ttl", ttl_s, 1.0, TTL_S_MAX, hint="seconds")
        ends, now = source.turn_ends.until(turn), self._clock()
        session_id, tokens = secrets.token_urlsafe(_ID_BYTES), source.tokens[: ends.ends[-1]]
        num_shared = min(source.num_shared, len(tokens))
        return self._add(
            SessionRecord(session_id, source.tenant, ttl_s, now, now, tokens, num_shared, turn_ends=ends)
        )

    def _add(self, record: SessionRecord) -> SessionRecord:
        with self._lock:
            self._purge(record.created)
            count = sum(other.tenant == record.tenant for other in self._records.values())
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
            is_busy = session_id in self._turns.values()
        if record is None or record.tenant != tenant or (record.expires <= self._clock() and not is_busy):
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

    def latest(self, tenant: str | None, limit: int) -> list[SessionRecord]:
        """Up to so many of `all`, oldest first: those whose turn runs, then those that were used last."""
        records = self.all(tenant)
        with self._lock:
            busy = set(self._turns.values())
        ranked = sorted(records, key=lambda r: (r.session_id in busy, r.used), reverse=True)
        chosen = {record.session_id for record in ranked[:limit]}
        return [record for record in records if record.session_id in chosen]

    def seconds_left(self, record: SessionRecord) -> float:
        """Until it is forgotten."""
        return max(0.0, record.expires - self._clock())

    def check_turn(self, record: SessionRecord) -> None:
        """Raise SessionBusy unless a turn that goes on from this record may begin: another one has not told
        yet what was said in it, or has done so since."""
        with self._lock:
            is_active = record.session_id in self._turns.values()
            now = self._records.get(record.session_id, record)
        if is_active or now.tokens is not record.tokens:
            what = "session {} is active" if is_active else "another turn has ended meanwhile in session {}"
            raise SessionBusy(
                f"{what.format(record.session_id)}; allowed: one turn at a time, which sends what was said "
                "in the one before it"
            )

    def begin_turn(self, session_id: str, turn: object) -> None:
        """A turn runs: until `end_turn`, the session does not expire. `turn` is any key of the turn's own."""
        with self._lock:
            self._turns[turn] = session_id
            self._use(session_id)

    def end_turn(self, turn: object) -> None:
        """It does not run any more. Again, or of one that never began, does nothing."""
        with self._lock:
            session_id = self._turns.pop(turn, None)
            if session_id is not None:
                self._use(session_id)

    def say(self, session_id: str, tokens: Sequence[int], num_shared: int = 0) -> bool:
        """A turn has ended well: these are all tokens so far, and so many of their leading blocks have names
        of all tenants. Where they do not begin with those before, no earlier turn can be forked any more.
        False: the session was deleted meanwhile."""
        with self._lock:
            return self._use(session_id, array("I", tokens), num_shared)

    def record_suspended(self, record: SessionRecord, num_blocks: int) -> None:
        """It was suspended, as this record says, with so many blocks: a restart keeps these first. Does
        nothing if a turn has ended well since, or it was deleted."""
        with self._lock:
            now = self._records.get(record.session_id)
            if now is not None and now.tokens is record.tokens and now.num_suspended != num_blocks:
                self._records[now.session_id] = now = replace(now, num_suspended=num_blocks)
                self._put(now)

    def is_suspended(self, record: SessionRecord) -> bool:
        """Whether it is now, as this record says and the thread that noted it."""
        with self._lock:
            now = self._records.get(record.session_id)
            return now is not None and now.tokens is record.tokens and now.num_suspended > 0

    def delete(self, tenant: str, session_id: str) -> Future[bool]:
        """Remember nothing of it. True when the medium does not either: no crash brings it back. Raises
        UnknownSession."""
        self.find(tenant, session_id)
        with self._lock:
            self._records.pop(session_id, None)
            if self._writer is not None:
                return self._writer.submit(self._erase, session_id, durable=True)
        return self._without_file()

    def sync(self, session_id: str) -> Future[bool]:
        """True when the session, as it is now, is on the medium; at once where there is no file.
        SessionRefused where the file is not where it was."""
        with self._lock:
            record = self._records.get(session_id)
            if self._writer is not None:
                return self._writer.submit(self._write_to_find, record)
        return self._without_file()

    def close(self) -> None:
        """Write what is left, and let go of the file. Again does nothing."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None and self._database is not None:
            writer.submit(lambda: not self._undeleted or self._erase("", durable=True))
            writer.shutdown(wait=True)
            with contextlib.suppress(sqlite3.Error):
                self._database.close()

    def _without_file(self) -> Future[bool]:
        """True where there never was a file to wait for; False when it was closed."""
        done: Future[bool] = Future()
        done.set_result(self._database is None)
        return done

    def _purge(self, now: float) -> None:
        """Forget sessions that have expired, unless a turn runs."""
        busy = set(self._turns.values())
        gone = [r.session_id for r in self._records.values() if r.expires <= now and r.session_id not in busy]
        for session_id in gone:
            del self._records[session_id]
            if self._writer is not None:  # should it be there again, it has expired all the same
                self._writer.submit(self._erase, session_id, durable=False)

    def _use(self, session_id: str, tokens: array[int] | None = None, num_shared: int = 0) -> bool:
        """It was used now, and has these tokens. False: there is none."""
        record = self._records.get(session_id)
        if record is None:
            return False
        record = replace(record, used=self._clock())
        if tokens is not None:
            said = len(record.tokens)
            ends = record.turn_ends.with_turn(
                len(tokens), goes_on=len(tokens) > said and tokens[:said] == record.tokens
            )
            record = replace(record, tokens=tokens, num_shared=num_shared, num_suspended=0, turn_ends=ends)
        self._records[session_id] = record
        self._put(record)
        return True

    # Under the lock, so that the file sees changes in the order in which they were made.

    def _put(self, record: SessionRecord) -> None:
        if self._writer is not None:
            self._writer.submit(self._write, record, durable=False)

    def _erase(self, session_id: str, *, durable: bool) -> bool:
        """On the writer's thread: its row goes, and whatever should have gone before."""
        self._undeleted.add(session_id)
        for one in sorted(self._undeleted):
            if not self._execute("DELETE FROM sessions WHERE id = ?", (one,), durable=durable):
                return False
            self._undeleted.discard(one)
        return True

    def _write_to_find(self, record: SessionRecord | None) -> bool:
        """On the writer's thread: written, synced, and where a restart looks for it."""
        if record is None or not self._write(record, durable=True):
            return False
        before, self._vanished = self._vanished, self._where.find_vanished()
        if self._vanished is not None:
            if before is None:
                log.error("%s", vanished_in_words(self._vanished))
            raise SessionRefused(vanished_in_words(self._vanished))
        return True

    def _write(self, record: SessionRecord, *, durable: bool) -> bool:
        row = (
            record.session_id,
            record.tenant,
            record.tokens.tobytes(),
            int(record.ttl_s * 1000),
            int(record.created * 1000),
            int(record.used * 1000),
            record.num_shared,
            record.num_suspended,
            record.turn_ends.to_bytes(),
        )
        sql = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        return self._execute(sql, row, durable=durable)

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
        if verdict != ("ok",) or schema not in [[(one,)] for one in _SCHEMAS]:
            raise sqlite3.DatabaseError(f"{verdict[0]}, or other tables")
        # Each adds one column, in one statement: after a crash in between, the next start goes on from there.
        for later in _LATER[_SCHEMAS.index(schema[0][0]) :]:
            database.execute(f"ALTER TABLE sessions ADD COLUMN {later}")
        for row in database.execute("SELECT * FROM sessions"):  # in the schema's order
            record = _record(*row)
            if record is not None:
                self._records[record.session_id] = record
        self._records = dict(sorted(self._records.items(), key=lambda item: item[1].created))


def longest_ttl(path: Path, now: float, files: Files | None = None) -> float:
    """The longest ttl, in seconds, of the sessions in a file that have not expired at `now`; 0.0 where there
    is none, and the longest that may be where the file does not tell."""
    if not path.exists():
        return 0.0
    try:
        database = _connect(files or OsFiles(), path)
        try:
            sql = "SELECT max(ttl_ms) FROM sessions WHERE used_ms + ttl_ms > ?"
            [found] = database.execute(sql, (int(now * 1000),)).fetchone()
        finally:
            database.close()
    except sqlite3.Error:
        return TTL_S_MAX
    return min(found / 1000, TTL_S_MAX) if isinstance(found, int) else 0.0


def _record(
    session_id: object,
    tenant: object,
    tokens: object,
    ttl_ms: object,
    created_ms: object,
    used_ms: object,
    num_shared: object,
    num_suspended: object,
    turn_ends: object,
) -> SessionRecord | None:
    """A row as a record, unless it makes no sense."""
    if not (isinstance(session_id, str) and isinstance(tenant, str) and isinstance(tokens, bytes)):
        return None
    if not (isinstance(ttl_ms, int) and isinstance(created_ms, int) and isinstance(used_ms, int)):
        return None
    if len(tokens) % 4 or not 0 < ttl_ms <= TTL_S_MAX * 1000:
        return None
    if not (isinstance(num_shared, int) and isinstance(num_suspended, int)):
        return None
    if not 0 <= min(num_shared, num_suspended) <= max(num_shared, num_suspended) <= len(tokens) // 4:
        return None
    said = array("I")
    said.frombytes(tokens)
    times = ttl_ms / 1000, created_ms / 1000, used_ms / 1000
    ends = TurnEnds.from_bytes(turn_ends, len(said))
    return SessionRecord(session_id, tenant, *times, said, num_shared, num_suspended, ends)


def _connect(files: Files, path: Path) -> Database:
    database = files.connect(path)
    try:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
    except BaseException:
        database.close()
        raise
    return database
