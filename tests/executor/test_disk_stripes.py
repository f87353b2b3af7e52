"""Where blocks are cut into pieces, one layer of consecutive slots is one range of the file; all else is as
for blocks in one piece."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.doubles.faults import Crashed, Fault, FaultKind, FaultyFiles, at_each, scripted
from tests.executor.store import (
    BLOCK,
    FINGERPRINT,
    NAMESPACE,
    ArrayBlocks,
    blocks_in,
    bytes_of,
    check_never_wrong,
    check_reads_back,
    fetch,
    listed,
    name_of,
    put,
)
from tests.executor.test_disk_damage import rewrite_meta
from tests.processes import running

from octavo.errors import ConfigError
from octavo.executor import disk_folder
from octavo.executor.disk import DiskStore
from octavo.executor.disk_layout import Extents, choose_lanes
from octavo.executor.host import HostStore, TieredStore
from octavo.executor.transfers import TransferWorker
from octavo.files import Files
from octavo.types import Move, Transfer, TransferDone

PIECE = 1536  # BLOCK is three of them and one of 392 bytes
PIECES = 4
STRIPE = 4 * PIECES * PIECE  # of the stores here, which begin with 4 slots or more, and fewer than 8


def open_striped(
    folder: Path, files: Files | None = None, num_slots: int = 4, piece_bytes: int = PIECE
) -> DiskStore:
    slot_bytes = -(-BLOCK // piece_bytes) * piece_bytes
    return DiskStore.open(folder, num_slots * slot_bytes, BLOCK, FINGERPRINT, files, piece_bytes=piece_bytes)


def filled(folder: Path, num_slots: int = 4) -> None:
    store = open_striped(folder, num_slots=num_slots)
    for slot in range(num_slots):
        assert put(store, slot, slot)
    store.close()


def blocks_file(folder: Path) -> Path:
    return folder / NAMESPACE / "blocks"


def test_one_layer_of_consecutive_slots_is_one_range_of_the_file(tmp_path: Path) -> None:
    open_striped(tmp_path).close()  # with 4 lanes
    filled(tmp_path, 8)
    store = open_striped(tmp_path, num_slots=8)
    assert store.extents == Extents(store.extents.fd, 4, PIECES, PIECE, 8)
    assert os.fstat(store.extents.fd).st_size == 2 * STRIPE
    data = blocks_file(tmp_path).read_bytes()
    for slot in range(8):
        for piece in range(PIECES):
            wanted = bytes_of(name_of(slot))[piece * PIECE : (piece + 1) * PIECE]
            at = slot // 4 * (PIECES * 4 * PIECE) + (piece * 4 + slot % 4) * PIECE
            assert data[at : at + len(wanted)] == wanted, (slot, piece)
            assert store.extents.offset(slot, piece) == at
    layer = data[STRIPE + 4 * PIECE : STRIPE + 8 * PIECE]
    assert layer == b"".join(bytes_of(name_of(slot))[PIECE : 2 * PIECE] for slot in range(4, 8))
    store.close()


def test_a_block_in_one_piece_lies_where_it_always_lay(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 5 * 8192, BLOCK, FINGERPRINT)
    assert store.extents == Extents(store.extents.fd, 1, 1, 8192, 5)
    assert [store.extents.offset(slot, 0) for slot in range(5)] == [8192 * slot for slot in range(5)]
    store.close()


@pytest.mark.parametrize("piece_bytes", [1, 16, 392, 1250, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_blocks_read_back_whatever_the_size_of_their_last_piece(tmp_path: Path, piece_bytes: int) -> None:
    store = open_striped(tmp_path, num_slots=6, piece_bytes=piece_bytes)
    extents = store.extents
    assert (extents.lanes, extents.num_slots, store.num_slots) == (4, 4, 4)
    assert 0 <= extents.pieces * piece_bytes - BLOCK < piece_bytes
    assert os.fstat(extents.fd).st_size == 4 * extents.pieces * piece_bytes
    for slot in (3, 0, 2, 1):
        assert put(store, slot, slot)
    wanted = blocks_in(*((slot, slot) for slot in range(4)))
    assert check_reads_back(store) == wanted
    assert put(store, 1, 11)
    store.close()
    again = open_striped(tmp_path, num_slots=6, piece_bytes=piece_bytes)
    assert again.reset_reason == ""
    assert check_reads_back(again) == wanted | blocks_in((1, 11))
    assert (again.damaged, again.errors) == (0, 0)
    again.close()


@pytest.mark.parametrize(
    "piece_bytes, num_slots, lanes",
    [
        (12_288, 10_000, 64),
        (65_536, 10_000, 16),
        (2**24, 10_000, 16),
        (4_096, 10_000, 256),
        (16, 10_000, 256),
        (4_096, 255, 16),
        (12_288, 10, 8),
        (12_288, 1, 1),
    ],
)
def test_a_run_of_one_layer_is_about_a_mebibyte(piece_bytes: int, num_slots: int, lanes: int) -> None:
    assert choose_lanes(piece_bytes, num_slots) == lanes


@pytest.mark.parametrize("num_slots, kept", [(4, 4), (5, 4), (7, 4), (8, 8), (9, 8), (15, 12), (200, 20)])
def test_a_store_that_grows_or_shrinks_keeps_its_lanes_and_blocks(
    tmp_path: Path, num_slots: int, kept: int
) -> None:
    open_striped(tmp_path).close()  # with 4 lanes
    filled(tmp_path, 20)
    store = open_striped(tmp_path, num_slots=num_slots)
    assert (store.reset_reason, store.damaged) == ("", 0)
    assert (store.extents.lanes, store.num_slots) == (4, num_slots // 4 * 4)
    assert blocks_file(tmp_path).stat().st_size == store.num_slots // 4 * STRIPE
    assert check_reads_back(store) == blocks_in(*((slot, slot) for slot in range(kept)))
    assert put(store, store.num_slots - 1, 77)
    store.close()
    back = open_striped(tmp_path, num_slots=20)
    assert (back.reset_reason, back.num_slots) == ("", 20)
    check_reads_back(back)
    assert set(range(kept - 1)) <= set(listed(back))
    back.close()


def test_fewer_slots_than_lanes_begin_again(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_striped(tmp_path, num_slots=3)
    assert store.reset_reason == "its stripes had 4 slots, and there is room for 3"
    assert (store.extents.lanes, store.num_slots, store.entries()) == (2, 2, [])
    assert blocks_file(tmp_path).stat().st_size == STRIPE // 2
    assert put(store, 1, 1)
    store.close()
    again = open_striped(tmp_path, num_slots=4)
    assert (again.reset_reason, again.extents.lanes, again.num_slots) == ("", 2, 4)
    assert check_reads_back(again) == blocks_in((1, 1))
    again.close()


@pytest.mark.parametrize("piece_bytes", [PIECE // 2, 2 * PIECE, None])
def test_other_pieces_begin_again(tmp_path: Path, piece_bytes: int | None) -> None:
    filled(tmp_path)
    store = DiskStore.open(tmp_path, 4 * 8192, BLOCK, FINGERPRINT, piece_bytes=piece_bytes)
    assert f"its pieces had {PIECE} bytes; these have {piece_bytes or 0}" in store.reset_reason
    assert store.entries() == []
    assert put(store, 3, 3)
    store.close()
    store = open_striped(tmp_path)
    assert f"its pieces had {piece_bytes or 0} bytes" in store.reset_reason
    assert store.entries() == []
    store.close()


@pytest.mark.parametrize("lanes", ["0", "-4", "3", "512", "'four'", "NULL", "4.0"])
def test_lanes_that_make_no_sense_begin_again(tmp_path: Path, lanes: str) -> None:
    filled(tmp_path)
    rewrite_meta(tmp_path, f"lanes = {lanes}")
    store = open_striped(tmp_path, num_slots=600)
    assert "no number of slots" in store.reset_reason
    assert store.entries() == []
    store.close()


@pytest.mark.parametrize("lanes", [1, 2])
def test_lanes_that_are_wrong_are_misses(tmp_path: Path, lanes: int) -> None:
    filled(tmp_path)
    rewrite_meta(tmp_path, f"lanes = {lanes}")
    store = open_striped(tmp_path)
    assert check_never_wrong(store) == 0
    assert put(store, 2, 9)
    store.close()
    again = open_striped(tmp_path)
    assert check_reads_back(again) == blocks_in((2, 9))
    again.close()


def test_an_index_of_the_format_before_begins_again(tmp_path: Path) -> None:
    filled(tmp_path)
    index = tmp_path / NAMESPACE / "index.sqlite"
    index.unlink()
    database = sqlite3.connect(index)
    database.execute("CREATE TABLE meta (format, fingerprint, block_bytes, num_slots)")
    database.execute("CREATE TABLE blocks (slot INTEGER PRIMARY KEY, name, digest, used)")
    database.execute("INSERT INTO meta VALUES (3, ?, ?, 4)", (FINGERPRINT, BLOCK))
    database.commit()
    database.close()
    store = open_striped(tmp_path)
    assert "other tables than format 4" in store.reset_reason
    assert store.entries() == []
    store.close()


@pytest.mark.parametrize(
    "length, kept", [(0, 0), (STRIPE - 1, 0), (STRIPE, 4), (2 * STRIPE - 1, 4), (3 * STRIPE - 1, 8)]
)
def test_a_truncated_file_loses_the_stripes_that_are_not_whole(
    tmp_path: Path, length: int, kept: int
) -> None:
    open_striped(tmp_path).close()  # with 4 lanes
    filled(tmp_path, 12)
    os.truncate(blocks_file(tmp_path), length)
    store = open_striped(tmp_path, num_slots=12)
    assert check_reads_back(store) == blocks_in(*((slot, slot) for slot in range(kept)))
    assert store.damaged == 12 - kept
    assert ("empty" in store.reset_reason) == (kept == 0)
    assert blocks_file(tmp_path).stat().st_size == 3 * STRIPE
    store.close()


def test_a_file_that_shrinks_under_an_open_store_is_damage(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_striped(tmp_path)
    os.truncate(blocks_file(tmp_path), store.extents.offset(2, PIECES - 1))
    assert check_never_wrong(store) == 2
    assert (store.damaged, store.errors) == (2, 0)
    assert set(listed(store)) == {0, 1}
    store.close()


@pytest.mark.parametrize("piece", range(PIECES))
def test_damage_in_one_piece_is_a_miss_of_its_block_alone(tmp_path: Path, piece: int) -> None:
    filled(tmp_path)
    store = open_striped(tmp_path)
    with blocks_file(tmp_path).open("r+b") as file:
        file.seek(store.extents.offset(1, piece) + 17)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    assert fetch(store, 1, name_of(1)) is None
    assert store.damaged == 1
    assert check_reads_back(store) == blocks_in((0, 0), (2, 2), (3, 3))
    store.close()


@pytest.mark.parametrize("piece", range(PIECES))
def test_a_piece_that_cannot_be_written_or_read_is_a_miss(tmp_path: Path, piece: int) -> None:
    store = open_striped(
        tmp_path, FaultyFiles(Files(), at_each("pwrite", Fault(FaultKind.EIO), piece, piece))
    )
    assert not put(store, 0, 1)
    assert (store.entries(), store.errors) == ([], 1)
    assert put(store, 0, 2)
    store.close()
    store = open_striped(tmp_path, FaultyFiles(Files(), at_each("pread", Fault(FaultKind.EIO), piece, piece)))
    assert fetch(store, 0, name_of(2)) is None
    assert (store.entries(), store.errors) == ([], 1)
    store.close()


@pytest.mark.parametrize("kind", [FaultKind.SHORT_READ, FaultKind.SHORT_WRITE])
def test_pieces_that_come_or_go_in_parts_are_continued(tmp_path: Path, kind: FaultKind) -> None:
    operation = "pread" if kind is FaultKind.SHORT_READ else "pwrite"
    fault = Fault(kind, 300)
    files = FaultyFiles(Files(), lambda call, called: fault if called == operation and call % 2 else None)
    store = open_striped(tmp_path, files)
    assert put(store, 3, 1)
    assert check_reads_back(store) == blocks_in((3, 1))
    assert files.struck[kind] >= PIECES - 1
    store.close()


def test_a_size_beyond_the_disk_is_refused_and_what_the_store_has_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr(disk_folder, "bytes_free", lambda folder: STRIPE)
    open_striped(tmp_path, num_slots=11).close()
    with pytest.raises(ConfigError, match=r"asks for 96.0 KiB in .*, and 24.0 KiB is free there"):
        open_striped(tmp_path, num_slots=16)
    store = open_striped(tmp_path)
    assert len(check_reads_back(store)) == 4
    store.close()


def test_a_store_that_cannot_grow_keeps_its_size_and_its_blocks(tmp_path: Path) -> None:
    filled(tmp_path)
    files = FaultyFiles(Files(), at_each("fallocate", Fault(FaultKind.ENOSPC)))
    with pytest.raises(ConfigError, match="is free there"):
        open_striped(tmp_path, files, num_slots=9)
    assert blocks_file(tmp_path).stat().st_size == STRIPE
    store = open_striped(tmp_path)
    assert len(check_reads_back(store)) == 4
    store.close()


def test_verify_finds_what_read_would_find_and_keeps_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_striped(tmp_path)
    assert store.verify(0, name_of(0))
    assert not store.verify(0, name_of(1))
    assert [slot for _, slot in store.entries()] == [1, 2, 3, 0]
    with blocks_file(tmp_path).open("r+b") as file:
        file.seek(store.extents.offset(1, 2))
        file.write(b"no")
    assert not store.verify(1, name_of(1))
    assert (store.damaged, store.reads) == (1, 1)
    assert "slot 1" in store.last_error
    assert check_reads_back(store) == blocks_in((0, 0), (2, 2), (3, 3))
    assert not store.verify(1, name_of(1))
    store.close()
    again = open_striped(tmp_path)
    assert check_reads_back(again) == blocks_in((0, 0), (2, 2), (3, 3))
    again.close()


def test_host_memory_has_no_extents_and_the_disk_behind_it_numbers_its_own(tmp_path: Path) -> None:
    host = HostStore(2 * 8192, BLOCK)
    assert host.extents is None
    below = open_striped(tmp_path)
    store = TieredStore(host, below)
    assert store.extents == below.extents
    for slot in range(6):
        assert store.write(slot, name_of(slot), memoryview(bytes_of(name_of(slot))))
    assert all(store.verify(slot, name_of(slot)) for slot in range(6))
    assert not any(store.verify(slot, name_of(9)) for slot in range(6))
    place = below.extents.offset(3, 0)  # of slot 5
    assert os.pread(below.extents.fd, PIECE, place) == bytes_of(name_of(5))[:PIECE]
    store.close()


def test_the_worker_verifies_without_a_block_and_shows_how_it_ended(tmp_path: Path) -> None:
    store, done = TieredStore(HostStore(8192, BLOCK), open_striped(tmp_path)), list[TransferDone]()
    pool = np.frombuffer(bytes_of(name_of(0)) + bytes_of(name_of(1)), np.uint8).reshape(2, BLOCK)
    before, blocks = pool.copy(), ArrayBlocks(pool)
    worker = TransferWorker(store, done.append)
    worker.serve(blocks)
    worker.begin(
        [
            Transfer(1, 0, 0, name_of(0), Move.STORE),
            Transfer(2, 1, 2, name_of(1), Move.STORE),
            Transfer(3, -1, 0, name_of(0), Move.VERIFY),
            Transfer(4, -1, 2, name_of(1), Move.VERIFY),
            Transfer(5, -1, 2, name_of(0), Move.VERIFY),
        ]
    )
    worker.sync([]).result(10)
    with blocks_file(tmp_path).open("r+b") as file:
        file.write(bytes(STRIPE))
    worker.begin([Transfer(6, -1, 2, name_of(1), Move.VERIFY), Transfer(7, -1, 0, name_of(0), Move.VERIFY)])
    worker.sync([]).result(10)
    assert [(one.transfer_id, one.ok) for one in done] == [
        (1, True),
        (2, True),
        (3, True),
        (4, True),
        (5, False),
        (6, False),
        (7, True),
    ]
    assert store.entries() == [(name_of(0), 0)]
    assert np.array_equal(pool, before)
    worker.close()


def live(folder: Path, files: Files) -> None:
    store = open_striped(folder, files)
    try:
        assert [put(store, slot, slot) for slot in range(4)] == [True] * 4
        assert store.commit()
        assert put(store, 1, 11)
        store.forget(2)
        assert store.commit()
        assert put(store, 0, 10)
        store.close()
    except Crashed:
        with contextlib.suppress(Crashed):
            store.close()  # the kernel closes what the dead had open
        raise


def test_after_a_crash_at_any_call_all_that_is_listed_reads_back(tmp_path: Path) -> None:
    counted = FaultyFiles(Files())
    live(tmp_path / "counted", counted)
    calls = counted.calls
    syncs = [call for call, operation in enumerate(calls) if operation == "fdatasync"]
    faults = [(call, Fault(FaultKind.CRASH)) for call in range(len(calls))]
    faults += [(call, Fault(FaultKind.POWER_CUT, 1)) for call in range(len(calls))]
    writes = [call for call, operation in enumerate(calls) if operation == "pwrite"]
    assert len(writes) == 6 * PIECES
    faults += [(call, Fault(FaultKind.TORN_WRITE, 100)) for call in writes]
    for number, (call, fault) in enumerate(faults):
        folder, dead = tmp_path / str(number), tmp_path / f"{number}-dead"
        folder.mkdir()
        files = FaultyFiles(
            Files(),
            scripted({call: fault}),
            on_crash=lambda a=folder, b=dead: shutil.copytree(a, b) and None,  # type: ignore[misc]
        )
        with pytest.raises(Crashed):
            live(folder, files)
        store = open_striped(dead)
        found = check_reads_back(store)
        if call > syncs[1]:
            assert blocks_in((3, 3)).items() <= found.items(), (call, fault)
        assert put(store, 3, 99)
        store.close()
        again = open_striped(dead)
        assert check_reads_back(again) == found | blocks_in((3, 99)), (call, fault)
        again.close()


def test_kill_9_in_the_middle_of_writing_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    num_slots = 16
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from tests.executor.store import put\n"
        "from tests.executor.test_disk_stripes import open_striped\n"
        "open_striped(Path(sys.argv[2])).close()\n"
        f"store = open_striped(Path(sys.argv[2]), num_slots={num_slots})\n"
        "for block in range(10**9):\n"
        f"    assert put(store, block % {num_slots}, block)\n"
        "    if block % 4 == 3:\n"
        "        assert store.commit()\n"
        "        print(block + 1, flush=True)\n"
    )
    root = str(Path(__file__).parents[2])
    with running([sys.executable, "-c", code, root, tmp_path]) as process:
        assert process.stdout is not None
        for _ in range(9):
            assert process.stdout.readline()
        process.kill()
        lines = process.stdout.read().split()
    committed = int(lines[-1]) if lines else 9 * 4
    store = open_striped(tmp_path, num_slots=num_slots)
    assert (store.reset_reason, store.extents.lanes) == ("", 4)
    found = check_reads_back(store)
    kept = range(committed - num_slots + 4, committed)  # one batch more was under way
    assert blocks_in(*((block % num_slots, block) for block in kept)).items() <= found.items()
    store.close()
