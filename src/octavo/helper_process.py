"""A helper process for work that may crash, hang or grow: one request at a time through a pipe.

    server: exchange(request, seconds) --frame by stdin--> worker --frame by stdout--> server

A frame is its length in four bytes, then so many bytes. The worker is a Python file that is run by its path,
without site packages, environment or current folder; it imports from the folders that its command names. A
failure costs only one request: a worker that dies, or takes too long, has been ended when `exchange` raises.
"""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

_READ_BYTES = 1 << 20
_HEADER_BYTES = 4
_KEPT_ENVIRONMENT = ("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class HelperEnded(Exception):
    """The process has ended, or sent a malformed frame; the text says how it ended."""


class HelperTimeout(Exception):
    """The answer did not come in time; the process has been ended."""


class HelperProcess:
    """One worker. One thread at a time calls `exchange`; after an exception it has been ended. Raises OSError
    if no process can be started."""

    def __init__(self, worker: Path, import_from: Sequence[str], answer_bytes_max: int) -> None:
        self._answer_bytes_max = answer_bytes_max
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(worker), *import_from],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    @property
    def pid(self) -> int:
        """The pid of the process."""
        return self._process.pid

    def exchange(self, request: bytes | Sequence[bytes], seconds: float) -> bytes:
        """The answer to a request, which may come in pieces, so that a large one is not copied. Raises
        HelperTimeout or HelperEnded."""
        try:
            pieces = [request] if isinstance(request, bytes) else request
            return self._exchange(pieces, time.monotonic() + seconds)
        except TimeoutError:
            self.end()
            raise HelperTimeout(f"took more than {seconds:.0f} s, and was stopped") from None
        except (OSError, ValueError):  # a closed pipe, or half a frame
            status = self.end()
            raise HelperEnded(f"signal {-status}" if status < 0 else f"exit status {status}") from None
        except BaseException:  # ctrl-c: the next exchange must not read this answer
            self.end()
            raise

    def _exchange(self, pieces: Sequence[bytes], deadline: float) -> bytes:
        """Raises TimeoutError, OSError, ValueError."""
        header = sum(map(len, pieces)).to_bytes(_HEADER_BYTES, "big")
        unsent = deque(memoryview(piece) for piece in (header, *pieces))
        received, expected = bytearray(), _HEADER_BYTES
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        poll.register(self._out, select.POLLIN)
        while len(received) < expected:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for descriptor, _ in poll.poll(left * 1000):
                if descriptor == self._in:
                    piece = unsent.popleft()
                    rest = piece[os.write(self._in, piece) :]
                    if rest:
                        unsent.appendleft(rest)
                    if not unsent:
                        poll.unregister(self._in)
                    continue
                answer = os.read(self._out, _READ_BYTES)
                received += answer
                if len(received) >= _HEADER_BYTES:
                    expected = _HEADER_BYTES + int.from_bytes(received[:_HEADER_BYTES], "big")
                if not answer or max(expected, len(received)) > self._answer_bytes_max + _HEADER_BYTES:
                    raise ValueError("the process ended, or its answer is too long")
        return bytes(received[_HEADER_BYTES:])

    def send(self, request: bytes, seconds: float) -> None:
        """For a worker that answers out of order: one thread at a time sends, and another one receives.
        Raises HelperEnded, also if the worker does not read it within `seconds`."""
        unsent = memoryview(len(request).to_bytes(_HEADER_BYTES, "big") + request)
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        try:
            while unsent:
                if not poll.poll(seconds * 1000):
                    raise HelperEnded("it reads nothing")
                unsent = unsent[os.write(self._in, unsent) :]
        except (OSError, ValueError) as error:  # a closed pipe
            raise HelperEnded(str(error)) from None

    def receive(self, seconds: float | None = None) -> bytes:
        """Wait for the next answer, without a limit or within that time. Raises HelperEnded."""
        received, expected = bytearray(), _HEADER_BYTES
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        while len(received) < expected:
            if not poll.poll(None if seconds is None else seconds * 1000):
                raise HelperEnded("it answers nothing")
            piece = os.read(self._out, expected - len(received))
            received += piece
            if len(received) == _HEADER_BYTES == expected:
                expected += int.from_bytes(received, "big")
            if not piece or expected > self._answer_bytes_max + _HEADER_BYTES:
                raise HelperEnded("it ended, or its answer is too long")
        return bytes(received[_HEADER_BYTES:])

    def kill(self) -> None:
        """Kill the process, from any thread: a waiting `receive` raises HelperEnded."""
        self._process.kill()

    def end(self) -> int:
        """Kill the process; returns its exit status. Idempotent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        return self._process.wait()


def import_folders(*packages: str) -> list[str]:
    """The folders that these packages are imported from, for `import_from`."""
    origins = [spec.origin for spec in map(importlib.util.find_spec, packages) if spec is not None]
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins if origin is not None))
