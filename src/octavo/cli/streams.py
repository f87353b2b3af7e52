"""Standard streams that are closed, full or read by nobody any more.

    standard output    what cannot be written ends the command: one line on standard error, and exit status 1;
                       nothing is said to a pipe that nobody reads (`| head`)
    standard error     what cannot be written is lost, and nothing else: a server goes on without its log
    standard input     one that is closed is empty

A closed descriptor is given to something else before a file or a socket can get its number: what is printed
would otherwise be written into that.
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

_FLAGS = {0: os.O_RDONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}  # 1: so that whoever writes learns that it is lost


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """For the whole life of a command. Ends the process where its output was lost; what the command raises
    otherwise passes through."""
    _take_closed()
    output = _Output(1, "w", closefd=False)
    if sys.stdout is sys.__stdout__:  # else somebody else took it, who may do as they like
        sys.stdout = _text(output, sys.__stdout__)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_Lossy(2, "w", closefd=False), sys.__stderr__)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, where it can be told, and not when the interpreter ends
    except OSError:
        if output.lost is None:
            raise
        if not isinstance(output.lost, BrokenPipeError):
            sys.stderr.write(f"octavo: standard output cannot be written: {output.lost.strerror}\n")
        output.is_given_up = True
        sys.exit(1)


class _Output(io.FileIO):
    """Standard output; `lost` is the first reason why something could not be written."""

    lost: OSError | None = None
    is_given_up = False  # and what is still to come is nobody's

    def write(self, data: ReadableBuffer, /) -> int:
        """As `FileIO` does."""
        if self.is_given_up:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            raise


class _Lossy(io.FileIO):
    """Standard error: it takes everything, and loses what cannot be written."""

    def write(self, data: ReadableBuffer, /) -> int:
        """How much there was."""
        with contextlib.suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def _take_closed() -> None:
    """Open what is closed: each gets its own number, which is the lowest that is free."""
    for fd, flags in _FLAGS.items():
        try:
            os.fstat(fd)
        except OSError:
            taken = os.open(os.devnull, flags)
            assert taken == fd
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """A stream over it, like the one before."""
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
