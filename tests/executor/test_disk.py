"""The disk store keeps what it was given, and refuses folders that it cannot use."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from tests.doubles.faults import Fault, FaultKind, FaultyFiles, at_each
from tests.executor.store import (
    BLOCK,
    FINGERPRINT,
    NAMESPACE,
    SLOT,
    blocks_in,
    check_reads_back,
    fetch,
    filled,
    name_of,
    open_store,
    put,
)
from tests.processes import running

from octavo.errors import ConfigError
from octavo.executor import disk_folder
from octavo.executor.disk import DiskStore
from octavo.files import Files


def test_a_block_reads_back_before_and_after_commit_and_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (store.num_slots, store.slot_bytes, store.reset_reason) == (4, SLOT, "")
    assert store.entries() == []
    assert put(store, 2, 7)
    assert check_reads_back(store) == blocks_in((2, 7))
    assert store.commit()
    assert check_reads_back(store) == blocks_in((2, 7))
    store.close()
    store.close()
    again = open_store(tmp_path)
    assert again.reset_reason == ""
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
    assert store.reset_reason == ""
    assert store.damaged == 0
    assert os.stat(tmp_path / NAMESPACE / "blocks").st_size == num_slots * SLOT
    assert check_reads_back(store) == blocks_in(*((slot, slot) for slot in range(min(num_slots, 4))))
    assert put(store, num_slots - 1, 77)
    store.close()
    back = open_store(tmp_path)
    assert set(check_reads_back(back)) == set(range(min(num_slots, 4)))
    back.close()


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
    files = FaultyFiles(Files(), at_each(operation, Fault(FaultKind.ENOSPC)))
    with pytest.raises(ConfigError, match=r"asks for 32.0 KiB in .* is free there; give the tier less"):
        open_store(tmp_path, files)
    open_store(tmp_path).close()


def test_a_size_beyond_the_disk_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"asks for 1024 TiB in .* free there; give the tier less"):
            DiskStore.open(tmp_path, 2**50, BLOCK, FINGERPRINT)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / NAMESPACE / "blocks").stat().st_size == 0


def test_what_the_store_has_already_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setattr(disk_folder, "bytes_free", lambda folder: SLOT)
    open_store(tmp_path, num_slots=5).close()
    with pytest.raises(ConfigError, match=r"asks for 56.0 KiB in .*, and 8.0 KiB is free there"):
        open_store(tmp_path, num_slots=7)
    monkeypatch.setattr(disk_folder, "bytes_free", lambda folder: None)
    store = open_store(tmp_path, num_slots=7)
    assert len(check_reads_back(store)) == 4
    store.close()


def test_a_store_that_cannot_grow_keeps_its_size_and_its_blocks(tmp_path: Path) -> None:
    class Filling(Files):
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
    with running([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
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
        open_store(tmp_path, FaultyFiles(Files(), at_each("fallocate", Fault(FaultKind.EIO))))
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
