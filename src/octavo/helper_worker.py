"""Common functions of helper processes: frames by file descriptor, and limits of the system.

A frame is its length in four bytes, then so many bytes (`helper_process`).
"""

from __future__ import annotations

import contextlib
import os
import resource


def read_frame(descriptor: int) -> bytes:
    """The next frame; empty at the end."""
    return _read(descriptor, int.from_bytes(_read(descriptor, 4), "big"))


def write_frame(descriptor: int, data: bytes) -> None:
    """Write the whole frame; waits for the reader. Raises OSError."""
    for part in (len(data).to_bytes(4, "big"), data):
        unsent = memoryview(part)
        while unsent:
            unsent = unsent[os.write(descriptor, unsent) :]


def bound_memory(num_bytes: int) -> None:
    """Limit this process to so many more bytes of address space (if the system does not report the current
    size, in all), and to no file writes."""
    size = 0
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    most = size + num_bytes if allowed == resource.RLIM_INFINITY else min(size + num_bytes, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def prefer_as_oom_victim() -> None:
    """Have the system's OOM killer choose this process before the server."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _read(descriptor: int, size: int) -> bytes:
    """Exactly `size` bytes; none at the end."""
    data = bytearray()
    while len(data) < size and (piece := os.read(descriptor, size - len(data))):
        data += piece
    return bytes(data) if len(data) == size else b""
