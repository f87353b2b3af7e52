"""Several front ends before one engine: the processes of `octavo serve --http-processes N`, and what watches
them.

    supervisor (main)  --- control sockets --->  engine, front end 0, ..., front end N-1
    front ends         --- channels ---------->  engine                   (octavo.serving.channel)
    clients            --- one socket -------->  whichever front end accepts

    a front end ends          its connections are lost, its requests cancelled; another one is started
    the engine ends           every stream ends with an error, all front ends end, and `supervise` raises
    a signal                  is said to the front ends, each of which drains; then the engine ends
    the supervisor ends       the others see its sockets close, and end as after a signal

Children ignore signals, which a terminal or systemd sends to all processes of a group. They get their job on
standard input and one-word messages by a socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

from octavo.config import StartOptions
from octavo.errors import EngineStopped
from octavo.server.jobs import EngineJob, FrontEndJob, encode_job
from octavo.server.run import base_url
from octavo.server.settings import ServerSettings

RESTARTS_MAX = 3  # so many front ends that end within RESTARTS_WINDOW_S, and the server gives up
RESTARTS_WINDOW_S = 60.0
READY = b"ready "  # and the model's name
STOP, HANGUP, END, FRONT_END = b"stop", b"hangup", b"end", b"front end "
GAVE_UP = b"gave up: "
MESSAGE_BYTES_MAX = 4096
_MODULE = "octavo.cli.child"

log = logging.getLogger("octavo.server")


class ChildEnded(Exception):
    """A child ended before it was ready; it has said why. `status`: its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a process of the server ended with status {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class _Said:
    """A child has said something."""

    child: _Child
    word: bytes


@dataclass(frozen=True, slots=True)
class _Ended:
    """A child has ended, with that status; below 0: by a signal."""

    child: _Child
    status: int


@dataclass(frozen=True, slots=True)
class _Signalled:
    """A signal has come."""

    number: int


_Event = _Said | _Ended | _Signalled
OnReady = Callable[[str, str], None]


class _Child:
    """A process of ours, and the control socket to it."""

    def __init__(
        self,
        name: str,
        job: EngineJob | FrontEndJob,
        events: SimpleQueue[_Event],
        descriptors: Sequence[int] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *descriptors],
                process_group=0,
                env=os.environ | (environment or {}),
            )
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(encode_job(job))
        threading.Thread(target=self._watch, args=(events,), name=f"octavo-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs, also before its end is an event."""
        return self._process.poll() is None

    def say(self, word: bytes, descriptors: Sequence[int] = ()) -> None:
        """Does nothing where it has ended."""
        with contextlib.suppress(OSError):  # as its thread learns
            socket.send_fds(self._control, [word], list(descriptors))

    def kill(self) -> None:
        """Now."""
        self._process.kill()

    def _watch(self, events: SimpleQueue[_Event]) -> None:
        while True:
            try:
                word = self._control.recv(MESSAGE_BYTES_MAX)
            except OSError:
                word = b""
            if not word:
                break
            events.put(_Said(self, word))
        status = self._process.wait()
        self._control.close()
        events.put(_Ended(self, status))


class Supervisor:
    """Runs the processes of one server, in the main thread."""

    def __init__(
        self,
        model: str | None,
        options: StartOptions,
        settings: ServerSettings,
        listener: socket.socket,
        count: int,
        metrics: Path,
    ) -> None:
        self._options, self._settings, self._listener, self._metrics = options, settings, listener, metrics
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._count = count
        self._name = ""  # of the model
        self._num_stops = 0  # that were said to front ends
        self._failed: str | None = None  # why the server ends, if not for a signal
        self._restarts: deque[float] = deque(maxlen=RESTARTS_MAX)
        self._front_ends: dict[_Child, int] = {}  # their numbers
        self._ready: set[_Child] = set()
        job = EngineJob(model, options, settings, self._count)
        self._engine = _Child("engine", job, self._events)

    def run(self, on_ready: OnReady) -> None:
        """Until a signal, or the engine's end. `on_ready` gets the base URL, and the model's name, when all
        front ends serve.

        Raises EngineStopped where the engine, or its process, ended by itself, or front ends do all the time;
        ChildEnded where the engine could not begin.
        """
        is_ready = engine_has_ended = False
        try:
            for index in range(self._count):
                self._start_front_end(index)
            while self._front_ends or not engine_has_ended:
                match self._events.get():
                    case _Signalled(number):
                        self._on_signal(number)
                    case _Said(child, word):
                        self._on_word(child, word)
                    case _Ended(child, status) if child is self._engine:
                        engine_has_ended = True
                        self._on_engine_end(status, is_ready=is_ready)
                    case _Ended(child, status):
                        self._on_front_end_end(child, status)
                if not is_ready and len(self._ready) == self._count:
                    is_ready = True
                    scheme = "http" if self._settings.tls_cert is None else "https"
                    on_ready(base_url(self._listener, scheme), self._name)
                if not self._front_ends:
                    self._engine.say(END)
        finally:
            for child in (*self._front_ends, self._engine):
                child.kill()
        if self._failed is not None:
            raise EngineStopped(self._failed)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """A handler of signals."""
        self._events.put(_Signalled(number))

    def _start_front_end(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            listener, channel = self._listener.fileno(), theirs.fileno()
            job = FrontEndJob(
                index, self._options, self._settings, listener, channel, self._engine.pid, self._metrics
            )
            environment = {"PROMETHEUS_MULTIPROC_DIR": str(self._metrics)}
            child = _Child(f"front-end-{index}", job, self._events, [listener, channel], environment)
            self._front_ends[child] = index
            self._engine.say(FRONT_END + str(index).encode(), [ours.fileno()])

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            for child in self._front_ends:
                child.say(HANGUP)
            return
        self._stop()

    def _stop(self) -> None:
        self._num_stops += 1
        self._listener.close()  # else the system would take connections that nothing accepts
        for child in self._front_ends:
            child.say(STOP)

    def _on_word(self, child: _Child, word: bytes) -> None:
        if word.startswith(READY):
            self._name = word.removeprefix(READY).decode()
            self._ready.add(child)
        elif word.startswith(GAVE_UP):
            self._failed = word.removeprefix(GAVE_UP).decode(errors="replace")

    def _on_engine_end(self, status: int, *, is_ready: bool) -> None:
        if not is_ready and self._num_stops == 0:
            raise ChildEnded(status)
        if self._front_ends:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            self._failed = self._failed or f"the engine's process has ended ({how})"
            log.error("%s; every stream ends with an error, and the server ends", self._failed)
            if self._num_stops == 0:
                self._stop()

    def _on_front_end_end(self, child: _Child, status: int) -> None:
        """Another one takes its place, unless the server ends."""
        index = self._front_ends.pop(child)
        self._ready.discard(child)
        if self._num_stops or self._failed is not None or not self._engine.is_alive:
            return
        how = f"signal {-status}" if status < 0 else f"status {status}"
        now = time.monotonic()
        self._restarts.append(now)
        if len(self._restarts) == RESTARTS_MAX and now - self._restarts[0] < RESTARTS_WINDOW_S:
            self._failed = (
                f"front ends ended {RESTARTS_MAX} times within {RESTARTS_WINDOW_S:.0f} s, the last by {how}"
            )
            log.error("%s; the server ends", self._failed)
            self._stop()
            return
        log.error(
            "front end %d has ended (%s): its connections are lost, and its requests cancelled; another one "
            "is started",
            index,
            how,
        )
        self._start_front_end(index)


def supervise(
    model: str | None,
    options: StartOptions,
    settings: ServerSettings,
    listener: socket.socket,
    count: int,
    on_ready: OnReady,
) -> None:
    """Serve with so many front ends until a signal comes. Raises as `Supervisor.run`."""
    with tempfile.TemporaryDirectory(prefix="octavo-metrics-") as metrics:
        supervisor = Supervisor(model, options, settings, listener, count, Path(metrics))
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, supervisor.on_signal)
        try:
            supervisor.run(on_ready)
        finally:
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)
