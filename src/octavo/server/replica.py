"""A replica of a cluster: its key, its slot, its name, and its slot's folder on disk.

The key arrives over an inherited socket, and is in no argument, variable, file or log. It opens all routes:
the relay handles Host, Origin and TLS. One process at a time uses a slot's folder, under a lock that ends
with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from octavo.errors import ConfigError
from octavo.routing.slots import SLOT_MAX, ReplicaStart

KEY_HEADER = "x-octavo-cluster"
LINE_BYTES_MAX = 16_384
_LOCK, _POLL_S, _REPORT_S = "slot.lock", 0.1, 5.0
_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Raises ConfigError. `slot` is part of the ids that the replica makes; `disk` is the slot's folder, for
    this process alone."""

    key: str = field(repr=False)
    slot: int
    name: str
    disk: Path | None = None

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise ConfigError("the cluster's key is no key; allowed: 64 hex digits in lower case")
        if not 0 <= self.slot <= SLOT_MAX:
            raise ConfigError(f"a replica's slot is {self.slot}; allowed: 0 to {SLOT_MAX:,}")
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"a replica's name is {self.name[:80]!r}; allowed: 1 to 64 letters, digits, dots, dashes and "
                "underscores"
            )

    @property
    def headers(self) -> dict[str, str]:
        """The headers that every request to it needs."""
        return {KEY_HEADER: self.key}

    @property
    def start(self) -> ReplicaStart:
        """The part of it that the engine gets."""
        return ReplicaStart(self.slot, self.name)

    def to_line(self) -> bytes:
        """The line that `of_line` parses."""
        disk = None if self.disk is None else str(self.disk)
        fields = {"key": self.key, "slot": self.slot, "name": self.name, "disk": disk}
        return msgspec.json.encode(fields) + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> ReplicaIdentity:
        """Parse a line. Raises ConfigError, whose text does not quote the line: it has the key."""
        try:
            return msgspec.convert(msgspec.json.decode(line), cls, dec_hook=lambda kind, value: kind(value))
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
            raise ConfigError(
                "the line that a replica begins with is wrong; allowed: key, slot, name and disk as JSON"
            ) from None


@contextlib.contextmanager
def claimed_slot(replica: ReplicaIdentity, progress: Callable[[str], None]) -> Iterator[None]:
    """Lock the folder of its slot, if it has one, until the end of the block.

    While another process has the lock, such as a replica that still drains, it waits, and reports that to
    `progress`. Raises ConfigError if the folder cannot be used.
    """
    if replica.disk is None:
        yield
        return
    try:
        replica.disk.mkdir(parents=True, exist_ok=True)
        lock = os.open(replica.disk / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"the folder of slot {replica.slot}, {replica.disk}, cannot be used: {error.strerror}; allowed: "
            "one in which this process may write files"
        ) from None
    try:
        reported_at = -_REPORT_S
        while not _try_lock(lock):
            if time.monotonic() - reported_at >= _REPORT_S:
                reported_at = time.monotonic()
                progress(f"waiting until another process leaves slot {replica.slot}: {replica.disk}")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
