"""Several ranks in one process: each is a thread with its own part of the tiny model, over real groups."""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from tests.device.over_torch import CPU, TinyCompiled, TinyTorch
from tests.tiny import tiny_model

from octavo.device.backend import TorchBackend
from octavo.device.layout import allocate_pool
from octavo.device.ranks.backend import SHARED_BYTES
from octavo.device.ranks.collectives import RankGroup
from octavo.device.ranks.leader import LeadArithmetic, LeadRows, RankedForward
from octavo.device.ranks.member import RankMember, share_of
from octavo.device.ranks.messages import (
    Allocate,
    Answer,
    AnyMessage,
    Channel,
    Close,
    Message,
    MoveBlocks,
)
from octavo.errors import DeviceLost
from octavo.executor.runner import Runner, RunnerConfig, kv_shape
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape
from octavo.model.spec import Model
from octavo.model.split import Split
from octavo.sampling.grammars import Grammars

TIMEOUT_S = 30.0
_numbers = itertools.count()
NewModel = Callable[[Split], Model]


class ThreadRanks:
    """The other ranks, as threads. `failures`: what one of them raised."""

    def __init__(self, num_ranks: int, backends: list[TorchBackend], new_model: NewModel) -> None:
        self.num_ranks = num_ranks
        self.shared_fd = os.memfd_create("ranks")
        os.ftruncate(self.shared_fd, SHARED_BYTES // 16)
        self._folder = tempfile.TemporaryDirectory()
        meet = Path(self._folder.name) / "meet"
        self.failures: list[BaseException] = []
        self._commands: list[Channel[Answer]] = []
        self._moves: list[Channel[Answer]] = []
        self._threads: list[threading.Thread] = []
        for rank in range(1, num_ranks):
            commands, moves = socket.socketpair(), socket.socketpair()
            self._commands.append(Channel(commands[0], Answer))
            self._moves.append(Channel(moves[0], Answer))
            own = Channel[AnyMessage](commands[1], AnyMessage), Channel[MoveBlocks](moves[1], MoveBlocks)
            arguments = (rank, meet, backends[rank], new_model, *own)
            self._threads.append(threading.Thread(target=self._serve, args=arguments, daemon=True))
            self._threads[-1].start()
        self.group = RankGroup(meet, 0, num_ranks, TIMEOUT_S, CPU)

    def _serve(
        self,
        rank: int,
        meet: Path,
        backend: TorchBackend,
        new_model: NewModel,
        commands: Channel[AnyMessage],
        moves: Channel[MoveBlocks],
    ) -> None:
        try:
            group = RankGroup(meet, rank, self.num_ranks, TIMEOUT_S, CPU)
            member = RankMember(backend, group, self.shared_fd)
            member._model = new_model(Split(rank, self.num_ranks))
            threading.Thread(target=self._serve_moves, args=(member, moves), daemon=True).start()
            with torch.inference_mode():
                while not isinstance(message := commands.receive(), Close):
                    answer = member.carry_out(message)
                    if answer is not None:
                        commands.send(answer)
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.failures.append(error)
            commands.close()

    def _serve_moves(self, member: RankMember, moves: Channel[MoveBlocks]) -> None:
        try:
            while True:
                moves.send(member.move(moves.receive()))
        except (EOFError, OSError):
            return
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.failures.append(error)
            moves.close()

    def send(self, message: Message) -> None:
        for channel in self._commands:
            channel.send(message)

    def call(self, message: Message) -> list[Answer]:
        self.send(message)
        return [channel.receive() for channel in self._commands]

    def move(self, move: MoveBlocks, own: Callable[[], None]) -> None:
        for channel in self._moves:
            channel.send(move)
        own()
        for channel in self._moves:
            channel.receive()

    def check(self) -> None:
        assert not self.failures

    def why(self, error: Exception) -> DeviceLost:
        return DeviceLost(f"{error}; {self.failures}")

    def lose(self, reason: str) -> None:
        self.failures.append(DeviceLost(reason))

    def note_step(self, *, has_ended: bool) -> None:
        return

    def wake_when_lost(self, wake: Callable[[], None]) -> None:
        return

    def close(self) -> None:
        try:
            self.send(Close())
        except OSError:
            return
        for thread in self._threads:
            thread.join()
        for channel in (*self._commands, *self._moves):
            channel.close()
        self._folder.cleanup()


class _Ranked:
    """What the tiny engine asks of ops, for so many ranks; the model that it gives is not used."""

    num_ranks: int
    kv: str

    def backends(self) -> list[TorchBackend]:
        raise NotImplementedError

    def model_of(self, split: Split) -> Model:
        raise NotImplementedError

    def new_runner(
        self,
        model: Model,
        shape: KvShape,
        num_blocks: int,
        config: RunnerConfig,
        worker: TransferWorker | None,
        grammars: Grammars | None,
    ) -> Runner:
        backends = self.backends()
        ranks = ThreadRanks(self.num_ranks, backends, self.model_of)
        order = Allocate(self.kv, config.block_size, num_blocks, config.max_rows, config.context_length)
        for answer in ranks.call(order):
            assert not answer.error, answer.error
        own = self.model_of(Split(0, self.num_ranks))
        whole = kv_shape(own, config.block_size, self.kv)
        pool = allocate_pool(share_of(whole, own.split), num_blocks, CPU)
        rows = LeadRows(config.max_rows, config.context_length, config.block_size, CPU)
        arithmetic = backends[0].new_arithmetic(own, pool, rows, ranks.group)
        lead = LeadArithmetic(arithmetic, rows, ranks, ranks.group)
        forward = RankedForward(lead, rows, config.stop_ids, ranks, ranks.shared_fd, tuple, ranks.close)
        return Runner(forward, config, worker, grammars)


class TinyRanked(_Ranked, TinyTorch):
    """The reference's ops over so many ranks."""

    def __init__(self, num_ranks: int, kv: str = "f32") -> None:
        super().__init__(kv)
        self.num_ranks = num_ranks
        self.name = f"ranks-{num_ranks}-{kv}"

    def backends(self) -> list[TorchBackend]:
        return [self.backend] * self.num_ranks

    def model_of(self, split: Split) -> Model:
        return tiny_model(self, split=split)


class TinyRankedKernels(_Ranked, TinyCompiled):
    """Kernels in Triton's interpreter over so many ranks."""

    def __init__(self, num_ranks: int, kv: str = "f32") -> None:
        super().__init__(kv)
        self.num_ranks = num_ranks
        self.name = f"ranks-{num_ranks}-compiled-{kv}"

    def backends(self) -> list[TorchBackend]:
        return [self.backend] * self.num_ranks

    def model_of(self, split: Split) -> Model:
        return tiny_model(self, split=split)  # type: ignore[arg-type]
