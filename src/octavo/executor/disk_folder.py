"""The folder of a disk cache as a whole: its namespaces, their sizes and last uses, how one is removed, and
the refusals where one has no room or cannot be used.

Only folders named by 32 hex digits count as namespaces. One is removed only if it holds nothing but a store's
files, and only while this process holds its lock, so never under a process that has it open. It is renamed
first, so that a store opened meanwhile begins a namespace of its own. It does not know models.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.database import connect_unchanged
from octavo.errors import ConfigError
from octavo.units import format_bytes

_NAMESPACE = re.compile(r"[0-9a-f]{32}(\.removed)?")
_DATABASES = ("sessions.sqlite", "index.sqlite")
_FILES = (
    "blocks",
    *(f"{name}{end}" for name in _DATABASES for end in ("-wal", "-shm", "-journal", "")),
    "clock",
    "clock.new",
    "lock",
)


@dataclass(frozen=True, slots=True)
class Namespace:
    """The cache of one fingerprint of model and KV layout."""

    path: Path
    num_bytes: int  # on the medium
    used_at: float  # seconds since 1970
    in_use: bool  # a process has it open
    num_blocks: int | None  # blocks that a restart would find; None: not known

    @property
    def name(self) -> str:
        """The folder's name: see `octavo.executor.disk.namespace_of`."""
        return self.path.name


def survey(folder: Path) -> list[Namespace]:
    """The namespaces in the folder, longest unused first; none if there is no folder. Changes nothing."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _NAMESPACE.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                found.append(_read_namespace(path))
    return sorted(found, key=lambda namespace: namespace.used_at)


def bytes_free(folder: Path) -> int | None:
    """Free bytes on the medium of the folder, existing or not; None: not known."""
    for path in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(path).free
    return None


def remove(namespace: Namespace) -> bool:
    """Remove it with all its blocks. False, and it stays, when a process has it open, something else is in it
    or the system refuses."""
    path = namespace.path
    with _locked(path) as is_ours:
        if not is_ours:
            return False
        if not path.exists():
            return True  # another process was faster
        try:
            if set(os.listdir(path)).difference(_FILES):
                return False  # it holds other files
            gone = path.with_name(path.name.removesuffix(".removed") + ".removed")
            if gone != path:
                if gone.exists():  # left by a process that was killed while removing
                    _empty(gone)
                path.rename(gone)
            _empty(gone)
        except OSError:
            return False
    return True


def remove_unused(folder: Path, keep: str, before: float) -> list[Namespace]:
    """Remove the namespaces last used before that time that no process has open, but not the one named
    `keep`; returns the removed ones."""
    old = [n for n in survey(folder) if n.name != keep and n.used_at < before and not n.in_use]
    return [namespace for namespace in old if remove(namespace)]


def _read_namespace(path: Path) -> Namespace:
    num_bytes, used_at = 0, 0.0
    for name in _FILES:
        with contextlib.suppress(OSError):
            stat = (path / name).stat()
            num_bytes += stat.st_blocks * 512
            used_at = max(used_at, stat.st_mtime)
    with _locked(path) as is_ours:
        num_blocks = _count_blocks(path / "index.sqlite") if is_ours else None
    return Namespace(path, num_bytes, used_at, not is_ours, num_blocks)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether no other process has the namespace until the end of the block. One without a lock has no
    owner."""
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    except OSError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except OSError:
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(fd)


def _count_blocks(index: Path) -> int | None:
    """Rows of an index that no process writes, read without changing it; rows only in its log are not
    counted."""
    try:
        with contextlib.closing(connect_unchanged(index)) as database:
            return int(database.execute("SELECT count(*) FROM blocks").fetchone()[0])
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def _empty(path: Path) -> None:
    """Remove a namespace's files, then the folder. Raises OSError, also when something else is in it."""
    for name in _FILES:
        (path / name).unlink(missing_ok=True)
    path.rmdir()


def check_room(blocks: Path, num_bytes: int) -> None:
    """Raise ConfigError where the disk has no room for the file at this size; it may exist already. If the
    free space is not known, resizing the file will fail instead."""
    present, free = 0, bytes_free(blocks.parent)
    with contextlib.suppress(OSError):
        present = blocks.stat().st_blocks * 512
    if free is not None and num_bytes - present > free:
        raise ConfigError(_no_room(blocks.parents[1], num_bytes, format_bytes(free)))


def refusal(folder: Path, num_bytes: int, error: OSError | sqlite3.Error) -> str:
    """The error text for the person who chose the folder and the size."""
    if isinstance(error, sqlite3.Error):
        is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        reason = f"its index says: {error}"
    else:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = error.strerror or str(error)
    if not is_full:
        return (
            f"the disk folder {folder} cannot be used: {reason}; allowed: a folder in which this process may "
            "write files; choose another, or change who may write there"
        )
    free = "too little"
    with contextlib.suppress(OSError):
        free = format_bytes(shutil.disk_usage(folder).free)
    return _no_room(folder, num_bytes, free)


def _no_room(folder: Path, num_bytes: int, free: str) -> str:
    return (
        f"the disk tier asks for {format_bytes(num_bytes)} in {folder}, and {free} is free there; "
        "give the tier less, or make room"
    )
