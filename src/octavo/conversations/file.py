"""The file of conversations: a table, written behind by a thread of its own.

    sessions.sqlite    sessions: id | tenant | tokens | ttl_ms | created_ms | used_ms
                                 | num_shared | num_suspended | turn_ends | document

It is in the disk cache's namespace, and so belongs to one model and one tokenizer. Changes are written in the
order of the calls. Failed deletions are retried with the next one, and at the end. `ConversationStore` knows
which sessions exist, not this module.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from octavo.conversations.record import (
    COLUMNS,
    LATER,
    NUM_COLUMNS,
    TTL_S_MAX,
    Record,
    from_row,
    to_row,
)
from octavo.database import is_trouble, open_database, reset_database, transaction
from octavo.errors import SessionRefused
from octavo.files import Files, OpenPaths, vanished_message

log = logging.getLogger("octavo.sessions")

SESSIONS_FILE = "sessions.sqlite"  # in the disk cache's namespace
_SCHEMAS = [f"CREATE TABLE sessions ({', '.join((COLUMNS, *LATER[:n]))})" for n in range(len(LATER) + 1)]
_INSERT = f"INSERT OR REPLACE INTO sessions VALUES ({', '.join('?' * NUM_COLUMNS)})"

_TOUCH = "UPDATE sessions SET used_ms = ? WHERE id = ?"


class RecordFile:
    """An open file. Any thread may call; the work runs on the writer's thread."""

    def __init__(self, database: sqlite3.Connection, where: OpenPaths, reset_reason: str = "") -> None:
        self.reset_reason = reset_reason  # why the old content was dropped
        self.errors = 0  # writes that failed
        self._database = database
        self._where = where
        self._lock = threading.Lock()
        self._writer: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "octavo-sessions")
        self._undeleted: set[str] = set()  # rows still to be deleted; the writer's
        self._unwritten: set[str] = set()  # ids whose row is out of date; the writer's
        self._vanished: Path | None = None  # the path logged last as missing; the writer's

    def put(self, record: Record) -> None:
        """Write the row of a record."""
        self._submit(lambda: self._write(record, durable=False))

    def touch(self, record: Record) -> None:
        """Update only the time of last use in its row."""
        self._submit(lambda: self._touch(record))

    def erase(self, session_id: str, *, durable: bool) -> Future[bool]:
        """Delete its row; true when that is done, and with `durable` survives a crash."""
        return self._submit(lambda: self._erase(session_id, durable=durable))

    def sync(self, record: Record | None) -> Future[bool]:
        """True when its row is up to date on the medium; false without a record. Raises SessionRefused if the
        file is missing from its path."""
        return self._submit(lambda: self._write_to_find(record))

    def close(self) -> None:
        """Write the rest, and close the file. Idempotent."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.submit(lambda: not self._undeleted or self._erase("", durable=True))
            writer.shutdown(wait=True)
            with contextlib.suppress(sqlite3.Error):
                self._database.close()

    def _submit(self, work: Callable[[], bool]) -> Future[bool]:
        """Run in order; false after `close`."""
        with self._lock:
            if self._writer is not None:
                return self._writer.submit(work)
        done: Future[bool] = Future()
        done.set_result(False)
        return done

    # On the writer's thread.

    def _erase(self, session_id: str, *, durable: bool) -> bool:
        """Delete its row, and rows whose deletion failed before."""
        self._undeleted.add(session_id)
        self._unwritten.discard(session_id)
        for one in sorted(self._undeleted):
            if not self._execute("DELETE FROM sessions WHERE id = ?", (one,), durable=durable):
                return False
            self._undeleted.discard(one)
        return True

    def _write_to_find(self, record: Record | None) -> bool:
        """Write it, synced, to a path where a restart finds it."""
        if record is None or not self._write(record, durable=True):
            return False
        before, self._vanished = self._vanished, self._where.find_vanished()
        if self._vanished is not None:
            if before is None:
                log.error("%s", vanished_message(self._vanished))
            raise SessionRefused(vanished_message(self._vanished))
        return True

    def _write(self, record: Record, *, durable: bool) -> bool:
        self._unwritten.add(record.session_id)
        if not self._execute(_INSERT, to_row(record), durable=durable):
            return False
        self._unwritten.discard(record.session_id)
        return True

    def _touch(self, record: Record) -> bool:
        """Write neither tokens nor document again: both may be large."""
        if record.session_id in self._unwritten:
            return self._write(record, durable=False)
        return self._execute(_TOUCH, (int(record.used * 1000), record.session_id), durable=False)

    def _execute(self, sql: str, row: tuple[int | str | bytes, ...], *, durable: bool) -> bool:
        """Returns False and logs the error if it failed."""
        try:
            with transaction(self._database, durable=durable):
                self._database.execute(sql, row)
        except sqlite3.Error as error:
            self.errors += 1
            log.warning("a session could not be written: %s", error)
            return False
        return True


def open_file(path: Path, files: Files) -> tuple[RecordFile, list[Record]]:
    """The file, or a new one, and its records, oldest first. A damaged file is replaced by an empty one.
    Raises sqlite3.Error or OSError for trouble with the disk itself, or if another process has the file; then
    it is left as it is."""
    database, records, reset_reason = None, list[Record](), ""
    if path.exists():
        try:
            database = open_database(files.connect, path)
            records = _load(database)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if database is not None:
                with contextlib.suppress(sqlite3.Error):
                    database.close()
            if isinstance(error, sqlite3.Error) and is_trouble(error):
                raise
            database, reset_reason = None, f"its file was damaged ({error})"
    if database is None:
        database = reset_database(files.connect, files.remove, path)
        database.execute(_SCHEMAS[-1])
    where = OpenPaths(files, [path, path.with_name(path.name + "-wal")])
    return RecordFile(database, where, reset_reason), records


def longest_ttl(path: Path, now: float, files: Files | None = None) -> float:
    """The longest ttl, in seconds, of the sessions in a file that have not expired at `now`; 0.0 without any;
    the longest allowed one if the file cannot be read."""
    if not path.exists():
        return 0.0
    try:
        database = open_database((files or Files()).connect, path)
        try:
            sql = "SELECT max(ttl_ms) FROM sessions WHERE used_ms + ttl_ms > ?"
            [found] = database.execute(sql, (int(now * 1000),)).fetchone()
        finally:
            database.close()
    except sqlite3.Error:
        return TTL_S_MAX
    return min(found / 1000, TTL_S_MAX) if isinstance(found, int) else 0.0


def _load(database: sqlite3.Connection) -> list[Record]:
    """The file's records, oldest first. Raises sqlite3.DatabaseError for a file of another kind."""
    verdict = database.execute("PRAGMA quick_check(1)").fetchone()
    schema = database.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()
    if verdict != ("ok",) or schema not in [[(one,)] for one in _SCHEMAS]:
        raise sqlite3.DatabaseError(f"{verdict[0]}, or other tables")
    # Each statement adds one column: after a crash in between, the next start continues.
    for later in LATER[_SCHEMAS.index(schema[0][0]) :]:
        database.execute(f"ALTER TABLE sessions ADD COLUMN {later}")
    rows = map(from_row, database.execute("SELECT * FROM sessions"))  # in the schema's order
    return sorted((record for record in rows if record is not None), key=lambda record: record.created)
