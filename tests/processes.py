"""Programs that a test starts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any


@contextmanager
def running(
    command: Sequence[object], *, stdout: int | IO[Any] | None = subprocess.PIPE, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A program that is ended with the block, however that ends: a test that fails waits for nothing."""
    with subprocess.Popen([str(word) for word in command], stdout=stdout, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()  # nothing, for one that has ended


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def url_told(process: subprocess.Popen[str]) -> str:
    """The address of a server, which it tells on standard error. Fails where it ends first."""
    assert process.stderr is not None
    banner = ""
    while (found := re.search(r"(http://127\S+)/v1 ", banner)) is None:
        line = process.stderr.readline()
        assert line, banner
        banner += line
    return found[1]
