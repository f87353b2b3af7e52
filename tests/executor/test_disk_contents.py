"""What blocks on disk hold, in the index: for KV events after a restart."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.executor.store import NAMESPACE, blocks_in, check_reads_back, filled, name_of, open_store, put

from octavo.executor.disk import DiskStore
from octavo.executor.disk_index import ContentRow


def row(slot: int, name: bytes) -> ContentRow:
    return ContentRow(slot, name, name[::-1], bytes([slot]) * 64, "salt", ("a", "b"))


def kept(folder: Path, *slots: int) -> DiskStore:
    """A store that has these blocks and what they hold."""
    store = open_store(folder)
    assert store.keep_contents(row) == []
    for slot in slots:
        assert put(store, slot, slot)
    assert store.commit()
    return store


def test_a_restart_finds_what_blocks_hold(tmp_path: Path) -> None:
    kept(tmp_path, 0, 3).close()
    store = open_store(tmp_path)
    assert store.reset_reason == ""
    assert store.keep_contents(row) == [row(0, name_of(0)), row(3, name_of(3))]
    store.close()


def test_a_cache_without_contents_stays_valid_and_gets_them(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    before = check_reads_back(store)
    assert before
    assert store.keep_contents(row) == []
    store.close()
    again = open_store(tmp_path)
    assert again.reset_reason == ""
    assert check_reads_back(again) == before
    again.close()


def test_what_was_written_without_contents_has_none(tmp_path: Path) -> None:
    kept(tmp_path, 0, 1).close()
    store = open_store(tmp_path)  # a server that publishes nothing
    assert put(store, 0, 7)
    store.forget(1)
    store.close()
    again = open_store(tmp_path)
    assert again.keep_contents(row) == []
    assert check_reads_back(again) == blocks_in((0, 7))
    again.close()


def test_what_is_forgotten_is_forgotten_with_its_tokens(tmp_path: Path) -> None:
    store = kept(tmp_path, 0, 1)
    store.forget(0)
    assert store.commit()
    store.close()
    database = sqlite3.connect(tmp_path / NAMESPACE / "index.sqlite")
    assert [slot for (slot,) in database.execute("SELECT slot FROM contents")] == [1]
    database.close()


def test_blocks_whose_content_is_not_known_are_stored_all_the_same(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.keep_contents(lambda slot, name: None)
    assert put(store, 0, 5)
    store.close()
    again = open_store(tmp_path)
    assert again.keep_contents(row) == []
    assert check_reads_back(again) == blocks_in((0, 5))
    again.close()


@pytest.mark.parametrize(
    "assignment",
    [
        "parent = x'00'",
        "parent = NULL",
        "tokens = x'000000'",
        "tokens = ''",
        "salt = 1",
        "tenants = '{'",
        "tenants = '[1]'",
        "tenants = x'00'",
        "name = x'00'",
    ],
)
def test_a_content_that_makes_no_sense_is_not_known(tmp_path: Path, assignment: str) -> None:
    kept(tmp_path, 0).close()
    database = sqlite3.connect(tmp_path / NAMESPACE / "index.sqlite")
    database.execute(f"UPDATE contents SET {assignment}")
    database.commit()
    database.close()
    store = open_store(tmp_path)
    assert store.reset_reason == ""
    assert store.keep_contents(row) == []
    assert check_reads_back(store) == blocks_in((0, 0))
    store.close()
