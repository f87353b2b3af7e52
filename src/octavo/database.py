"""Octavo's SQLite files: the common way to open them, change them and classify their errors.

    connect            a new file is private to this user; never waits for another's lock; autocommit
    open_database      the write-ahead log, in exclusive mode: no shared memory, no second writer
    reset_database     the same for an empty file, which replaces the existing one
    transaction        all or nothing; a `durable` one waits until the log is on the medium
    connect_unchanged  to read a file that no process writes, without changing it
    is_trouble         whether an error is the disk's, or of the file's content

A transaction that is not durable survives the death of the process, and not a power cut. Nothing here retries
or hides an error, and it knows no table.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

# The types of columns.
SqlValue = int | str | bytes
Connect = Callable[[Path], sqlite3.Connection]

# SQLite's primary error codes for the disk, the folder or another process, not for the file's content.
_TROUBLES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
}


def is_trouble(error: sqlite3.Error) -> bool:
    """True for an error of the disk, the folder or another process: the file's content may be intact."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _TROUBLES


def connect(path: Path) -> sqlite3.Connection:
    """The database, created empty if it does not exist, in autocommit mode: BEGIN and COMMIT are explicit.
    One thread may open it and another use it, never two at once. Raises sqlite3.Error."""
    # An existing file is never opened here: closing it would drop SQLite's locks on it. If the file cannot be
    # created, SQLite reports why.
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def connect_unchanged(path: Path) -> sqlite3.Connection:
    """A database that no process writes, for reading, without changes that are only in its log. Raises
    sqlite3.Error."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)


def open_database(connect: Connect, path: Path) -> sqlite3.Connection:
    """The database, for this process alone. Raises sqlite3.Error."""
    database = connect(path)
    try:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
    except BaseException:
        database.close()
        raise
    return database


def reset_database(connect: Connect, remove: Callable[[Path], None], path: Path) -> sqlite3.Connection:
    """An empty database that replaces the existing one. Raises sqlite3.Error or OSError."""
    # Remove the logs first: a log without its database must never be replayed into a new one.
    for suffix in ("-wal", "-shm", "-journal", ""):
        remove(path.with_name(path.name + suffix))
    return open_database(connect, path)


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, *, durable: bool) -> Iterator[None]:
    """Commit the body as a whole, or not at all. Raises sqlite3.Error, and then it is undone, except that a
    `durable` one may still be found after a crash."""
    if database.in_transaction:  # an earlier one could not even be undone
        database.rollback()
    database.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except sqlite3.Error:
        with contextlib.suppress(sqlite3.Error):
            database.rollback()
        raise
