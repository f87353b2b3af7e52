"""Faults on purpose: they strike the calls that they were told to, do what their names say, and are the same
for the same seed.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest
from tests.doubles.faults import (
    Crashed,
    Fault,
    FaultKind,
    FaultPlan,
    FaultyFiles,
    at_each,
    never,
    scripted,
    seeded,
)

from octavo.files import Files

OPERATIONS = ["open", "pwrite", "pread", "fdatasync", "execute"] * 40


def drawn(plan: FaultPlan) -> list[Fault | None]:
    return [plan(call, operation) for call, operation in enumerate(OPERATIONS)]


def opened(path: Path, plan: FaultPlan = never) -> tuple[FaultyFiles, int]:
    files = FaultyFiles(Files(), plan)
    return files, files.open(path)


def test_a_seed_is_the_whole_input_and_a_kind_strikes_only_what_it_can() -> None:
    first = drawn(seeded(3, 0.3, list(FaultKind)))
    assert first == drawn(seeded(3, 0.3, list(reversed(FaultKind))))
    assert first != drawn(seeded(4, 0.3, list(FaultKind)))
    struck = [(fault, operation) for fault, operation in zip(first, OPERATIONS, strict=True) if fault]
    assert 30 < len(struck) < 90
    assert all(fault.strikes(operation) for fault, operation in struck)
    assert not any(drawn(seeded(3, 1.0, [])))


def test_a_plan_for_an_operation_counts_only_its_calls() -> None:
    fault = Fault(FaultKind.EIO)
    struck = [call for call, found in enumerate(drawn(at_each("pread", fault, 1, 2))) if found]
    assert struck == [7, 12]
    assert len([found for found in drawn(at_each("pread", fault, 3)) if found]) == 37


def test_reads_and_writes_are_short_or_flipped_as_scripted(tmp_path: Path) -> None:
    script = {
        1: Fault(FaultKind.SHORT_WRITE, 3),
        2: Fault(FaultKind.FLIP_WRITE, 8),
        3: Fault(FaultKind.SHORT_READ, 2),
        4: Fault(FaultKind.FLIP_READ, 16),
    }
    files, fd = opened(tmp_path / "file", scripted(script))
    assert files.pwrite(fd, memoryview(b"abcdef"), 0) == 3
    assert files.pwrite(fd, memoryview(b"def"), 3) == 3
    into = bytearray(6)
    assert files.pread(fd, memoryview(into), 0) == 2
    assert into == b"ab" + bytes(4)
    assert files.pread(fd, memoryview(into), 0) == 6
    assert into == b"abbddf"  # bit 0 of byte 2 by the read, bit 0 of byte 4 by the write
    assert files.pread(fd, memoryview(into), 0) == 6
    assert into == b"abcddf"
    assert files.struck.total() == 4
    files.close(fd)


def test_errors_speak_the_language_of_who_is_asked(tmp_path: Path) -> None:
    files = FaultyFiles(Files(), lambda call, operation: Fault(FaultKind.ENOSPC) if call % 2 else None)
    fd = files.open(tmp_path / "file")
    with pytest.raises(OSError) as error:
        files.fallocate(fd, 4096)
    assert error.value.errno == errno.ENOSPC
    database = files.connect(tmp_path / "database")
    with pytest.raises(sqlite3.OperationalError, match="full") as refused:
        database.execute("CREATE TABLE t (x)")
    assert refused.value.sqlite_errorcode == sqlite3.SQLITE_FULL
    database.execute("CREATE TABLE t (x)")
    database.close()


def test_the_dead_do_nothing_more_and_a_torn_write_is_their_last(tmp_path: Path) -> None:
    deaths: list[str] = []
    files = FaultyFiles(
        Files(), scripted({1: Fault(FaultKind.TORN_WRITE, 2)}), on_crash=lambda: deaths.append("here")
    )
    fd = files.open(tmp_path / "file")
    with pytest.raises(Crashed):
        files.pwrite(fd, memoryview(b"abcdef"), 0)
    for again in (lambda: files.pwrite(fd, memoryview(b"x"), 0), lambda: files.fdatasync(fd)):
        with pytest.raises(Crashed):
            again()
    with pytest.raises(Crashed):
        files.close(fd)
    assert deaths == ["here"]
    assert files.calls == ["open", "pwrite"]
    assert (tmp_path / "file").read_bytes() == b"ab"


@pytest.mark.parametrize("kind", [FaultKind.POWER_CUT, FaultKind.EIO])
def test_what_was_not_synced_is_lost_in_a_power_cut_and_by_a_sync_that_fails(
    tmp_path: Path, kind: FaultKind
) -> None:
    files, fd = opened(tmp_path / "file", at_each("fdatasync", Fault(kind), 1))
    files.pwrite(fd, memoryview(b"aaaaaa"), 0)
    files.fdatasync(fd)
    files.pwrite(fd, memoryview(b"bbbb"), 0)
    files.pwrite(fd, memoryview(b"cccc"), 2)
    with pytest.raises((Crashed, OSError)):
        files.fdatasync(fd)
    assert (tmp_path / "file").read_bytes() == b"aaaaaa"
