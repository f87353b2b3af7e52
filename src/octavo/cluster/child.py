"""One replica of a cluster: a child process that serves on a port of its own, started, watched and stopped.

    actor (parent)                                  octavo serve (child)
      | -- socket: key, slot, name, disk -->          |  loads
      | <-- progress ..., port --                     |  serves; every request needs the key
      | -- end of file -->                            |  ends what runs, then itself
      | <-- stderr: log lines --                      |

The system kills the child when the thread that started it ends: that thread lives until the child has ended,
or the process does. It knows no Ray.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

import msgspec

from octavo.errors import OctavoError
from octavo.server.replica import ReplicaIdentity

LINES_KEPT = 20  # of its log, for the error that says how it ended
_MODULE = "octavo.cli.replica"

OnText = Callable[[str], None]


class ReplicaEnded(OctavoError):
    """The child has ended, or does not serve: how, and the last lines of its log."""


def to_own_stderr(line: str) -> None:
    """Where a child's log goes by default. Its lines name the replica."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class ReplicaChild:
    """A running child. Any thread may call its methods; `arguments` are a model and flags, as of `octavo
    serve`, without host and port. Raises ReplicaEnded where the system starts no process."""

    def __init__(
        self,
        replica: ReplicaIdentity,
        arguments: Sequence[str],
        host: str = "127.0.0.1",
        on_log: OnText = to_own_stderr,
    ) -> None:
        self.replica = replica
        self._host, self._on_log = host, on_log
        self._arguments = [*arguments, "--host", host, "--port", "0", "--insecure"]
        self._port: int | None = None
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._words: SimpleQueue[dict[str, object] | None] = SimpleQueue()  # None: it says nothing more
        self._control, self._theirs = socket.socketpair()
        self._started: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()
        self._has_ended = threading.Event()
        # The system kills the child with the thread that started it, so that thread is its own.
        threading.Thread(target=self._live, name=f"octavo-{replica.name}", daemon=True).start()
        found = self._started.get()
        if isinstance(found, OSError):
            raise ReplicaEnded(f"{replica.name} cannot be started: {found}")
        self._process = found
        threading.Thread(target=self._listen, name=f"octavo-{replica.name}-words", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Its exit status, less than 0: the signal that ended it; None while it runs."""
        return self._process.poll()

    @property
    def base_url(self) -> str:
        """Where it serves, once it is ready."""
        assert self._port is not None, "it is not ready"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def wait_ready(self, timeout_s: float | None = None, on_progress: OnText = lambda text: None) -> str:
        """Its base URL, once it serves; `on_progress` gets the phases of its start. Raises ReplicaEnded where
        it ends first, or says nothing for so long."""
        while self._port is None:
            try:
                word = self._words.get(timeout=timeout_s)
            except Empty:
                raise ReplicaEnded(
                    f"{self.replica.name} has said nothing for {timeout_s:g} s and is not ready{self._tail()}"
                ) from None
            if word is None:
                self._has_ended.wait()
                self._words.put(None)  # for the next call
                raise ReplicaEnded(self.how_it_ended())
            if isinstance(port := word.get("port"), int):
                self._port = port
            else:
                on_progress(str(word.get("progress", "")))
        return self.base_url

    def check_health(self, timeout_s: float = 5.0) -> None:
        """Ask whether its engine serves, once it was ready. Raises ReplicaEnded where it does not say so in
        time."""
        if not self.is_alive:
            self._has_ended.wait()
            raise ReplicaEnded(self.how_it_ended())
        assert self._port is not None, "it is not ready"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request("GET", "/health", headers=self.replica.headers)
            answer = connection.getresponse()
            text = answer.read(4096).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ReplicaEnded(f"{self.replica.name} does not answer: {error or type(error)}") from None
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ReplicaEnded(f"{self.replica.name} is not healthy ({answer.status}): {text}")

    def begin_drain(self) -> None:
        """It takes no more requests, ends when those that run have, and at the latest after its own
        `--drain-timeout`. Again does nothing."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def drain(self, timeout_s: float | None = None) -> int:
        """The same, and wait until it has ended; after `timeout_s` it is killed. Returns its exit status."""
        self.begin_drain()
        if not self._has_ended.wait(timeout_s):
            self.kill()
        return self.wait()

    def kill(self) -> None:
        """Now, without an answer to its clients. Again does nothing."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status, once it has ended and its log is read. Raises TimeoutError."""
        if not self._has_ended.wait(timeout_s):
            raise TimeoutError(f"{self.replica.name} still runs after {timeout_s:g} s")
        return self._process.wait()

    def how_it_ended(self) -> str:
        """In words, with the last lines of its log."""
        status = self._process.poll()
        if status is None:
            return f"{self.replica.name} runs"
        how = f"was ended by {_signal_in_words(-status)}" if status < 0 else f"ended with status {status}"
        return f"{self.replica.name} {how}{self._tail()}"

    def _tail(self) -> str:
        return "; the last of its log:\n" + "\n".join(self._lines) if self._lines else ""

    def _live(self) -> None:
        """Start it, pass its log on, and see its end."""
        with self._theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, str(self._theirs.fileno()), *self._arguments],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[self._theirs.fileno()],
                    process_group=0,  # ctrl-c in a terminal is the parent's
                )
            except OSError as error:
                self._control.close()
                self._started.put(error)
                return
        with contextlib.suppress(OSError):  # it has ended, as is seen
            self._control.sendall(self.replica.to_line())
        self._started.put(process)
        assert process.stderr is not None
        with process.stderr:
            for data in process.stderr:
                line = data.decode(errors="replace").rstrip()
                self._lines.append(line)
                self._on_log(line)
        process.wait()
        self._has_ended.set()

    def _listen(self) -> None:
        """What it says over the socket, until it ends."""
        with contextlib.suppress(OSError), self._control.makefile("rb") as words:
            for line in words:
                self._words.put(msgspec.json.decode(line, type=dict[str, object]))
        self._words.put(None)
        self._control.close()


def _signal_in_words(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
