"""Namespaces of a disk cache's folder are told, and removed only when nobody has them open."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from tests.executor.store import BLOCK, NAMESPACE, SLOT, check_reads_back, filled, open_store, put

from octavo.engine.offload import tidy
from octavo.executor.disk import DiskStore, namespace_of
from octavo.executor.disk_folder import bytes_free, remove, remove_unused, survey

OTHER = b"o" * 32
DAY = 86_400.0
NOW = 1_000 * DAY


def other(folder: Path, fingerprint: bytes = OTHER) -> Path:
    """Another model's namespace, closed."""
    DiskStore.open(folder, 4 * SLOT, BLOCK, fingerprint).close()
    return folder / namespace_of(fingerprint)


def last_used(namespace: Path, at: float) -> None:
    for path in namespace.iterdir():
        os.utime(path, (at, at))


def test_namespaces_are_reported_longest_unused_first(tmp_path: Path) -> None:
    filled(tmp_path)
    last_used(other(tmp_path), NOW - DAY)
    last_used(tmp_path / NAMESPACE, NOW)
    first, second = survey(tmp_path)
    assert (first.name, first.num_blocks, first.in_use) == (namespace_of(OTHER), 0, False)
    assert (second.name, second.num_blocks, second.used_at) == (NAMESPACE, 4, NOW)
    assert second.num_bytes >= 4 * SLOT
    assert check_reads_back(open_store(tmp_path))  # looking changed nothing


def test_a_namespace_that_is_open_is_reported_and_never_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert put(store, 0, 1)
    (found,) = survey(tmp_path)
    assert (found.in_use, found.num_blocks) == (True, None)
    assert not remove(found)
    assert remove_unused(tmp_path, "", before=NOW * 1e3) == []
    assert store.commit()
    assert len(check_reads_back(store)) == 1
    store.close()
    (found,) = survey(tmp_path)
    assert remove(found)
    assert list(tmp_path.iterdir()) == []


def test_what_others_have_not_used_for_long_is_removed_and_the_rest_stays(tmp_path: Path) -> None:
    filled(tmp_path)
    last_used(tmp_path / NAMESPACE, NOW - 90 * DAY)
    last_used(other(tmp_path), NOW - 40 * DAY)
    last_used(other(tmp_path, b"p" * 32), NOW - 20 * DAY)
    gone = remove_unused(tmp_path, NAMESPACE, NOW - 30 * DAY)
    assert [namespace.name for namespace in gone] == [namespace_of(OTHER)]
    assert {namespace.name for namespace in survey(tmp_path)} == {NAMESPACE, namespace_of(b"p" * 32)}


def test_a_namespace_goes_with_the_sessions_that_were_in_it(tmp_path: Path) -> None:
    namespace = other(tmp_path)
    for name in ("sessions.sqlite", "sessions.sqlite-wal", "sessions.sqlite-shm"):
        (namespace / name).write_bytes(b"chats")
    last_used(namespace, NOW - 3 * DAY)
    assert len(remove_unused(tmp_path, "", before=NOW - DAY)) == 1
    assert not namespace.exists()


def test_what_is_no_namespace_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "lock").touch()
    (tmp_path / "file").touch()
    full = other(tmp_path)
    (full / "letter to my aunt").touch()
    link = tmp_path / ("a" * 32)
    link.symlink_to(tmp_path / "letters")
    (found,) = survey(tmp_path)
    assert found.path == full
    assert not remove(found)
    assert (full / "letter to my aunt").exists()
    assert (full / "blocks").exists()
    assert (tmp_path / "letters" / "lock").exists()


def test_a_removal_that_was_killed_half_way_is_finished_by_the_next(tmp_path: Path) -> None:
    path = other(tmp_path)
    path.rename(path.with_name(path.name + ".removed"))
    (path.with_name(path.name + ".removed") / "index.sqlite").unlink()
    other(tmp_path)
    assert len(survey(tmp_path)) == 2
    assert all(remove(namespace) for namespace in reversed(survey(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_opens_while_its_namespace_is_removed_is_refused(tmp_path: Path) -> None:
    """It has opened the lock file before that was removed, and locks it afterwards."""
    from octavo.errors import ConfigError
    from octavo.files import Files

    class Overtaken(Files):
        def open(self, path: Path) -> int:
            fd = super().open(path)
            if path.name == "lock":
                assert remove(survey(tmp_path)[0])
            return fd

    filled(tmp_path)
    with pytest.raises(ConfigError, match="in use by another process"):
        open_store(tmp_path, Overtaken())
    open_store(tmp_path).close()


def test_there_may_be_no_folder(tmp_path: Path) -> None:
    assert survey(tmp_path / "none") == []
    assert bytes_free(tmp_path / "none" / "at" / "all") == bytes_free(tmp_path)


def test_a_start_shows_what_others_left_and_what_it_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last_used(other(tmp_path), NOW - 40 * DAY)
    last_used(other(tmp_path, b"p" * 32), NOW - 20 * DAY)
    with caplog.at_level(logging.WARNING):
        tidy(tmp_path, NAMESPACE, 30 * DAY, NOW)
    removed, kept = (record.getMessage() for record in caplog.records)
    assert namespace_of(OTHER) in removed
    assert "not used for 40 days (setting disk_max_age)" in removed
    assert "1 other models or settings, last used 20 days ago" in kept


@pytest.mark.parametrize(("age_days", "left"), [(29, 4), (31, 1)])
def test_blocks_that_were_not_used_for_too_long_are_dropped_at_start(
    tmp_path: Path, age_days: int, left: int
) -> None:
    def opened(at: float, max_age_s: float = 30 * DAY) -> DiskStore:
        return DiskStore.open(
            tmp_path, 4 * SLOT, BLOCK, bytes(range(32)), max_age_s=max_age_s, clock=lambda: at
        )

    store = opened(NOW)
    assert all(put(store, slot, slot) for slot in range(4))
    store.close()
    store = opened(NOW + 20 * DAY)
    (name,) = (name for name, slot in store.entries() if slot == 2)
    assert store.read(2, name, memoryview(bytearray(BLOCK)))
    store.close()
    store = opened(NOW + age_days * DAY)
    assert (len(check_reads_back(store)), store.aged) == (left, 4 - left)
    store.close()
    assert len(check_reads_back(opened(NOW + 20 * DAY, 1e12))) == left  # the index has lost them too
