"""SQLite files are opened in one way: private, logged ahead, one writer, all or nothing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest

import octavo
from octavo.database import connect, connect_unchanged, is_trouble, open_database, reset_database, transaction


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a file?.sqlite"  # as a URI it must be quoted


def rows(path: Path) -> list[object]:
    with contextlib.closing(connect_unchanged(path)) as database:
        return database.execute("SELECT * FROM t").fetchall()


def write_and_fail(database: sqlite3.Connection) -> None:
    with transaction(database, durable=False):
        database.execute("INSERT INTO t VALUES (2)")
        database.execute("INSERT INTO nothing VALUES (3)")


def test_a_new_file_and_its_log_are_this_users_alone(path: Path) -> None:
    before = os.umask(0o022)
    try:
        with contextlib.closing(open_database(connect, path)) as database:
            database.execute("CREATE TABLE t (a)")
            kinds = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert kinds == {path.name: 0o600, path.name + "-wal": 0o600}


def test_a_second_writer_is_refused_at_once_and_blames_no_content(path: Path) -> None:
    with contextlib.closing(open_database(connect, path)) as database:
        database.execute("CREATE TABLE t (a)")
        with pytest.raises(sqlite3.OperationalError) as caught:
            open_database(connect, path)
    assert is_trouble(caught.value)


def test_what_raises_in_a_transaction_is_undone(path: Path) -> None:
    with contextlib.closing(open_database(connect, path)) as database:
        database.execute("CREATE TABLE t (a)")
        with transaction(database, durable=True):
            database.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.OperationalError):
            write_and_fail(database)
        assert not database.in_transaction
    assert rows(path) == [(1,)]


def test_nothing_of_a_file_that_is_begun_again_is_left(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal", ""):
        path.with_name(path.name + suffix).write_bytes(b"of another")
    with pytest.raises(sqlite3.DatabaseError) as caught:
        open_database(connect, path)
    assert not is_trouble(caught.value)
    removed: list[Path] = []

    def remove(one: Path) -> None:
        removed.append(one)
        one.unlink(missing_ok=True)

    with contextlib.closing(reset_database(connect, remove, path)) as database:
        database.execute("CREATE TABLE t (a)")
    assert removed[-1] == path, "a log without its database is never replayed"
    assert rows(path) == []


def test_one_module_opens_databases() -> None:
    sources = Path(octavo.__file__).parent.rglob("*.py")
    assert [one.name for one in sources if "sqlite3.connect(" in one.read_text()] == ["database.py"]
