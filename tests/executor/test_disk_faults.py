"""Faults of the disk: a store that reports them, and never answers with anything but what was written."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.doubles.faults import Fault, FaultKind, FaultyFiles, at_each
from tests.executor.store import (
    BLOCK,
    NAMESPACE,
    blocks_in,
    bytes_of,
    check_reads_back,
    fetch,
    filled,
    listed,
    name_of,
    open_store,
    put,
    store_with,
)

from octavo.database import SqlValue
from octavo.files import Files


@pytest.mark.parametrize("kind", [FaultKind.ENOSPC, FaultKind.EIO])
def test_a_write_that_fails_is_false_and_leaves_its_slot_empty(tmp_path: Path, kind: FaultKind) -> None:
    filled(tmp_path)
    store, _ = store_with(tmp_path, at_each("pwrite", Fault(kind), 0, 0))
    assert not put(store, 0, 10)
    assert store.errors == 1
    assert os.strerror({"enospc": errno.ENOSPC, "eio": errno.EIO}[kind]) in store.last_error
    assert 0 not in check_reads_back(store)
    assert put(store, 1, 11)
    store.close()
    again = open_store(tmp_path)
    assert check_reads_back(again) == blocks_in((1, 11), (2, 2), (3, 3))
    again.close()


@pytest.mark.parametrize("at", [0, 1, 4096, BLOCK - 1])
def test_short_reads_and_short_writes_are_continued(tmp_path: Path, at: int) -> None:
    def plan(call: int, operation: str) -> Fault | None:
        kinds = {"pread": FaultKind.SHORT_READ, "pwrite": FaultKind.SHORT_WRITE}
        return Fault(kinds[operation], at) if operation in kinds and call % 2 else None

    store, files = store_with(tmp_path, plan)
    wrote = [put(store, slot, slot) for slot in range(4)]
    found = listed(store)
    assert [slot in found for slot in range(4)] == wrote
    got = [fetch(store, slot, name) for slot, name in found.items()]
    assert len(files.struck) == 2 or at == 0
    if at == 0:  # nothing at all came or went: the end of the file, or an error
        assert not all(wrote)
        assert all(answer in (None, bytes_of(name)) for answer, name in zip(got, found.values(), strict=True))
    else:
        assert wrote == [True] * 4
        assert got == [bytes_of(name) for name in found.values()]
        assert (store.damaged, store.errors) == (0, 0)
    store.close()


@pytest.mark.parametrize("kind", [FaultKind.FLIP_READ, FaultKind.FLIP_WRITE])
def test_a_bit_that_flips_on_the_way_is_a_miss(tmp_path: Path, kind: FaultKind) -> None:
    operation = "pread" if kind is FaultKind.FLIP_READ else "pwrite"
    store, _ = store_with(tmp_path, at_each(operation, Fault(kind, 12345), 0, 0))
    assert put(store, 0, 1)
    assert fetch(store, 0, name_of(1)) is None
    assert store.damaged == 1
    assert store.entries() == []
    assert put(store, 0, 2)
    assert fetch(store, 0, name_of(2)) == bytes_of(name_of(2))
    store.close()
    again = open_store(tmp_path)
    assert check_reads_back(again) == blocks_in((0, 2))
    again.close()


def test_a_read_that_fails_is_a_miss_and_not_an_exception(tmp_path: Path) -> None:
    store, _ = store_with(tmp_path, at_each("pread", Fault(FaultKind.EIO), 0, 0))
    assert put(store, 0, 1)
    assert put(store, 1, 2)
    assert fetch(store, 0, name_of(1)) is None
    assert store.errors == 1
    assert check_reads_back(store) == blocks_in((1, 2))
    store.close()


def test_what_a_failed_sync_covered_is_given_up_and_not_synced_again(tmp_path: Path) -> None:
    filled(tmp_path)
    store, _ = store_with(tmp_path, at_each("fdatasync", Fault(FaultKind.EIO), 0, 0))
    assert put(store, 0, 10)
    assert put(store, 1, 11)
    assert not store.commit()
    assert store.errors == 1
    assert check_reads_back(store) == blocks_in((2, 2), (3, 3))
    assert store.commit()
    assert put(store, 0, 20)
    store.close()
    again = open_store(tmp_path)
    assert check_reads_back(again) == blocks_in((0, 20), (2, 2), (3, 3))
    again.close()


@pytest.mark.parametrize("kind, words", [(FaultKind.ENOSPC, "full"), (FaultKind.EIO, "I/O")])
def test_an_index_that_cannot_be_written_lists_nothing_of_the_commit(
    tmp_path: Path, kind: FaultKind, words: str
) -> None:
    filled(tmp_path)
    opening = FaultyFiles(Files())
    open_store(tmp_path, opening).close()
    # The deletion that write() makes is seven statements, and commit()'s own transaction follows.
    for statement in range(14):
        shutil.rmtree(tmp_path / NAMESPACE)
        filled(tmp_path)
        plan = at_each("execute", Fault(kind), opening.calls.count("execute") + statement, 10**6)
        store, files = store_with(tmp_path, plan)
        wrote = put(store, 0, 10)
        assert not (wrote and store.commit()) or not files.struck
        if files.struck:
            assert words in store.last_error
            assert check_reads_back(store) == blocks_in((1, 1), (2, 2), (3, 3))
        store.close()
        again = open_store(tmp_path)
        found = check_reads_back(again)
        assert found.items() >= blocks_in((1, 1), (2, 2), (3, 3)).items()
        assert found.get(0) in ({name_of(10)} if not files.struck else {None, name_of(0)})
        again.close()


def test_an_index_that_really_is_full_is_a_commit_that_is_false(tmp_path: Path) -> None:
    class Full(Files):
        def connect(self, path: Path) -> sqlite3.Connection:
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            database.execute("PRAGMA max_page_count = 4")
            return database

    store = open_store(tmp_path, Full(), num_slots=200)
    wrote = [put(store, slot, slot) for slot in range(200)]
    assert all(wrote)
    assert not store.commit()
    assert "full" in store.last_error
    assert store.entries() == []
    assert put(store, 0, 1)
    store.close()
    again = open_store(tmp_path, num_slots=200)
    assert check_reads_back(again) == blocks_in((0, 1))
    again.close()


class LyingDatabase:
    """A database whose COMMITs reach the log and are reported as failed, while `is_lying`."""

    is_lying = False

    def __init__(self, database: sqlite3.Connection) -> None:
        self.said: list[str] = []
        self.database = database
        self.executemany = database.executemany
        self.rollback = database.rollback
        self.close = database.close

    @property
    def in_transaction(self) -> bool:
        return self.database.in_transaction

    def execute(self, sql: str, parameters: Sequence[SqlValue] = (), /) -> sqlite3.Cursor:
        self.said.append(sql)
        cursor = self.database.execute(sql, parameters)
        if self.is_lying and sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return cursor


class Lying(Files):
    """Keeps its databases where a test finds them."""

    def __init__(self) -> None:
        self.databases: list[LyingDatabase] = []

    def connect(self, path: Path) -> sqlite3.Connection:
        self.databases.append(LyingDatabase(super().connect(path)))
        return self.databases[-1]


def test_a_commit_waits_for_the_index_and_a_deletion_before_an_overwrite_does_not(tmp_path: Path) -> None:
    files = Lying()
    store = open_store(tmp_path, files)
    said = files.databases[0].said

    def waits(act: Callable[[], object]) -> list[bool]:
        said.clear()
        assert act()
        return [statement == "PRAGMA synchronous=FULL" for statement in said if "synchronous" in statement]

    assert waits(lambda: put(store, 0, 1)) == []
    assert waits(store.commit) == [True]
    assert waits(lambda: put(store, 0, 2)) == [False]
    assert waits(store.commit) == [True]
    assert waits(lambda: fetch(store, 0, name_of(2))) == []
    assert waits(store.commit) == [False]
    assert waits(store.commit) == []
    store.forget(0)
    assert waits(store.commit) == [True]
    store.close()


def test_a_row_whose_commit_failed_and_is_there_all_the_same_is_deleted_before_its_slot_is_overwritten(
    tmp_path: Path,
) -> None:
    files = Lying()
    store = open_store(tmp_path / "life", files)
    assert put(store, 0, 1)
    files.databases[0].is_lying = True
    assert not store.commit()
    files.databases[0].is_lying = False
    assert store.entries() == []
    shutil.copytree(tmp_path / "life", tmp_path / "before")
    assert put(store, 0, 2)
    shutil.copytree(tmp_path / "life", tmp_path / "after")
    store.close()
    for folder, found in (("before", blocks_in((0, 1))), ("after", {}), ("life", blocks_in((0, 2)))):
        again = open_store(tmp_path / folder)
        assert check_reads_back(again) == found
        again.close()


def test_a_store_is_opened_by_one_thread_and_used_by_another(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with ThreadPoolExecutor(1) as worker:
        assert worker.submit(put, store, 0, 1).result()
        assert worker.submit(store.commit).result()
        assert worker.submit(fetch, store, 0, name_of(1)).result() == bytes_of(name_of(1))
        worker.submit(store.close).result()
    again = open_store(tmp_path)
    assert check_reads_back(again) == blocks_in((0, 1))
    again.close()


def test_a_slow_disk_is_only_slow(tmp_path: Path) -> None:
    slept: list[float] = []
    files = FaultyFiles(Files(), lambda call, operation: Fault(FaultKind.SLOW, 250), sleep=slept.append)
    store = open_store(tmp_path, files)
    assert put(store, 0, 1)
    assert check_reads_back(store) == blocks_in((0, 1))
    store.close()
    assert slept == [0.25] * len(files.calls)
