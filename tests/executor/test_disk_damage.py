"""Whatever the files hold, a store begins afresh or answers a miss: it never crashes, and is never wrong."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.executor.store import (
    BLOCK,
    NAMESPACE,
    SLOT,
    blocks_in,
    bytes_of,
    check_never_wrong,
    check_reads_back,
    fetch,
    filled,
    listed,
    name_of,
    open_store,
    put,
)


def rewrite_meta(folder: Path, assignment: str) -> None:
    database = sqlite3.connect(folder / NAMESPACE / "index.sqlite")
    database.execute(f"UPDATE meta SET {assignment}")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "assignment, words",
    [
        ("format = 1", "format 1"),
        ("fingerprint = x'00'", "another model"),
        ("block_bytes = 4096", "4096 bytes"),
    ],
)
def test_an_index_that_is_bound_to_something_else_is_begun_again(
    tmp_path: Path, assignment: str, words: str
) -> None:
    filled(tmp_path)
    rewrite_meta(tmp_path, assignment)
    store = open_store(tmp_path)
    assert words in store.reset_reason
    assert store.entries() == []
    assert put(store, 0, 5)
    store.close()
    again = open_store(tmp_path)
    assert again.reset_reason == ""
    assert check_reads_back(again) == blocks_in((0, 5))
    again.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"not a database at all" * 500,
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],
        lambda data: data[:4096] + bytes(len(data) - 4096),
        lambda data: data + data,
    ],
    ids=["empty", "words", "header", "half", "zeros", "doubled"],
)
def test_a_damaged_index_is_no_crash_and_no_wrong_answer(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    filled(tmp_path)
    index = tmp_path / NAMESPACE / "index.sqlite"
    index.write_bytes(damage(index.read_bytes()))
    store = open_store(tmp_path)
    assert store.reset_reason or store.entries()
    check_never_wrong(store)
    assert put(store, 0, 5)
    store.close()
    again = open_store(tmp_path)
    assert fetch(again, 0, name_of(5)) == bytes_of(name_of(5))
    again.close()


def test_a_flipped_byte_anywhere_in_the_index_is_no_crash_and_no_wrong_answer(tmp_path: Path) -> None:
    filled(tmp_path)
    index, blocks = (tmp_path / NAMESPACE / name for name in ("index.sqlite", "blocks"))
    sound, data = index.read_bytes(), blocks.read_bytes()
    chance = random.Random(1)
    used = [at for at in range(100, len(sound)) if sound[at]]
    offsets = [
        18,
        *chance.sample(range(100), 25),
        *chance.sample(used, 25),
        *chance.sample(range(len(sound)), 10),
    ]
    afresh = 0
    for offset in offsets:
        damaged = bytearray(sound)
        damaged[offset] ^= chance.randrange(1, 256)
        index.write_bytes(damaged)
        blocks.write_bytes(data)
        store = open_store(tmp_path)
        afresh += bool(store.reset_reason)
        check_never_wrong(store)
        assert put(store, 0, 5), offset
        store.close()
        assert store.errors == 0, offset
        again = open_store(tmp_path)
        assert fetch(again, 0, name_of(5)) == bytes_of(name_of(5)), offset
        again.close()
    assert 0 < afresh < len(offsets)


@pytest.mark.parametrize(
    "sound, damaged",
    [(b"CREATE TABLE blocks", b"CREATE T\xafBLE blocks"), (b"INTEGER PRIMARY", b"INTEGEA PRIMARY")],
)
def test_a_damaged_schema_is_begun_again(tmp_path: Path, sound: bytes, damaged: bytes) -> None:
    filled(tmp_path)
    index = tmp_path / NAMESPACE / "index.sqlite"
    index.write_bytes(index.read_bytes().replace(sound, damaged))
    store = open_store(tmp_path)
    assert "damaged" in store.reset_reason
    assert store.entries() == []
    store.close()


def test_an_index_with_anything_of_anyone_else_in_it_is_begun_again(tmp_path: Path) -> None:
    filled(tmp_path)
    database = sqlite3.connect(tmp_path / NAMESPACE / "index.sqlite")
    database.execute("CREATE TRIGGER thief AFTER INSERT ON blocks BEGIN DELETE FROM blocks; END")
    database.close()
    filled(tmp_path)
    store = open_store(tmp_path)
    assert len(check_reads_back(store)) == 4
    store.close()


def test_rows_that_make_no_sense_are_dropped_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    database = sqlite3.connect(tmp_path / NAMESPACE / "index.sqlite")
    database.execute("UPDATE blocks SET name = x'0102' WHERE slot = 0")
    database.execute("UPDATE blocks SET digest = 'text' WHERE slot = 1")
    database.execute("UPDATE blocks SET used = 9223372036854775807 WHERE slot = 2")
    database.execute("INSERT INTO blocks VALUES (-1, x'00', x'00', 1), (10000000, x'00', x'00', 1)")
    database.commit()
    database.close()
    store = open_store(tmp_path)
    assert store.reset_reason == ""
    assert store.damaged == 5
    assert check_reads_back(store) == blocks_in((3, 3))
    store.close()
    again = open_store(tmp_path)
    assert again.damaged == 0
    again.close()


@pytest.mark.parametrize("length, kept", [(0, 0), (SLOT - 1, 0), (SLOT, 1), (2 * SLOT + 100, 2)])
def test_blocks_that_a_truncated_file_lost_are_not_listed(tmp_path: Path, length: int, kept: int) -> None:
    filled(tmp_path)
    os.truncate(tmp_path / NAMESPACE / "blocks", length)
    store = open_store(tmp_path)
    assert check_reads_back(store) == blocks_in(*((slot, slot) for slot in range(kept)))
    assert store.damaged == 4 - kept
    assert ("empty" in store.reset_reason) == (length < SLOT)
    store.close()


def test_a_blocks_file_that_is_gone_or_swapped_is_never_believed(tmp_path: Path) -> None:
    filled(tmp_path)
    blocks = tmp_path / NAMESPACE / "blocks"
    blocks.write_bytes(os.urandom(4 * SLOT))
    store = open_store(tmp_path)
    assert len(store.entries()) == 4
    assert check_never_wrong(store) == 0
    assert store.entries() == []
    store.close()
    filled(tmp_path)
    blocks.unlink()
    again = open_store(tmp_path)
    assert again.entries() == []
    again.close()


def test_two_slots_whose_bytes_are_exchanged_are_two_misses(tmp_path: Path) -> None:
    filled(tmp_path)
    blocks = tmp_path / NAMESPACE / "blocks"
    data = blocks.read_bytes()
    blocks.write_bytes(data[SLOT : 2 * SLOT] + data[:SLOT] + data[2 * SLOT :])
    store = open_store(tmp_path)
    assert check_never_wrong(store) == 2
    assert store.damaged == 2
    store.close()


def test_two_rows_whose_names_are_exchanged_are_two_misses(tmp_path: Path) -> None:
    filled(tmp_path)
    database = sqlite3.connect(tmp_path / NAMESPACE / "index.sqlite")
    for slot, other in ((0, 1), (1, 0)):
        database.execute("UPDATE blocks SET name = ? WHERE slot = ?", (name_of(other), slot))
    database.commit()
    database.close()
    store = open_store(tmp_path)
    assert listed(store) == blocks_in((0, 1), (1, 0), (2, 2), (3, 3))
    assert check_never_wrong(store) == 2
    store.close()


def test_a_flipped_byte_anywhere_in_a_block_is_a_miss_and_its_row_is_dropped(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    chance = random.Random(2)
    blocks = tmp_path / NAMESPACE / "blocks"
    for offset in [0, BLOCK - 1, *chance.sample(range(BLOCK), 100)]:
        assert put(store, 1, offset)
        with blocks.open("r+b") as file:
            file.seek(SLOT + offset)
            byte = file.read(1)[0]
            file.seek(SLOT + offset)
            file.write(bytes([byte ^ chance.randrange(1, 256)]))
        assert fetch(store, 1, name_of(offset)) is None
        assert store.entries() == []
    assert store.damaged == 102
    assert "slot 1" in store.last_error
    store.close()


def test_a_file_that_was_cut_while_open_grows_again_when_all_that_was_cut_off_is_forgotten(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    for slot in range(3):
        assert put(store, slot, slot)
    os.truncate(tmp_path / NAMESPACE / "blocks", SLOT)
    assert not put(store, 3, 3)  # in a file that grew, slots 1 and 2 would be zeros
    assert os.stat(tmp_path / NAMESPACE / "blocks").st_size == SLOT
    assert "cut to 8,192 bytes" in store.last_error
    assert store.take_given_up() == [name_of(1), name_of(2)]
    assert listed(store) == blocks_in((0, 0))
    store.forget(1)
    assert not put(store, 3, 3)
    store.forget(2)
    assert put(store, 3, 3)
    assert check_reads_back(store) == blocks_in((0, 0), (3, 3))
    store.close()
