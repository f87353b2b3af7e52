"""Standard streams that are closed, full or a broken pipe.

    standard output    a failed write ends the command with status 1 and a line on standard error; without
                       that line for a broken pipe (`| head`)
    standard error     a failed write is ignored: a server continues without its log
    standard input     a closed one is empty

A closed descriptor is opened on the null device first. Otherwise a file or a socket could get its number, and
printed text would be written into it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FLAGS = {0: os.O_RDONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}  # 1: read-only, so that writes fail


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Replace the standard streams while a command runs. Ends the process if its output was lost; other
    exceptions of the command pass through."""
    _open_closed_descriptors()
    output = _Output(1, "w", closefd=False)
    if sys.stdout is sys.__stdout__:  # else a caller has replaced it
        sys.stdout = _text_stream(output, sys.__stdout__)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text_stream(_LossyOutput(2, "w", closefd=False), sys.__stderr__)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, where a failure can be reported, not at interpreter exit
    except OSError:
        if output.lost is None:
            raise
        if not isinstance(output.lost, BrokenPipeError):
            sys.stderr.write(f"octavo: standard output cannot be written: {output.lost.strerror}\n")
        output.is_given_up = True
        sys.exit(1)


class _Output(io.FileIO):
    """Standard output; `lost` is the error of the first failed write."""

    lost: OSError | None = None
    is_given_up = False  # further writes are ignored

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, and remember the first failure."""
        if self.is_given_up:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            raise


class _LossyOutput(io.FileIO):
    """Standard error; failed writes are ignored."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write; a failed write counts as whole."""
        with contextlib.suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def _open_closed_descriptors() -> None:
    """Open closed descriptors on the null device; each gets its own number, the lowest that is free."""
    for fd, flags in _FLAGS.items():
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, flags)
            assert opened == fd
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))


def _text_stream(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """A text stream over `raw`, with the encoding and buffering of the previous one."""
    buffer = io.BufferedWriter(raw)
    if not isinstance(before, io.TextIOWrapper):  # it was closed
        return io.TextIOWrapper(buffer)
    return io.TextIOWrapper(
        buffer,
        before.encoding,
        before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
