"""One replica of a cluster: starts, watches and stops a child process that serves on a private port.

    actor (parent)                                  octavo serve (child)
      | -- socket: key, slot, name, disk -->          |  loads
      | <-- progress ..., port --                     |  serves; every request needs the key
      | -- end of file -->                            |  finishes its requests, then exits
      | <-- stderr: log lines --                      |

The kernel kills the child when the thread that started it ends, so that thread lives until the child or this
process ends. Nothing here imports Ray.
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

LINES_KEPT = 20  # of the child's log, for the error text
_MODULE = "octavo.cli.replica"

OnText = Callable[[str], None]


class ReplicaEnded(OctavoError):
    """The child has exited or does not serve. The text has the reason and the last lines of its log."""


def to_own_stderr(line: str) -> None:
    """Write a line of a child's log, which names the replica."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class ReplicaChild:
    """A running child. Any thread may call its methods. `arguments`: a model and flags of `octavo serve`,
    without host and port. Raises ReplicaEnded if the process cannot be started."""

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
        self._messages: SimpleQueue[dict[str, object] | None] = SimpleQueue()  # None: no more
        self._control, self._theirs = socket.socketpair()
        self._started: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()
        self._has_ended = threading.Event()
        # The kernel kills the child with the thread that started it, so the child has a thread of its own.
        threading.Thread(target=self._live, name=f"octavo-{replica.name}", daemon=True).start()
        started = self._started.get()
        if isinstance(started, OSError):
            raise ReplicaEnded(f"{replica.name} cannot be started: {started}")
        self._process = started
        threading.Thread(target=self._listen, name=f"octavo-{replica.name}-messages", daemon=True).start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the child runs."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status; negative: the signal that killed the child; None while it runs."""
        return self._process.poll()

    @property
    def base_url(self) -> str:
        """The address of the child, which must be ready."""
        assert self._port is not None, "the child is not ready"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def wait_ready(self, timeout_s: float | None = None, on_progress: OnText = lambda text: None) -> str:
        """Wait until the child serves, and return its base URL. `on_progress` gets the phases of its start.
        Raises ReplicaEnded if the child exits, or sends no message for `timeout_s`."""
        while self._port is None:
            try:
                message = self._messages.get(timeout=timeout_s)
            except Empty:
                raise ReplicaEnded(
                    f"{self.replica.name} is not ready: no progress for {timeout_s:g} s{self._tail()}"
                ) from None
            if message is None:
                self._has_ended.wait()
                self._messages.put(None)  # for the next call
                raise ReplicaEnded(self.how_it_ended())
            if isinstance(port := message.get("port"), int):
                self._port = port
            else:
                on_progress(str(message.get("progress", "")))
        return self.base_url

    def check_health(self, timeout_s: float = 5.0) -> None:
        """Check that the engine of a ready child serves. Raises ReplicaEnded if it does not, or does not
        answer in time."""
        if not self.is_alive:
            self._has_ended.wait()
            raise ReplicaEnded(self.how_it_ended())
        assert self._port is not None, "the child is not ready"
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
        """Make the child refuse new requests and exit when the running ones have ended, at the latest after
        its own `--drain-timeout`. Idempotent."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def drain(self, timeout_s: float | None = None) -> int:
        """Drain the child and wait for its exit; kill it after `timeout_s`. Returns its exit status."""
        self.begin_drain()
        if not self._has_ended.wait(timeout_s):
            self.kill()
        return self.wait()

    def kill(self) -> None:
        """Kill the child and its requests at once. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the child has exited and its log is read; return its exit status. Raises
        TimeoutError."""
        if not self._has_ended.wait(timeout_s):
            raise TimeoutError(f"{self.replica.name} still runs after {timeout_s:g} s")
        return self._process.wait()

    def how_it_ended(self) -> str:
        """How the child ended, with the last lines of its log."""
        status = self._process.poll()
        if status is None:
            return f"{self.replica.name} runs"
        how = f"was ended by {_signal_in_words(-status)}" if status < 0 else f"ended with status {status}"
        return f"{self.replica.name} {how}{self._tail()}"

    def _tail(self) -> str:
        return "; the last of its log:\n" + "\n".join(self._lines) if self._lines else ""

    def _live(self) -> None:
        """Start the child, forward its log, and wait for its exit."""
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
        with contextlib.suppress(OSError):  # it has exited, as `wait` will show
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
        """Receive the child's messages until it closes the socket."""
        with contextlib.suppress(OSError), self._control.makefile("rb") as lines:
            for line in lines:
                self._messages.put(msgspec.json.decode(line, type=dict[str, object]))
        self._messages.put(None)
        self._control.close()


def _signal_in_words(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
