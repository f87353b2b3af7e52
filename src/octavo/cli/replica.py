"""A server process that is one replica of a cluster: `python -m octavo.cli.replica DESCRIPTOR MODEL FLAGS`,
started by `octavo.cluster.child`. The arguments after the descriptor are those of `octavo serve`.

    parent sends    one line of JSON: key, slot, name, disk; end of file: shut down gracefully
    this sends      {"progress": "..."} ... {"port": 40123}, one per line

The kernel kills this process when the thread that started it ends, also after kill -9.
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
    """The process that started this one, at the other end of a socket. Raises ConfigError if it does not send
    a replica's line."""

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
        """Report a phase of the start."""
        self._send({"progress": str(text)})

    def report_ready(self, port: int) -> None:
        """Report that the replica serves on this port."""
        self._send({"port": port})

    def _send(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the parent has ended: `_wait_end` stops this process
            self._control.sendall(msgspec.json.encode(message) + b"\n")

    def _wait_end(self) -> None:
        with contextlib.suppress(OSError):
            while self._control.recv(LINE_BYTES_MAX):
                pass
        os.kill(os.getpid(), signal.SIGTERM)


def die_with_parent() -> None:
    """Have the kernel kill this process with its parent. Only on Linux; elsewhere the end of the parent's
    socket stops it."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Serve until the parent closes the socket, or ends."""
    die_with_parent()  # first: if the parent has ended already, reading its line fails
    run_command(run)


def run() -> None:
    """Run `octavo serve` as a replica. Raises ConfigError."""
    try:
        control = socket.socket(fileno=int(sys.argv[1]))
    except (IndexError, ValueError, OSError):
        raise ConfigError(
            f"the descriptor is {sys.argv[1:2]}; allowed: that of a socket from octavo.cluster.child"
        ) from None
    whole_command()(["serve", *sys.argv[2:]], prog_name="octavo", obj=Parent(control))


if __name__ == "__main__":
    main()
