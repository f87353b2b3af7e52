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
import fcntl
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from octavo.config import StartOptions
from octavo.errors import EngineStopped
from octavo.server.jobs import EngineJob, FrontEndJob, encode_job
from octavo.server.run import Listeners, base_url
from octavo.server.settings import ServerSettings

RESTARTS_MAX = (
    3  # so many that end within RESTARTS_WINDOW_S, and the next one waits; with no other, the server ends
)
RESTART_PAUSE_S = 10.0
RESTARTS_WINDOW_S = 60.0
READY = b"ready "  # and the model's name
STOP, HANGUP, END, FRONT_END = b"stop", b"hangup", b"end", b"front end "
GAVE_UP = b"gave up: "
MESSAGE_BYTES_MAX = 4096
_MODULE = "octavo.cli.child"
_ENDS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("octavo.server")


class ChildEnded(Exception):
    """A child ended before all were ready. `status`: its exit status, of which it has said why; below 0: the
    signal."""

    def __init__(self, status: int) -> None:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        super().__init__(f"a process of the server ended {how}")
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
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *descriptors],
                process_group=0,
                env=os.environ | (environment or {}),
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # it has ended, as is seen
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
        listeners: Listeners,
        count: int,
        metrics: Path,
    ) -> None:
        self._options, self._settings, self._metrics = options, settings, metrics
        self._listener, self._scrapes = listeners.requests, listeners.scrapes
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._count = count
        self._name = ""  # of the model
        self._num_stops = 0  # that were said to front ends
        self._failed: str | None = None  # why the server ends, if not for a signal
        self._due: dict[int, float] = {}  # front ends that are to be started again: when
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
            while self._front_ends or self._due or not engine_has_ended:
                match self._next_event():
                    case None:
                        self._restart_due()
                    case _Signalled(number):
                        self._on_signal(number)
                    case _Said(child, word):
                        self._on_word(child, word)
                    case _Ended(child, status) if child is self._engine:
                        engine_has_ended = True
                        self._on_engine_end(status, is_ready=is_ready)
                    case _Ended(child, status):
                        self._on_front_end_end(child, status, is_ready=is_ready)
                if not (is_ready or self._num_stops) and len(self._ready) == self._count:
                    is_ready = True
                    scheme = "http" if self._settings.tls_cert is None else "https"
                    on_ready(base_url(self._listener, scheme), self._name)
                if not (self._front_ends or self._due):
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
            # One alone answers scrapes: what others keep for a second would make counters go back.
            scrapes = None if self._scrapes is None or index else self._scrapes.fileno()
            pid, metrics = self._engine.pid, self._metrics
            job = FrontEndJob(index, self._options, self._settings, listener, channel, pid, metrics, scrapes)
            environment = {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
            passed = [listener, channel, *([] if scrapes is None else [scrapes])]
            child = _Child(f"front-end-{index}", job, self._events, passed, environment)
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
        self._due.clear()
        for listener in (self._listener, self._scrapes):
            if listener is not None:
                listener.close()  # else the system would take connections that nothing accepts
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
        elif status:
            self._failed = self._failed or f"the engine's process ended with status {status}"

    def _on_front_end_end(self, child: _Child, status: int, *, is_ready: bool) -> None:
        """Another one takes its place, unless the server ends, or has not begun."""
        index = self._front_ends.pop(child)
        self._ready.discard(child)
        if self._num_stops or self._failed is not None or not self._engine.is_alive:
            return
        if not is_ready:
            raise ChildEnded(status)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        now = time.monotonic()
        self._restarts.append(now)
        is_often = len(self._restarts) == RESTARTS_MAX and now - self._restarts[0] < RESTARTS_WINDOW_S
        if is_often and not self._ready:
            self._failed = (
                f"front ends ended {RESTARTS_MAX} times within {RESTARTS_WINDOW_S:.0f} s, the last by {how}"
            )
            log.error("%s; the server ends", self._failed)
            self._stop()
            return
        self._due[index] = now + (RESTART_PAUSE_S if is_often else 0.0)
        log.error(
            "front end %d has ended (%s): its connections are lost, and its requests cancelled; another one "
            "is started%s",
            index,
            how,
            f" in {RESTART_PAUSE_S:.0f} s" if is_often else "",
        )

    def _next_event(self) -> _Event | None:
        """The next one, waited for; None: a front end is due."""
        if not self._due:
            return self._events.get()
        try:
            return self._events.get(timeout=max(0.0, min(self._due.values()) - time.monotonic()))
        except Empty:
            return None

    def _restart_due(self) -> None:
        """Start what is due; where the system refuses a process, later."""
        now = time.monotonic()
        for index in [index for index, due in self._due.items() if due <= now]:
            del self._due[index]
            try:
                self._start_front_end(index)
            except OSError as error:
                log.error("front end %d cannot be started: %s", index, error)
                self._due[index] = now + RESTART_PAUSE_S


def supervise(
    model: str | None,
    options: StartOptions,
    settings: ServerSettings,
    listeners: Listeners,
    count: int,
    on_ready: OnReady,
) -> None:
    """Serve with so many front ends until a signal comes. Raises as `Supervisor.run`."""
    with tempfile.TemporaryDirectory(prefix="octavo-metrics-") as metrics, _kept(metrics):
        supervisor = Supervisor(model, options, settings, listeners, count, Path(metrics))

        def begin(url: str, name: str) -> None:
            for one in (*_ENDS, signal.SIGHUP):
                signal.signal(one, supervisor.on_signal)
            on_ready(url, name)

        # Until then a signal ends what loads, as in one process; the children see this process end.
        signal.signal(signal.SIGTERM, _exit_by)
        try:
            supervisor.run(begin)
        finally:
            for one in (*_ENDS, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)


def _exit_by(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _kept(folder: str) -> Iterator[None]:
    """A lock that lets systemd-tmpfiles leave the folder alone, however long it is not read."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
