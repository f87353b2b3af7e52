"""The processes that render a chat template (`template_worker`), a few at a time: lent, waited for, ended.

    render -> an idle process, or a new one -> values by its stdin, text by its stdout -> idle again
                                            -> too late, too large, dead: ended; the next rendering starts one

A template is a stranger's program. Whatever it does, a rendering ends within `SECONDS_MAX` of getting a
process, and takes no more than `MEMORY_MAX` in one that has no secrets and no files.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

from octavo.errors import InvalidRequest, RequestFailed

HELPERS_MAX = 2
SECONDS_MAX = 5.0
START_SECONDS_MAX = 30.0
MEMORY_MAX = 512 << 20
_WORKER = Path(__file__).with_name("template_worker.py")
_KEPT_ENVIRONMENT = ("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_READ_BYTES = 1 << 20


class TemplateHelpers:
    """Renders one template. Any thread may; each waits until it is done."""

    def __init__(self, source: str, chars_max: int) -> None:
        self._source = source
        self._chars_max = chars_max
        self._free = threading.Semaphore(HELPERS_MAX)
        self._idle: list[_Helper] = []  # appending and popping are one step each
        self._words: tuple[list[str], list[str]] | None = None
        self._kept = True
        weakref.finalize(self, _end_all, self._idle)

    def render(self, values: Mapping[str, object]) -> str:
        """The text. Raises InvalidRequest for whatever the template does wrong, RequestFailed where no
        process can be started."""
        line = json.dumps(values).encode() + b"\n"
        with self._free:
            helper, was_idle = self._taken()
            try:
                answer = helper.ask(line, SECONDS_MAX)
            except _Ended:
                if not was_idle:
                    raise
                # It may have been ended from outside since its last text; if the template did, it will again.
                helper = self._started()
                answer = helper.ask(line, SECONDS_MAX)
            if answer.get("kind") in ("memory", "length"):
                helper.end()  # it may still have what it took
            else:
                self._idle.append(helper)
            if not self._kept:
                _end_all(self._idle)
        return self._text(answer)

    def words(self) -> tuple[list[str], list[str]]:
        """What the template has in quotes, and its names. Raises RequestFailed where no process can be
        started."""
        if self._words is None:
            with self._free:
                self._idle.append(self._started())
        assert self._words is not None, "a process that started has told them"
        return self._words

    def close(self) -> None:
        """End the processes. A later rendering has one of its own."""
        self._kept = False
        _end_all(self._idle)

    def _taken(self) -> tuple[_Helper, bool]:
        """A process, and whether it was idle before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            return self._started(), False

    def _started(self) -> _Helper:
        settings = {
            "source": self._source,
            "memory_bytes": MEMORY_MAX,
            "seconds": int(SECONDS_MAX) + 1,
            "chars_max": self._chars_max,
        }
        # A text may come as six characters for each.
        helper = _Helper(bytes_max=6 * self._chars_max + (64 << 10))
        try:
            ready = helper.ask(json.dumps(settings).encode() + b"\n", START_SECONDS_MAX)
        except InvalidRequest as error:
            raise RequestFailed(f"the process that renders chat templates did not start: {error}") from error
        self._words = _texts(ready.get("words")), _texts(ready.get("names"))
        return helper

    def _text(self, answer: Mapping[str, object]) -> str:
        text, kind = answer.get("text"), answer.get("kind")
        if isinstance(text, str):
            return text
        if kind == "memory":
            raise _wrong(f"needs more than {MEMORY_MAX >> 20} MiB for these messages")
        if kind == "length":
            raise InvalidRequest(
                f"the rendered chat has more than {self._chars_max:,} characters, which is the most allowed",
                param="messages",
            )
        raise _wrong(f"refuses these messages: {answer.get('error')}")


class _Ended(InvalidRequest):
    """The process is no more."""


class _Helper:
    """One process. One thread at a time asks it; after an exception it has been ended."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        # No site, no environment, no current folder: nothing but the standard library and Jinja2.
        command = [sys.executable, "-I", "-S", str(_WORKER), *_paths_of("jinja2", "markupsafe")]
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
            )
        except OSError as error:
            raise RequestFailed(f"the process that renders chat templates did not start: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, line: bytes, seconds: float) -> dict[str, object]:
        """What it says to a line. Raises InvalidRequest, after it has ended the process, where that takes too
        long, says too much, or ends."""
        try:
            answer: dict[str, object] = json.loads(self._exchange(line, time.monotonic() + seconds))
        except TimeoutError:
            self.end()
            raise _wrong(f"took more than {seconds:.0f} s for these messages, and was stopped") from None
        except (OSError, ValueError):  # a closed pipe, or half a line
            status = self.end()
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            raise _Ended(
                f"the model's chat template ended its process ({how}); allowed: up to {MEMORY_MAX >> 20} MiB",
                param="messages",
            ) from None
        except BaseException:  # ctrl-c: its answer must not be taken for the next one's
            self.end()
            raise
        return answer

    def _exchange(self, line: bytes, deadline: float) -> bytes:
        """Raises TimeoutError, OSError, ValueError."""
        unsent, received, size = memoryview(line), list[bytes](), 0
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        poll.register(self._out, select.POLLIN)
        while not (received and received[-1].endswith(b"\n")):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for descriptor, _ in poll.poll(left * 1000):
                if descriptor == self._in:
                    unsent = unsent[os.write(self._in, unsent) :]
                    if not unsent:
                        poll.unregister(self._in)
                else:
                    received.append(os.read(self._out, _READ_BYTES))
                    size += len(received[-1])
                    if not received[-1] or size > self._bytes_max:
                        raise ValueError("it ended, or says too much")
        return b"".join(received)

    def end(self) -> int:
        """Stop the process, whatever it does; its exit status. Again: the same."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        return self._process.wait()


def _end_all(helpers: list[_Helper]) -> None:
    while helpers:
        helpers.pop().end()


def _texts(told: object) -> list[str]:
    return [one for one in told if isinstance(one, str)] if isinstance(told, list) else []


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"the model's chat template {what}", param="messages")


def _paths_of(*packages: str) -> list[str]:
    """The folders that they are imported from."""
    origins = [spec.origin for spec in map(importlib.util.find_spec, packages) if spec is not None]
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins if origin is not None))
