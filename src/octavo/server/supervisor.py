"""Several front ends for one engine: the processes of `octavo serve --http-processes N` and their supervisor.

    supervisor (main)  --- control sockets --->  engine, front end 0, ..., front end N-1
    front ends         --- channels ---------->  engine                   (octavo.serving.channel)
    clients            --- one socket -------->  the front end that accepts

    a front end exits         its connections are lost and its requests cancelled; a replacement starts
    the engine exits          every stream ends with an error, all front ends exit, and `supervise` raises
    a signal                  is passed to the front ends, each of which drains; then the engine exits
    the supervisor exits      the others see its sockets close, and exit as after a signal

Children ignore signals, because a terminal or systemd sends them to all processes of a group. They get their
job on standard input, and one-word messages over a socket.
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

# After so many exits of front ends within the window, a replacement waits for the pause; if no other front
# end is ready, the server exits.
RESTARTS_MAX = 3
RESTART_PAUSE_S = 10.0
RESTARTS_WINDOW_S = 60.0
READY = b"ready "  # followed by the model's name
STOP, HANGUP, END, FRONT_END = b"stop", b"hangup", b"end", b"front end "
GAVE_UP = b"gave up: "
MESSAGE_BYTES_MAX = 4096
_MODULE = "octavo.cli.child"
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("octavo.server")


class ChildExit(Exception):
    """A child exited before all were ready. `status`: its exit status, whose reason it printed; a negative
    one is a signal's number."""

    def __init__(self, status: int) -> None:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        super().__init__(f"a process of the server ended {how}")
        self.status = status


@dataclass(frozen=True, slots=True)
class _Message:
    """A message from a child."""

    child: _Child
    text: bytes


@dataclass(frozen=True, slots=True)
class _Exit:
    """A child exited with this status; a negative one is a signal's number."""

    child: _Child
    status: int


@dataclass(frozen=True, slots=True)
class _Signal:
    """The supervisor received a signal."""

    number: int


_Event = _Message | _Exit | _Signal
OnReady = Callable[[str, str], None]


class _Child:
    """A child process and its control socket."""

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
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # `_watch` sees its exit
            pipe.write(encode_job(job))
        threading.Thread(target=self._watch, args=(events,), name=f"octavo-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs; False possibly before its exit is an event."""
        return self._process.poll() is None

    def send(self, text: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message; does nothing if the process has exited."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [text], list(descriptors))

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def _watch(self, events: SimpleQueue[_Event]) -> None:
        while True:
            try:
                text = self._control.recv(MESSAGE_BYTES_MAX)
            except OSError:
                text = b""
            if not text:
                break
            events.put(_Message(self, text))
        status = self._process.wait()
        self._control.close()
        events.put(_Exit(self, status))


class Supervisor:
    """Runs the processes of one server, from the main thread."""

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
        self._num_stops = 0  # sent to front ends
        self._failed: str | None = None  # why the server ends, unless by a signal
        self._restart_at: dict[int, float] = {}  # by front end's index: when to start its replacement
        self._exit_times: deque[float] = deque(maxlen=RESTARTS_MAX)  # of front ends, the latest ones
        self._front_ends: dict[_Child, int] = {}  # with their indices
        self._ready: set[_Child] = set()
        job = EngineJob(model, options, settings, self._count)
        self._engine = _Child("engine", job, self._events)

    def run(self, on_ready: OnReady) -> None:
        """Run until a signal, or until the engine exits. Calls `on_ready` with the base URL and the model's
        name when all front ends serve.

        Raises EngineStopped if the engine, or its process, ended by itself, or if front ends keep exiting;
        ChildExit if a child exited before the server was ready.
        """
        is_ready = has_engine_exited = False
        try:
            for index in range(self._count):
                self._start_front_end(index)
            while self._front_ends or self._restart_at or not has_engine_exited:
                match self._next_event():
                    case None:
                        self._restart_due()
                    case _Signal(number):
                        self._on_signal(number)
                    case _Message(child, text):
                        self._on_message(child, text)
                    case _Exit(child, status) if child is self._engine:
                        has_engine_exited = True
                        self._on_engine_exit(status, is_ready=is_ready)
                    case _Exit(child, status):
                        self._on_front_end_exit(child, status, is_ready=is_ready)
                if not (is_ready or self._num_stops) and len(self._ready) == self._count:
                    is_ready = True
                    scheme = "http" if self._settings.tls_cert is None else "https"
                    on_ready(base_url(self._listener, scheme), self._name)
                if not (self._front_ends or self._restart_at):
                    self._engine.send(END)
        finally:
            for child in (*self._front_ends, self._engine):
                child.kill()
        if self._failed is not None:
            raise EngineStopped(self._failed)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self._events.put(_Signal(number))

    def _start_front_end(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            listener, channel = self._listener.fileno(), theirs.fileno()
            # One front end answers scrapes: each caches the text for a second, so counters could decrease.
            scrapes = None if self._scrapes is None or index else self._scrapes.fileno()
            pid, metrics = self._engine.pid, self._metrics
            job = FrontEndJob(index, self._options, self._settings, listener, channel, pid, metrics, scrapes)
            environment = {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
            passed = [listener, channel, *([] if scrapes is None else [scrapes])]
            child = _Child(f"front-end-{index}", job, self._events, passed, environment)
            self._front_ends[child] = index
            self._engine.send(FRONT_END + str(index).encode(), [ours.fileno()])

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            for child in self._front_ends:
                child.send(HANGUP)
            return
        self._stop()

    def _stop(self) -> None:
        self._num_stops += 1
        self._restart_at.clear()
        for listener in (self._listener, self._scrapes):
            if listener is not None:
                listener.close()  # else the kernel would queue connections that nothing accepts
        for child in self._front_ends:
            child.send(STOP)

    def _on_message(self, child: _Child, text: bytes) -> None:
        if text.startswith(READY):
            self._name = text.removeprefix(READY).decode()
            self._ready.add(child)
        elif text.startswith(GAVE_UP):
            self._failed = text.removeprefix(GAVE_UP).decode(errors="replace")

    def _on_engine_exit(self, status: int, *, is_ready: bool) -> None:
        if not is_ready and self._num_stops == 0:
            raise ChildExit(status)
        if self._front_ends:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            self._failed = self._failed or f"the engine's process has ended ({how})"
            log.error("%s; every stream ends with an error, and the server ends", self._failed)
            if self._num_stops == 0:
                self._stop()
        elif status:
            self._failed = self._failed or f"the engine's process ended with status {status}"

    def _on_front_end_exit(self, child: _Child, status: int, *, is_ready: bool) -> None:
        """Schedule a replacement, unless the server is stopping. Raises ChildExit if the server never became
        ready.

        After frequent exits the replacement waits; if no other front end is ready, the server stops instead.
        """
        index = self._front_ends.pop(child)
        self._ready.discard(child)
        if self._num_stops or self._failed is not None or not self._engine.is_alive:
            return
        if not is_ready:
            raise ChildExit(status)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        now = time.monotonic()
        self._exit_times.append(now)
        exits_often = len(self._exit_times) == RESTARTS_MAX and now - self._exit_times[0] < RESTARTS_WINDOW_S
        if exits_often and not self._ready:
            self._failed = (
                f"front ends ended {RESTARTS_MAX} times within {RESTARTS_WINDOW_S:.0f} s, the last by {how}"
            )
            log.error("%s; the server ends", self._failed)
            self._stop()
            return
        self._restart_at[index] = now + (RESTART_PAUSE_S if exits_often else 0.0)
        log.error(
            "front end %d has ended (%s): its connections are lost, and its requests cancelled; a "
            "replacement starts%s",
            index,
            how,
            f" in {RESTART_PAUSE_S:.0f} s" if exits_often else "",
        )

    def _next_event(self) -> _Event | None:
        """Wait for the next event; None: a replacement is due."""
        if not self._restart_at:
            return self._events.get()
        try:
            return self._events.get(timeout=max(0.0, min(self._restart_at.values()) - time.monotonic()))
        except Empty:
            return None

    def _restart_due(self) -> None:
        """Start the replacements that are due; if the system refuses a process, try again later."""
        now = time.monotonic()
        for index in [index for index, due in self._restart_at.items() if due <= now]:
            del self._restart_at[index]
            try:
                self._start_front_end(index)
            except OSError as error:
                log.error("front end %d cannot be started: %s", index, error)
                self._restart_at[index] = now + RESTART_PAUSE_S


def supervise(
    model: str | None,
    options: StartOptions,
    settings: ServerSettings,
    listeners: Listeners,
    count: int,
    on_ready: OnReady,
) -> None:
    """Serve with `count` front ends until a signal. Raises as `Supervisor.run`."""
    with tempfile.TemporaryDirectory(prefix="octavo-metrics-") as metrics, _lock(metrics):
        supervisor = Supervisor(model, options, settings, listeners, count, Path(metrics))

        def begin(url: str, name: str) -> None:
            for one in (*_END_SIGNALS, signal.SIGHUP):
                signal.signal(one, supervisor.on_signal)
            on_ready(url, name)

        # A signal during loading exits, as with one process; the children see this process exit.
        signal.signal(signal.SIGTERM, _exit)
        try:
            supervisor.run(begin)
        finally:
            for one in (*_END_SIGNALS, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _lock(folder: str) -> Iterator[None]:
    """Lock the folder, so that systemd-tmpfiles does not clean it up."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
