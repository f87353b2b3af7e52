"""The disk store: what it lists it can read, what it reads is what was written, and no death, damage or fault
of the disk makes it answer with anything else.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.errors import ConfigError
from octavo.executor.disk import DiskStore
from octavo.files import Database, Files, OsFiles, SqlValue
from octavo.sim.faults import Crashed, Fault, FaultKind, FaultPlan, FaultyFiles, at_each, scripted, seeded

BLOCK = 5000  # no multiple of a page: a slot is 8192
SLOT = 8192
FINGERPRINT = bytes(range(32))
NAMESPACE = FINGERPRINT.hex()[:32]


def name_of(block: int) -> bytes:
    return hashlib.blake2b(str(block).encode(), digest_size=32).digest()


def bytes_of(name: bytes) -> bytes:
    return hashlib.shake_128(name).digest(BLOCK)


def open_store(folder: Path, files: Files | None = None, num_slots: int = 4) -> DiskStore:
    return DiskStore.open(folder, num_slots * SLOT, BLOCK, FINGERPRINT, files)


def put(store: DiskStore, slot: int, block: int) -> bool:
    return store.write(slot, name_of(block), memoryview(bytes_of(name_of(block))))


def fetch(store: DiskStore, slot: int, name: bytes) -> bytes | None:
    into = bytearray(BLOCK)
    return bytes(into) if store.read(slot, name, memoryview(into)) else None


def listed(store: DiskStore) -> dict[int, bytes]:
    return {slot: name for name, slot in store.entries()}


def blocks_in(*pairs: tuple[int, int]) -> dict[int, bytes]:
    return {slot: name_of(block) for slot, block in pairs}


def check_reads_back(store: DiskStore) -> dict[int, bytes]:
    """Every name that is listed reads back right."""
    found = listed(store)
    for slot, name in found.items():
        assert fetch(store, slot, name) == bytes_of(name), f"slot {slot}"
    return found


def check_never_wrong(store: DiskStore) -> int:
    """Every name that is listed reads back right or not at all; how many do."""
    answers = [(name, fetch(store, slot, name)) for name, slot in store.entries()]
    assert all(answer in (None, bytes_of(name)) for name, answer in answers)
    return sum(answer is not None for _, answer in answers)


def filled(folder: Path, num_slots: int = 4) -> None:
    store = open_store(folder, num_slots=num_slots)
    for slot in range(num_slots):
        assert put(store, slot, slot)
    store.close()


# What a store keeps.


def test_a_block_reads_back_before_and_after_commit_and_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (store.num_slots, store.slot_bytes, store.opened_afresh) == (4, SLOT, "")
    assert store.entries() == []
    assert put(store, 2, 7)
    assert check_reads_back(store) == blocks_in((2, 7))
    assert store.commit()
    assert check_reads_back(store) == blocks_in((2, 7))
    store.close()
    store.close()
    again = open_store(tmp_path)
    assert again.opened_afresh == ""
    assert check_reads_back(again) == blocks_in((2, 7))
    assert (again.reads, again.writes, again.damaged, again.errors) == (1, 0, 0, 0)
    again.close()


def test_a_slot_answers_only_to_the_name_it_holds_and_keeps_its_block(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert put(store, 0, 1)
    assert fetch(store, 0, name_of(2)) is None
    assert fetch(store, 1, name_of(1)) is None
    assert check_reads_back(store) == blocks_in((0, 1))
    assert store.damaged == 0
    store.close()


def test_a_slot_that_is_overwritten_or_forgotten_loses_its_old_name(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    assert put(store, 1, 11)
    store.forget(2)
    store.forget(2)
    assert fetch(store, 1, name_of(1)) is None
    assert fetch(store, 2, name_of(2)) is None
    store.close()
    again = open_store(tmp_path)
    assert check_reads_back(again) == blocks_in((0, 0), (1, 11), (3, 3))
    again.close()


def test_entries_come_longest_unused_first_also_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    assert [slot for _, slot in store.entries()] == [0, 1, 2, 3]
    assert fetch(store, 0, name_of(0))
    assert put(store, 2, 12)
    assert [slot for _, slot in store.entries()] == [1, 3, 0, 2]
    store.close()
    again = open_store(tmp_path)
    assert [slot for _, slot in again.entries()] == [1, 3, 0, 2]
    assert fetch(again, 3, name_of(3))
    again.close()
    third = open_store(tmp_path)
    assert [slot for _, slot in third.entries()] == [1, 0, 2, 3]
    third.close()


def test_the_space_of_all_slots_is_taken_at_open(tmp_path: Path) -> None:
    store = open_store(tmp_path, num_slots=3)
    status = os.stat(tmp_path / NAMESPACE / "blocks")
    assert status.st_size == 3 * SLOT
    assert status.st_blocks * 512 >= 3 * SLOT
    store.close()


def test_two_fingerprints_live_side_by_side(tmp_path: Path) -> None:
    filled(tmp_path)
    other = DiskStore.open(tmp_path, 4 * SLOT, BLOCK, bytes(32))
    mine = open_store(tmp_path)
    assert other.entries() == []
    assert put(other, 0, 9)
    assert check_reads_back(mine) == blocks_in((0, 0), (1, 1), (2, 2), (3, 3))
    assert check_reads_back(other) == blocks_in((0, 9))
    mine.close()
    other.close()


@pytest.mark.parametrize("num_slots", [1, 3, 4, 9])
def test_a_store_that_grows_or_shrinks_keeps_what_it_has_room_for(tmp_path: Path, num_slots: int) -> None:
    filled(tmp_path)
    store = open_store(tmp_path, num_slots=num_slots)
    assert store.opened_afresh == ""
    assert store.damaged == 0
    assert os.stat(tmp_path / NAMESPACE / "blocks").st_size == num_slots * SLOT
    assert check_reads_back(store) == blocks_in(*((slot, slot) for slot in range(min(num_slots, 4))))
    assert put(store, num_slots - 1, 77)
    store.close()
    back = open_store(tmp_path)
    assert set(check_reads_back(back)) == set(range(min(num_slots, 4)))
    back.close()


# What is begun afresh.


def rewrite_meta(folder: Path, assignment: str) -> None:
    database = sqlite3.connect(folder / NAMESPACE / "index.sqlite")
    database.execute(f"UPDATE meta SET {assignment}")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "assignment, words",
    [
        ("format = 2", "format 2"),
        ("fingerprint = x'00'", "another model"),
        ("block_bytes = 4096", "4096 bytes"),
    ],
)
def test_an_index_that_is_bound_to_something_else_is_begun_afresh(
    tmp_path: Path, assignment: str, words: str
) -> None:
    filled(tmp_path)
    rewrite_meta(tmp_path, assignment)
    store = open_store(tmp_path)
    assert words in store.opened_afresh
    assert store.entries() == []
    assert put(store, 0, 5)
    store.close()
    again = open_store(tmp_path)
    assert again.opened_afresh == ""
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
    assert store.opened_afresh or store.entries()
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
        afresh += bool(store.opened_afresh)
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
def test_a_damaged_schema_is_begun_afresh(tmp_path: Path, sound: bytes, damaged: bytes) -> None:
    filled(tmp_path)
    index = tmp_path / NAMESPACE / "index.sqlite"
    index.write_bytes(index.read_bytes().replace(sound, damaged))
    store = open_store(tmp_path)
    assert "damaged" in store.opened_afresh
    assert store.entries() == []
    store.close()


def test_an_index_with_anything_of_anybody_else_in_it_is_begun_afresh(tmp_path: Path) -> None:
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
    assert store.opened_afresh == ""
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
    assert ("empty" in store.opened_afresh) == (length < SLOT)
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


# Folders that cannot be used.


def test_a_folder_that_cannot_be_used_is_a_config_error_that_says_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/octavo")):
        with pytest.raises(ConfigError, match=r"cannot be used.*allowed: .*choose another"):
            open_store(folder)
    (tmp_path / NAMESPACE / "blocks").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be used"):
        open_store(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_config_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be used: Permission denied"):
        open_store(tmp_path)


def test_a_tier_too_small_for_one_block_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 8,191 bytes; allowed: 8,192 \(one block\) or more"):
        DiskStore.open(tmp_path, SLOT - 1, BLOCK, FINGERPRINT)
    DiskStore.open(tmp_path, SLOT, BLOCK, FINGERPRINT).close()


@pytest.mark.parametrize("operation", ["fallocate", "execute", "connect", "make_folder"])
def test_a_full_disk_at_open_is_a_config_error_that_names_the_room(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles(OsFiles(), at_each(operation, Fault(FaultKind.ENOSPC)))
    with pytest.raises(ConfigError, match=r"asks for 32.0 KiB in .* is free there; give the tier less"):
        open_store(tmp_path, files)
    open_store(tmp_path).close()


def test_a_store_that_cannot_grow_keeps_its_size_and_its_blocks(tmp_path: Path) -> None:
    class Filling(OsFiles):
        def fallocate(self, fd: int, length: int) -> None:
            os.truncate(fd, length - SLOT)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    filled(tmp_path)
    with pytest.raises(ConfigError, match="is free there"):
        open_store(tmp_path, Filling(), num_slots=9)
    assert os.stat(tmp_path / NAMESPACE / "blocks").st_size == 4 * SLOT
    store = open_store(tmp_path)
    assert len(check_reads_back(store)) == 4
    store.close()


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from octavo.executor.disk import DiskStore\n"
        f"store = DiskStore.open(Path({str(tmp_path)!r}), {4 * SLOT}, {BLOCK}, bytes(range(32)))\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(
            ConfigError, match=f"{tmp_path} is in use by another process.*choose another folder"
        ):
            open_store(tmp_path)
        DiskStore.open(tmp_path, 4 * SLOT, BLOCK, bytes(32)).close()  # another model is another namespace
        process.communicate("")
    open_store(tmp_path).close()


def test_a_store_in_this_process_is_refused_as_well_and_a_failed_open_holds_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(ConfigError, match="in use"):
        open_store(tmp_path)
    store.close()
    with pytest.raises(ConfigError):
        open_store(tmp_path, FaultyFiles(OsFiles(), at_each("fallocate", Fault(FaultKind.EIO))))
    open_store(tmp_path).close()


def test_an_index_that_another_program_has_locked_is_refused_and_kept(tmp_path: Path) -> None:
    filled(tmp_path)
    database = sqlite3.connect(tmp_path / NAMESPACE / "index.sqlite", isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConfigError, match="locked"):
        open_store(tmp_path)
    database.close()
    store = open_store(tmp_path)
    assert len(check_reads_back(store)) == 4
    store.close()


# Faults.


def store_with(folder: Path, plan: FaultPlan) -> tuple[DiskStore, FaultyFiles]:
    files = FaultyFiles(OsFiles(), plan)
    return open_store(folder, files), files


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
    opening = FaultyFiles(OsFiles())
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
    class Full(OsFiles):
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

    def __init__(self, database: Database) -> None:
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


class Lying(OsFiles):
    """Keeps its databases where a test finds them."""

    def __init__(self) -> None:
        self.databases: list[LyingDatabase] = []

    def connect(self, path: Path) -> Database:
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
    files = FaultyFiles(OsFiles(), lambda call, operation: Fault(FaultKind.SLOW, 250), sleep=slept.append)
    store = open_store(tmp_path, files)
    assert put(store, 0, 1)
    assert check_reads_back(store) == blocks_in((0, 1))
    store.close()
    assert slept == [0.25] * len(files.calls)


# Crashes.


class Life:
    """One fixed life of a store, with every kind of call. `promised` is what a restart must find."""

    def __init__(self, folder: Path, aside: Path) -> None:
        self.folder = folder
        self.aside = aside  # the index as it was at the last commit
        self.live: dict[int, bytes] = {}
        self.promised: dict[int, bytes] = {}

    def run(self, files: Files) -> None:
        store = open_store(self.folder, files)
        self.put(store, 0, 1)
        self.put(store, 1, 2)
        self.put(store, 2, 3)
        self.commit(store)
        self.put(store, 1, 4)
        self.forget(store, 0)
        self.put(store, 3, 5)
        self.put(store, 3, 6)
        self.commit(store)
        assert fetch(store, 2, name_of(3)) == bytes_of(name_of(3))
        self.commit(store)
        self.forget(store, 3)
        self.put(store, 2, 7)
        self.put(store, 0, 8)
        self.commit(store)
        self.put(store, 3, 9)
        self.put(store, 0, 10)
        store.close()

    def put(self, store: DiskStore, slot: int, block: int) -> None:
        self.live.pop(slot, None)
        self.promised.pop(slot, None)
        assert put(store, slot, block)
        self.live[slot] = name_of(block)

    def forget(self, store: DiskStore, slot: int) -> None:
        self.live.pop(slot)
        self.promised.pop(slot)
        store.forget(slot)

    def commit(self, store: DiskStore) -> None:
        assert store.commit()
        self.promised = self.live.copy()
        shutil.rmtree(self.aside, ignore_errors=True)
        self.aside.mkdir()
        for path in (self.folder / NAMESPACE).glob("index.sqlite*"):
            shutil.copy(path, self.aside)


def calls_of_a_life(folder: Path) -> list[str]:
    files = FaultyFiles(OsFiles())
    Life(folder / "life", folder / "aside").run(files)
    return files.calls


def die_at(folder: Path, call: int, fault: Fault) -> Life:
    """Live in a fresh folder until the fault; `folder/dead` is then what the dead process left."""
    for name in ("life", "aside", "dead"):
        shutil.rmtree(folder / name, ignore_errors=True)
    files = FaultyFiles(
        OsFiles(),
        scripted({call: fault}),
        on_crash=lambda: (
            shutil.copytree(folder / "life", folder / "dead") if (folder / "life").exists() else None
        ),
    )
    life = Life(folder / "life", folder / "aside")
    with pytest.raises(Crashed):
        life.run(files)
    (folder / "dead").mkdir(exist_ok=True)
    return life


def test_after_a_crash_at_any_call_all_that_is_listed_reads_back_and_all_that_was_promised_is_listed(
    tmp_path: Path,
) -> None:
    calls = calls_of_a_life(tmp_path)
    assert set(calls) >= {"pwrite", "pread", "fdatasync", "fallocate", "execute", "connect", "close"}
    faults = [(call, Fault(FaultKind.CRASH)) for call in range(len(calls))]
    writes = [call for call, operation in enumerate(calls) if operation == "pwrite"]
    faults += [(call, Fault(FaultKind.TORN_WRITE, at)) for call in writes for at in (1, 4096, BLOCK)]
    for call, fault in faults:
        life = die_at(tmp_path, call, fault)
        store = open_store(tmp_path / "dead")
        found = check_reads_back(store)
        assert life.promised.items() <= found.items(), (call, fault, calls[call])
        assert put(store, 3, 99)
        store.close()
        again = open_store(tmp_path / "dead")
        assert check_reads_back(again) == found | blocks_in((3, 99)), (call, fault)
        again.close()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_after_a_power_cut_at_any_call_nothing_reads_back_wrong_and_nothing_promised_is_lost(
    tmp_path: Path, seed: int
) -> None:
    calls = calls_of_a_life(tmp_path)
    for call in range(len(calls)):
        life = die_at(tmp_path, call, Fault(FaultKind.POWER_CUT, seed))
        dead = tmp_path / "dead"
        older = tmp_path / "older"
        shutil.rmtree(older, ignore_errors=True)
        shutil.copytree(dead, older)
        # As if the medium has the index of now ...
        store = open_store(dead)
        assert life.promised.items() <= check_reads_back(store).items(), (call, calls[call])
        store.close()
        # ... and as if it has no more of it than the last commit waited for.
        if not life.aside.exists():
            continue
        for path in (older / NAMESPACE).glob("index.sqlite*"):
            path.unlink()
        shutil.copytree(life.aside, older / NAMESPACE, dirs_exist_ok=True)
        store = open_store(older)
        check_never_wrong(store)
        assert life.promised.items() <= listed(store).items(), (call, calls[call])
        store.close()


def test_a_log_that_is_cut_short_after_a_crash_costs_names_and_no_answer(tmp_path: Path) -> None:
    calls = calls_of_a_life(tmp_path)
    die_at(tmp_path, len(calls) - 3, Fault(FaultKind.CRASH))
    log = tmp_path / "dead" / NAMESPACE / "index.sqlite-wal"
    whole = log.read_bytes()
    assert len(whole) > 4096
    for length in range(0, len(whole), 1777):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "dead", copy)
        (copy / NAMESPACE / "index.sqlite-wal").write_bytes(whole[:length])
        store = open_store(copy)
        check_never_wrong(store)
        store.close()


@pytest.mark.parametrize("run", range(3))
def test_kill_9_in_the_middle_of_writing_loses_nothing_that_was_committed(tmp_path: Path, run: int) -> None:
    batch, num_slots = 4, 16
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from tests.executor.test_disk import open_store, put\n"
        f"store = open_store(Path(sys.argv[2]), num_slots={num_slots})\n"
        "for block in range(10**9):\n"
        f"    assert put(store, block % {num_slots}, block)\n"
        f"    if block % {batch} == {batch - 1}:\n"
        "        assert store.commit()\n"
        "        print(block + 1, flush=True)\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", code, root, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(7 + 3 * run):
            assert process.stdout.readline()
        process.kill()
        lines = process.stdout.read().split()
    committed = int(lines[-1]) if lines else (7 + 3 * run) * batch
    store = open_store(tmp_path, num_slots=num_slots)
    found = check_reads_back(store)
    # At most one batch more was under way: the three before it are not touched by it.
    kept = range(committed - num_slots + batch, committed)
    assert blocks_in(*((block % num_slots, block) for block in kept)).items() <= found.items()
    store.close()


# Random lives against a dictionary.


class StoreMachine(RuleBasedStateMachine):
    """A store and what it must hold: `live` in this process, `committed` in the index."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.generation = 0
        self.num_slots = 4
        self.block = 0
        self.live: dict[int, bytes] = {}
        self.committed: dict[int, bytes] = {}
        self.store = open_store(self.folder)

    @property
    def folder(self) -> Path:
        return self.root / str(self.generation)

    @rule(slot=st.integers(0, 5))
    def put(self, slot: int) -> None:
        slot %= self.num_slots
        self.block += 1
        assert put(self.store, slot, self.block)
        self.live[slot] = name_of(self.block)
        self.committed.pop(slot, None)

    @rule(slot=st.integers(0, 5))
    def fetch(self, slot: int) -> None:
        slot %= self.num_slots
        name = self.live.get(slot, name_of(0))
        assert fetch(self.store, slot, name) == (bytes_of(name) if slot in self.live else None)

    @rule(slot=st.integers(0, 5))
    def forget(self, slot: int) -> None:
        self.store.forget(slot % self.num_slots)
        self.live.pop(slot % self.num_slots, None)

    @rule()
    def commit(self) -> None:
        assert self.store.commit()
        self.committed = self.live.copy()

    @rule(num_slots=st.integers(1, 6))
    def restart(self, num_slots: int) -> None:
        self.store.close()
        self.num_slots = num_slots
        self.store = open_store(self.folder, num_slots=num_slots)
        self.live = {slot: name for slot, name in self.live.items() if slot < num_slots}
        self.committed = self.live.copy()

    @rule()
    def kill(self) -> None:
        dead = self.folder
        self.generation += 1
        shutil.copytree(dead, self.folder)
        self.store.close()
        shutil.rmtree(dead)
        self.store = open_store(self.folder, num_slots=self.num_slots)
        found = check_reads_back(self.store)
        kept = {slot: name for slot, name in self.committed.items() if self.live.get(slot) == name}
        assert kept.items() <= found.items() <= self.committed.items()
        self.live, self.committed = found, found.copy()

    @invariant()
    def lists_what_lives(self) -> None:
        assert listed(self.store) == self.live
        assert (self.store.damaged, self.store.errors) == (0, 0)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

HARMLESS = [FaultKind.SHORT_READ, FaultKind.SHORT_WRITE, FaultKind.EIO, FaultKind.ENOSPC, FaultKind.SLOW]
DEADLY = [FaultKind.CRASH, FaultKind.TORN_WRITE]
FLIPS = [FaultKind.FLIP_READ, FaultKind.FLIP_WRITE]


def live_among_faults(store: DiskStore, chance: random.Random) -> dict[int, bytes]:
    """Random calls; returns what may be read, by slot, and checks whatever is."""
    book: dict[int, bytes] = {}
    since: set[int] = set()
    for block in range(60):
        slot, act = chance.randrange(4), chance.random()
        if act < 0.45:
            book.pop(slot, None)
            since.discard(slot)
            if put(store, slot, block):
                book[slot] = name_of(block)
                since.add(slot)
        elif act < 0.75 and slot in book:
            answer = fetch(store, slot, book[slot])
            assert answer in (None, bytes_of(book[slot]))
            if answer is None:
                del book[slot]
        elif act < 0.85:
            store.forget(slot)
            book.pop(slot, None)
        else:
            if not store.commit():
                book = {slot: name for slot, name in book.items() if slot not in since}
            since.clear()
        assert listed(store) == book
    return book


@pytest.mark.parametrize("kinds", [HARMLESS, HARMLESS + DEADLY, HARMLESS + FLIPS + DEADLY])
def test_a_random_life_among_faults_never_reads_wrong_and_lists_what_its_caller_believes(
    tmp_path: Path, kinds: list[FaultKind]
) -> None:
    struck: Counter[FaultKind] = Counter()
    for seed in range(80):
        folder, dead = tmp_path / str(seed), tmp_path / f"{seed}-dead"
        open_store(folder).close()
        files = FaultyFiles(
            OsFiles(),
            seeded(seed, 0.02, kinds),
            on_crash=lambda a=folder, b=dead: shutil.copytree(a, b) and None,
        )
        try:
            store = open_store(folder, files)
            live_among_faults(store, random.Random(seed))
            store.close()
        except ConfigError:
            assert files.struck
        except Crashed:
            folder = dead
        struck += files.struck
        again = open_store(folder)
        if files.struck[FaultKind.FLIP_WRITE]:
            check_never_wrong(again)
        else:
            check_reads_back(again)
        again.close()
    assert set(struck) == set(kinds), f"{struck}"
