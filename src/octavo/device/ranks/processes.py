"""The processes of the other ranks: rank 0 starts them, commands them, and monitors them.

    one dies            its stream ends: detected at once
    one is stopped      its pulse stops, and the system reports it as stopped: after a second or two
    one hangs           its pulse stops for `SILENT_S`, or the others wait for it (`--rank-timeout`)
    one fails           it sends the cause, and ends

Any of these ends all ranks: the others are killed, so rank 0 waits for none of them, and `check` raises
DeviceLost with the rank, its device and the cause. No process outlives rank 0 (`worker.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from octavo.device.ranks.collectives import RankGroup
from octavo.device.ranks.messages import Answer, Channel, Close, Message, MoveBlocks, Pulse, Start
from octavo.errors import ConfigError, DeviceLost, first_line
from octavo.types import RankState

log = logging.getLogger("octavo.ranks")

SILENT_S = 30.0  # without a pulse: compiling a kernel may be one long call; loading, longer
SILENT_LOADING_S = 60.0
END_S = 5.0  # for a rank to end by itself
_LOOK_S = 0.5
_KEPT_ENVIRONMENT = (  # the beginnings of names
    *("PATH", "HOME", "USER", "LANG", "LC_", "TZ", "TMPDIR", "XDG_CACHE", "LD_", "PYTHON"),
    *("CUDA", "NVIDIA", "NCCL", "GLOO", "TORCH", "TRITON", "OMP_"),
)


@dataclass(slots=True)
class _Peer:
    """A rank other than 0."""

    rank: int
    device: str
    process: subprocess.Popen[bytes]
    commands: Channel[Answer]
    moves: Channel[Answer]
    pulses: Channel[Pulse]
    heard: float = field(default_factory=time.monotonic)
    pulse: Pulse = field(default_factory=lambda: Pulse(is_loading=True))

    @property
    def words(self) -> str:
        """ "rank 1 (cuda:1, process 123)"."""
        return f"rank {self.rank} ({self.device}, process {self.process.pid})"


class RankProcesses:
    """Starts one process for each device. Commands come from one thread, moves from another."""

    def __init__(self, devices: Sequence[str], weights: str, timeout_s: float, shared_fd: int) -> None:
        """`devices` of all ranks, in order. Raises ConfigError if a process cannot be started."""
        self._folder = Path(tempfile.mkdtemp(prefix="octavo-ranks-"))  # mode 0700
        self.rendezvous = self._folder / "meet"
        self.num_ranks = len(devices)
        self.lost: str | None = None  # why all have ended
        self.group: RankGroup | None = None  # rank 0's, once all are connected
        self._on_lost: Callable[[], None] = lambda: None
        self._num_running, self._progress_at = 0, 0.0  # running steps; when one last began or ended
        self._is_closing = False
        self._lock = threading.Lock()
        self._peers: list[_Peer] = []
        try:
            for rank in range(1, len(devices)):
                start = Start(rank, len(devices), devices[rank], weights, str(self.rendezvous), timeout_s)
                self._peers.append(_start_rank(start, shared_fd))
        except OSError as error:
            self._kill_all()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ConfigError(f"the process of a rank cannot be started: {error}") from None
        self._thread = threading.Thread(target=self._watch, name="octavo-ranks", daemon=True)
        self._thread.start()

    def wake_when_lost(self, wake: Callable[[], None]) -> None:
        """`wake` is called once if the ranks are lost, because rank 0 may be idle."""
        self._on_lost = wake

    def have_met(self, group: RankGroup) -> None:
        """All ranks are connected: remove the rendezvous."""
        self.group = group
        if not group.is_on_gpu:  # NCCL's watchdogs read it later, too
            shutil.rmtree(self._folder, ignore_errors=True)

    def note_step(self, *, has_ended: bool) -> None:
        """Record that a step was started, or has ended."""
        self._num_running += -1 if has_ended else 1
        self._progress_at = time.monotonic()

    def check(self) -> None:
        """Raise DeviceLost if the ranks are lost."""
        if self.lost is not None:
            raise DeviceLost(self.lost)

    def send(self, message: Message) -> None:
        """Send it to all ranks, which run commands in order. Raises DeviceLost."""
        self.check()
        try:
            for peer in self._peers:
                peer.commands.send(message)
        except OSError as error:
            raise self.why(error) from error

    def call(self, message: Message) -> list[int]:
        """Each rank's answer, in order. Raises DeviceLost, or ConfigError with a rank's refusal."""
        self.send(message)
        return self.answers()

    def answers(self) -> list[int]:
        """Each rank's answer to the last command."""
        answers = []
        for peer in self._peers:
            try:
                answers.append(peer.commands.receive())
            except (EOFError, OSError) as error:
                raise self.why(error) from error
        for peer, answer in zip(self._peers, answers, strict=True):
            if answer.error:
                raise ConfigError(f"{peer.words}: {answer.error}")
        return [answer.value for answer in answers]

    def move(self, move: MoveBlocks, own: Callable[[], None]) -> None:
        """Move all ranks' shares, and run `own` meanwhile; done when this returns. Raises DeviceLost."""
        self.check()
        try:
            for peer in self._peers:
                peer.moves.send(move)
            own()
            for peer in self._peers:
                peer.moves.receive()
        except (EOFError, OSError) as error:
            raise self.why(error) from error

    def states(self) -> list[RankState]:
        """The states of the other ranks."""
        return [
            RankState(peer.rank, peer.process.pid, peer.device, peer.pulse.memory_bytes, peer.pulse.waited_s)
            for peer in self._peers
        ]

    def why(self, error: Exception) -> DeviceLost:
        """The error for a failed exchange with the others; it names the rank that was the cause, once that is
        known."""
        deadline = time.monotonic() + _LOOK_S * 4
        while self.lost is None and time.monotonic() < deadline:
            time.sleep(0.02)
        absent = [peer.words for peer in self._peers if not peer.pulse.is_waiting]
        is_known = self.group is not None and not self.group.is_on_gpu and absent
        missing = f" ({', '.join(absent)} did not come to it)" if is_known else ""
        self.lose(f"an exchange between the {self.num_ranks} ranks failed{missing}: {first_line(error)}")
        assert self.lost is not None
        return DeviceLost(self.lost)

    def lose(self, reason: str) -> None:
        """End all ranks. Only the first reason is recorded."""
        with self._lock:
            if self.lost is not None or self._is_closing:
                self.lost = self.lost or reason
                return
            self.lost = f"{reason}; every request has failed, and all ranks end: restart the server"
        log.error("%s", self.lost)
        if self.group is not None:
            self.group.abort()
        self._on_lost()
        self._kill_all()

    def close(self) -> None:
        """End all ranks, and wait until they have. Idempotent."""
        with self._lock:
            was_closing, self._is_closing = self._is_closing, True
        if was_closing:
            return
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.commands.bound(END_S)  # a hanging rank reads nothing
                peer.commands.send(Close())
        deadline = time.monotonic() + END_S
        for peer in self._peers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                peer.process.wait(max(0.0, deadline - time.monotonic()))
        self._kill_all()
        self._thread.join()
        for peer in self._peers:
            for channel in (peer.commands, peer.moves, peer.pulses):
                channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill_all(self) -> None:
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.process.kill()
        for peer in self._peers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                peer.process.wait(END_S)

    # -- the watching thread

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer.pulses, selectors.EVENT_READ, peer)
            while not self._is_closing and self.lost is None:
                for key, _ in selector.select(_LOOK_S):
                    self._hear(key.data)
                for peer in self._peers:
                    self._look_after(peer)
                self._look_after_steps()

    def _hear(self, peer: _Peer) -> None:
        try:
            peer.pulse = peer.pulses.receive()
        except (EOFError, OSError, ValueError):
            self._lose(peer, _how_ended(peer.process))
            return
        peer.heard = time.monotonic()
        if peer.pulse.failed:
            self._lose(peer, f"failed: {peer.pulse.failed}")

    def _look_after(self, peer: _Peer) -> None:
        silent_s = time.monotonic() - peer.heard
        if silent_s < 2 * _LOOK_S:
            return
        if _is_stopped(peer.process.pid):
            self._lose(peer, "is stopped (a signal, or a debugger)")
        elif silent_s > (SILENT_LOADING_S if peer.pulse.is_loading else SILENT_S):
            self._lose(peer, f"has not answered for {silent_s:.0f} s")

    def _look_after_steps(self) -> None:
        """Bound the time of a step: on a GPU nothing else bounds the waits for other ranks."""
        if self.group is None or not self.group.is_on_gpu or self._num_running <= 0:
            return
        seconds = time.monotonic() - self._progress_at
        if seconds > self.group.timeout_s:
            self.lose(f"a step of the {self.num_ranks} ranks has not ended for {seconds:.0f} s")

    def _lose(self, peer: _Peer, how: str) -> None:
        if not self._is_closing:
            self.lose(f"{peer.words} {how}")


def _start_rank(start: Start, shared_fd: int) -> _Peer:
    pairs = [socket.socketpair() for _ in range(3)]
    theirs = [pair[1].fileno() for pair in pairs]
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "octavo.device.ranks.worker"),
                *(msgspec.json.encode(start).decode(), *map(str, [*theirs, shared_fd])),
            ],
            pass_fds=[*theirs, shared_fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment(os.environ),
            start_new_session=True,  # a terminal's ctrl-c goes only to rank 0
        )
    finally:
        for _, end in pairs:
            end.close()
    commands, moves, pulses = (pair[0] for pair in pairs)
    return _Peer(
        start.rank,
        start.device,
        process,
        Channel(commands, Answer),
        Channel(moves, Answer),
        Channel(pulses, Pulse),
    )


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """The variables that torch and the system need, without settings and keys."""
    kept = {name: value for name, value in own.items() if name.startswith(_KEPT_ENVIRONMENT)}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _how_ended(process: subprocess.Popen[bytes]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(1.0)
        if status >= 0:
            return f"ended with exit status {status}"
        return f"was ended by signal {-status}{_name_of(-status)}"
    return "closed its connection"


def _name_of(number: int) -> str:
    with contextlib.suppress(ValueError):  # one of the real-time signals
        return f" ({signal.Signals(number).name})"
    return ""


def _is_stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"
