"""A server that is one replica of a cluster: `python -m octavo.cli.replica DESCRIPTOR MODEL FLAGS`, as
`octavo.cluster.child` starts it; what follows the descriptor is what `octavo serve` takes.

    parent   one line of JSON: key, slot, name, disk        then the end of file: stop in order
    here     {"progress": "..."} ... {"port": 40123}         a line each

The system kills this process when the thread that started it ends, also with kill -9.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading

import msgspec

from octavo.cli.main import run_command, whole_command
from octavo.errors import ConfigError
from octavo.server.replica import LINE_BYTES_MAX, ReplicaIdentity

_PR_SET_PDEATHSIG = 1


class Parent:
    """The process that started this one, at the other end of a socket. Raises ConfigError where it does not
    say which replica this is."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        line = b""
        while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
            if not (data := control.recv(LINE_BYTES_MAX - len(line))):
                break
            line += data
        self.replica = ReplicaIdentity.of_line(line)
        threading.Thread(target=self._wait_end, name="octavo-parent", daemon=True).start()

    def report_progress(self, text: str) -> None:
        """A phase of the start."""
        self._say({"progress": str(text)})

    def report_ready(self, port: int) -> None:
        """It serves there."""
        self._say({"port": port})

    def _say(self, word: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # it has gone, and so does this process
            self._control.sendall(msgspec.json.encode(word) + b"\n")

    def _wait_end(self) -> None:
        with contextlib.suppress(OSError):
            while self._control.recv(LINE_BYTES_MAX):
                pass
        os.kill(os.getpid(), signal.SIGTERM)


def die_with_parent() -> None:
    """Of Linux alone: elsewhere the end of the parent's socket is what ends this process."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Serve until the parent ends the socket, or itself."""
    die_with_parent()  # first: where the parent has ended by now, its line is missing
    run_command(run)


def run() -> None:
    """As `octavo serve`. Raises ConfigError."""
    try:
        control = socket.socket(fileno=int(sys.argv[1]))
    except (IndexError, ValueError, OSError):
        raise ConfigError(
            f"the descriptor is {sys.argv[1:2]}; allowed: that of a socket which octavo.cluster.child made"
        ) from None
    whole_command()(["serve", *sys.argv[2:]], prog_name="octavo", obj=Parent(control))


if __name__ == "__main__":
    main()
