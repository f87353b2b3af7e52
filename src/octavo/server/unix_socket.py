"""A Unix socket to listen on instead of address and port: for a proxy or a program on the same machine.

    PATH        the socket, mode 0660: its owner and its group may connect
    PATH.lock   locked while a server uses PATH; it is never deleted, because that would race

A stale socket of an earlier server is replaced. A socket that something answers, or a file of another type,
is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.errors import ConfigError

_MODE = 0o660
_PROBE_S = 2.0


@contextmanager
def unix_listener(path: Path) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet, as from `octavo.server.run.bind`; its file is removed at the
    end. Raises ConfigError."""
    path = path.absolute()
    with _locked(path.with_name(path.name + ".lock"), path):
        _remove_stale(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            _bind(listener, path)
            made = path.lstat()
            try:
                yield listener
            finally:
                _remove_own(path, made)


def _remove_own(path: Path, made: os.stat_result) -> None:
    """Remove the file, unless another has replaced it."""
    with contextlib.suppress(OSError):
        now = path.lstat()
        if (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino):
            path.unlink()


def _bind(listener: socket.socket, path: Path) -> None:
    try:
        os.fchmod(listener.fileno(), _MODE)  # the file is created with this mode, less the umask
        listener.bind(os.fspath(path))
        path.chmod(_MODE)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on --unix-socket {path}: {error.strerror}; allowed: a new name in a folder that "
            "this user may write to"
        ) from None


@contextmanager
def _locked(lock: Path, path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on --unix-socket {path}: {lock} cannot be made: {error.strerror}; allowed: a "
            "name in a folder that this user may write to"
        ) from None
    with os.fdopen(descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--unix-socket {path} is another server's; choose another name") from None
        yield


def _remove_stale(path: Path) -> None:
    """Unlink a socket that nothing answers. Raises ConfigError for any other file at the path."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on --unix-socket {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            f"--unix-socket {path} is there, and no socket; allowed: a new name, or a socket that nothing "
            "answers"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(
                f"--unix-socket {path} is there, and may be in use ({error}); choose another name, or "
                "remove it"
            ) from None
    raise ConfigError(f"--unix-socket {path} is another program's, which answers; choose another name")
