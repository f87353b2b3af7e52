"""SQLite files of ours: opened, changed and judged in one way, whoever's they are.

    connect            a new file is this user's alone; no waiting for another's lock; autocommit
    open_database      the write-ahead log, in exclusive mode: no shared memory, no second writer
    begin_anew         the same of an empty file, in place of what lay there
    transaction        all or nothing; a `durable` one waits until the medium has the log
    connect_unchanged  to read a file that no process writes, and leave it as it is
    is_trouble         whether an error blames the disk, or the file's content

A transaction that is not durable survives the death of the process, and not a power cut. Nothing here
retries or hides an error, and it knows no table.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

# What a column of ours holds.
SqlValue = int | str | bytes
Connect = Callable[[Path], sqlite3.Connection]

# SQLite's primary error codes that blame the disk, the folder or another process, and not the file's content.
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
    """True when it blames the disk, the folder or another process: the file's content may be well."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _TROUBLES


def connect(path: Path) -> sqlite3.Connection:
    """The database, made empty if it is not there, in autocommit mode: BEGIN and COMMIT are said aloud.
    Opened by one thread and used by another, never by two at once. Raises sqlite3.Error."""
    # A file that is there is never opened here: to close it would take away SQLite's locks on it. Where none
    # can be made, SQLite says why.
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def connect_unchanged(path: Path) -> sqlite3.Connection:
    """A database that no process writes, to read; what only its log knows is left out. Raises
    sqlite3.Error."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)


def open_database(connect: Connect, path: Path) -> sqlite3.Connection:
    """The database as this process alone writes it. Raises sqlite3.Error."""
    database = connect(path)
    try:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
    except BaseException:
        database.close()
        raise
    return database


def begin_anew(connect: Connect, remove: Callable[[Path], None], path: Path) -> sqlite3.Connection:
    """An empty database in place of whatever lies there. Raises sqlite3.Error or OSError."""
    # The logs first: a log without its database must never be replayed into a new one.
    for suffix in ("-wal", "-shm", "-journal", ""):
        remove(path.with_name(path.name + suffix))
    return open_database(connect, path)


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, *, durable: bool) -> Iterator[None]:
    """Everything until the end of the block, or nothing. Raises sqlite3.Error, and then it is undone, except
    that a `durable` one may still be found after a crash."""
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
