"""The process of a rank other than 0: `python -m octavo.device.ranks.worker START FD FD FD FD`, which rank 0
starts.

    main thread        commands (`member.py`)
    octavo-moves       blocks between its device and the shared memory
    octavo-pulse       sends rank 0 a heartbeat twice a second
    octavo-parent      ends the process at once when rank 0 is gone, whatever other threads do

The last one begins before torch is imported, which takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import first_line

if TYPE_CHECKING:
    from octavo.device.backend import TorchBackend
    from octavo.device.ranks.collectives import RankGroup
    from octavo.device.ranks.member import RankMember
    from octavo.device.ranks.messages import AnyMessage, Channel, MoveBlocks, Pulse, Start

PULSE_S = 0.5


def main(arguments: list[str]) -> int:
    """Serve until rank 0 closes, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends first, and then this process
    ends = [socket.socket(fileno=int(fd)) for fd in arguments[1:4]]
    folder = Path(json.loads(arguments[0])["rendezvous"]).parent
    watching = (ends[2], folder)
    threading.Thread(target=_exit_with_rank_0, args=watching, name="octavo-parent", daemon=True).start()
    import msgspec

    from octavo.device.ranks.messages import AnyMessage, Channel, MoveBlocks, Pulse, Start

    start = msgspec.json.decode(arguments[0], type=Start)
    logging.basicConfig(format=f"rank {start.rank}: %(message)s", level=logging.WARNING)
    pulse = _PulseSender(Channel(ends[2], Pulse))
    try:
        serve(start, Channel(ends[0], AnyMessage), Channel(ends[1], MoveBlocks), int(arguments[4]), pulse)
    except EOFError:
        return 1  # rank 0 is gone
    except Exception as error:  # noqa: BLE001 - rank 0 reports it, and ends all ranks
        pulse.fail(first_line(error))
        return 1
    return 0


def serve(
    start: Start,
    commands: Channel[AnyMessage],
    moves: Channel[MoveBlocks],
    shared_fd: int,
    pulse: _PulseSender,
) -> None:
    """Join the others, then run commands. Raises what a command raises."""
    import torch

    from octavo.device.devices import current
    from octavo.device.open_backend import open_backend
    from octavo.device.ranks.collectives import ExchangeFailed, RankGroup
    from octavo.device.ranks.member import RankMember
    from octavo.device.ranks.messages import Answer, Close

    backend = open_backend(start.device, start.weights, "triton", 1, lambda: 0)
    commands.send(Answer())  # it can join
    with current(backend.torch_device), torch.inference_mode():
        group = RankGroup(
            Path(start.rendezvous), start.rank, start.num_ranks, start.timeout_s, backend.torch_device
        )
        member = RankMember(backend, group, shared_fd)
        pulse.watch(member, group, backend)
        moving = (member, moves, pulse)
        threading.Thread(target=_serve_moves, args=moving, name="octavo-moves", daemon=True).start()
        try:
            while not isinstance(message := commands.receive(), Close):
                answer = member.carry_out(message)
                if answer is not None:
                    commands.send(answer)
        except ExchangeFailed:
            while True:  # rank 0 has the same error, knows the rank that caused it, and ends this one
                commands.receive()


def _serve_moves(member: RankMember, moves: Channel[MoveBlocks], pulse: _PulseSender) -> None:
    try:
        while True:
            moves.send(member.move(moves.receive()))
    except (EOFError, OSError):
        return
    except Exception as error:  # noqa: BLE001 - a rank is useless without its blocks
        pulse.fail(first_line(error))
        os._exit(1)


def _exit_with_rank_0(end: socket.socket, folder: Path) -> None:
    """The stream carries nothing; it ends when rank 0 is gone."""
    try:
        end.recv(1)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(1)


class _PulseSender:
    """Sends rank 0 this rank's heartbeat."""

    def __init__(self, channel: Channel[Pulse]) -> None:
        self._channel, self._lock = channel, threading.Lock()
        self._about: tuple[RankMember, RankGroup, TorchBackend] | None = None
        threading.Thread(target=self._send, name="octavo-pulse", daemon=True).start()

    def watch(self, member: RankMember, group: RankGroup, backend: TorchBackend) -> None:
        """Include these in heartbeats from now on."""
        self._about = member, group, backend

    def fail(self, why: str) -> None:
        """Send the cause of a failure, as the last message."""
        from octavo.device.ranks.messages import Pulse

        with self._lock:
            self._channel.send(Pulse(failed=why))

    def _send(self) -> None:
        while True:
            with self._lock:
                try:
                    self._channel.send(self._pulse())
                except OSError:
                    os._exit(1)
            time.sleep(PULSE_S)

    def _pulse(self) -> Pulse:
        from octavo.device.ranks.messages import Pulse

        if self._about is None:
            return Pulse(is_loading=True)
        member, group, backend = self._about
        return Pulse(backend.memory_used(), group.waited_s, group.is_waiting, member.is_loading)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # whatever a group's threads still wait for
