"""Files: the few calls by which an offload tier uses the disk.

A tier uses only `Files`, so that tests can replace it (by one that fails on purpose). Every call may raise
OSError, and every statement to a database may raise sqlite3.Error; nothing here retries or hides one.

`folder_of`, `read_named_file` and `new_file` are for the folders and files that an operator names.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

from octavo.database import connect
from octavo.errors import ConfigError

KEPT = 3  # older files that `new_file` keeps


class Files:
    """A tier's calls of the operating system."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents, for this user only; an existing one is not changed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)

    def open(self, path: Path) -> int:
        """Open a file to read and write, created if it does not exist; returns its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """The file's length in bytes."""
        return os.fstat(fd).st_size

    def pread(self, fd: int, into: memoryview, offset: int) -> int:
        """Read into a buffer; returns the number of bytes, which may be fewer, and is 0 at the end."""
        return os.preadv(fd, [into], offset)

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        """Start reading a range ahead, without waiting."""
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write a buffer; returns the number of bytes written, which may be fewer."""
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        """Wait until the written data are on the medium."""
        os.fdatasync(fd)

    def fallocate(self, fd: int, length: int) -> None:
        """Make the file at least `length` bytes long, and allocate all of them."""
        os.posix_fallocate(fd, 0, length)

    def truncate(self, fd: int, length: int) -> None:
        """Make the file `length` bytes long."""
        os.ftruncate(fd, length)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the medium."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Device and inode of the path's current file; None: there is none."""
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def connect(self, path: Path) -> sqlite3.Connection:
        """Open an SQLite database, created if it does not exist. Never waits for another's lock."""
        return connect(path)


class OpenPaths:
    """The paths of open files. Writes to a file whose name was removed succeed and are synced, but are never
    found again."""

    def __init__(self, files: Files, paths: Sequence[Path]) -> None:
        """Track the files that exist now. Raises OSError."""
        self._files = files
        self._known = {path: found for path in paths if (found := files.identity(path)) is not None}

    def find_vanished(self) -> Path | None:
        """A file that its path no longer names: it was removed, moved or replaced."""
        for path, known in self._known.items():
            try:
                if self._files.identity(path) != known:
                    return path
            except OSError:
                return path
        return None


def vanished_message(path: Path) -> str:
    """The error text for a vanished file."""
    return (
        f"{path} has vanished: it was removed, moved or replaced while the server runs, so that data written "
        "to it would be lost at a restart; put it back, or start the server again"
    )


def folder_of(name: str, given: str) -> Path:
    """A folder that a setting names, without ~. Raises ConfigError for an unknown user's home."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{name} is {given[:80]!r}, and there is no such user; allowed: a folder, such as ~/octavo"
        ) from None


def new_file(path: Path, setting: str) -> int:
    """The descriptor of a new file with mode 0600, for writing. An existing one becomes `FILE.1`, that one
    `FILE.2`, and so on up to `KEPT`: an older file may show why a server had to be restarted.

    Raises ConfigError, which names the setting.
    """
    try:
        for number in range(KEPT, 0, -1):
            older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if older.is_file():
                older.replace(path.with_name(f"{path.name}.{number}"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:  # ValueError: "." has no name
        words = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{setting} is {path}, which cannot be written: {words}; allowed: a new file in a writable folder"
        ) from None


def read_named_file(path: Path, bytes_max: int, otherwise: str) -> bytes:
    """A file that a setting names, of at most `bytes_max` bytes. `otherwise`: how to name another file.

    Raises ConfigError for a larger or unreadable one.
    """
    try:
        data = _read_regular_file(path, bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; {otherwise}") from None
    if len(data) > bytes_max:
        raise ConfigError(f"{path} is too large; allowed: up to {bytes_max:,} bytes")
    return data


def _read_regular_file(path: Path, bytes_max: int) -> bytes:
    """The first `bytes_max` bytes of a file, which other users may have placed: never waits for a writer.

    Raises OSError, also for a folder, a device, a pipe or a socket: opening a pipe would wait for its writer.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # of a socket
            raise _not_regular(path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _not_regular(path)
        data = bytearray()
        while len(data) < bytes_max and (chunk := os.read(fd, bytes_max - len(data))):
            data += chunk
    finally:
        os.close(fd)
    return bytes(data)


def _not_regular(path: Path) -> OSError:
    words = "it is not a regular file, but a folder, a device, a pipe or a socket"
    return OSError(errno.EINVAL, words, str(path))
