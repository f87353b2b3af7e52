"""The torch backend over several devices: one rank for each; rank 0 is in this process.

load        starts the processes; every rank reads its part of each weight
new_runner  pools of as many blocks on every rank, a rank's share of each: its KV heads
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.device.backend import TorchBackend
from octavo.device.ranks.collectives import RankGroup
from octavo.device.ranks.leader import LeadArithmetic, LeadRows, RankedForward
from octavo.device.ranks.member import share_of
from octavo.device.ranks.messages import Allocate, Load, Measure, Release
from octavo.device.ranks.processes import RankProcesses
from octavo.errors import ConfigError
from octavo.executor.backend import Backend, PoolSize
from octavo.executor.executor import DeviceExecutor, Executor
from octavo.executor.runner import Runner, RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import LoadedModel, WholeModel, load_model, open_files
from octavo.model.packed_cache import PackedFolder
from octavo.model.spec import Model
from octavo.model.split import Split, check_ranks
from octavo.model.weight_sizes import measure_model
from octavo.sampling.grammars import Grammars
from octavo.types import RankState

SHARED_BYTES = 64 << 20  # memory where ranks exchange their shares of blocks
_PLACES_MIN = 2


class RankedBackend(Backend):
    """`Backend` of all ranks together. Sizes and bytes are those of all ranks."""

    name = "torch"
    is_host = False

    def __init__(self, own: TorchBackend, devices: Sequence[str], weights: str, timeout_s: float) -> None:
        """`own`: this process's backend; `devices` of all ranks, its own first."""
        self._own, self._devices, self._weights_kind, self._timeout_s = own, devices, weights, timeout_s
        self.num_ranks = len(devices)
        self._split = Split(0, self.num_ranks)
        self.layout_id = f", {self.num_ranks} ranks"
        self.device = f"{self.num_ranks} ranks: {', '.join(devices)}"
        self.weights, self.arithmetic_id = own.weights, own.arithmetic_id
        self.exactness, self.pads_steps = own.exactness, own.pads_steps
        self.notes = own.notes
        self._ranks: RankProcesses | None = None
        self._group: RankGroup | None = None
        self._shared_fd = -1
        self._has_runner = False

    # -- start and end

    def load(
        self,
        path: ModelPath,
        context_length: int | None,
        progress: Callable[[str], None],
        packed: PackedFolder | None,
    ) -> LoadedModel:
        """Start the ranks and load on all of them at once. Raises what `load_model` raises, ConfigError with
        what another rank refused, DeviceLost."""
        opened = open_files(path)
        spec = opened.description.spec
        check_ranks(self.num_ranks, spec.num_heads, spec.num_kv_heads)  # before anything is started
        self._shared_fd = os.memfd_create("octavo-ranks")
        os.ftruncate(self._shared_fd, SHARED_BYTES)
        progress(f"starting {self.num_ranks - 1} more ranks")
        ranks = RankProcesses(self._devices, self._weights_kind, self._timeout_s, self._shared_fd)
        self._ranks = ranks
        ranks.answers()
        try:
            self._group = RankGroup(
                ranks.rendezvous, 0, self.num_ranks, self._timeout_s, self._own.torch_device
            )
        except RuntimeError as error:
            raise ranks.why(error) from error
        ranks.have_met(self._group)
        ranks.send(Load(path.name, str(path.path.absolute()), path.kind, context_length))
        loaded = load_model(path, self.weights, context_length, progress, packed, self._split)
        weight_bytes = loaded.model.weights.num_bytes + sum(ranks.answers())
        whole = measure_model(opened, "auto", context_length)
        return replace(loaded, whole=WholeModel(whole.weights.num_parameters, weight_bytes))

    def close(self) -> None:
        """End the other ranks. Idempotent."""
        if self._ranks is not None:
            self._ranks.close()
        if self._shared_fd >= 0:
            os.close(self._shared_fd)
            self._shared_fd = -1

    def states(self) -> tuple[RankState, ...]:
        """The total of all ranks."""
        if self._ranks is None or self._group is None:
            return ()
        own = RankState(0, os.getpid(), self._devices[0], self._own.memory_used(), self._group.waited_s)
        return (own, *self._ranks.states())

    # -- sizes

    def memory_available(self) -> int:
        """Bytes available for blocks on all ranks together: on each as much as on the smallest."""
        if self._own.torch_device.type != "cuda" or self._ranks is None:
            return self._own.memory_available()
        return self.num_ranks * min(self._own.memory_available(), *self._ranks.call(Measure()))

    def measure_steps(
        self,
        model: Model,
        config: RunnerConfig,
        shape: KvShape,
        step_tokens: int,
        progress: Callable[[str], None],
    ) -> int | None:
        """Memory used on all ranks' devices by a runner over two blocks, measured on this one."""
        if not self._own.is_measured:
            return None
        before = self._own.memory_available()
        runner = self._new_runner(model, config, PoolSize(shape, 2), None, None, lambda: None)
        try:
            runner.warm(step_tokens, progress)
            return self.num_ranks * max(0, before - self._own.memory_free())
        finally:
            runner.close()
            if self._ranks is not None:
                self._ranks.call(Release())

    def bytes_per_block(self, shape: KvShape) -> int:
        """Bytes of a block on all ranks together."""
        return self._own.bytes_per_block(share_of(shape, self._split)) * self.num_ranks

    def bytes_per_layer(self, shape: KvShape) -> None:
        """None: a block is stored rank by rank."""

    # -- runners

    def new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None = None,
        grammars: Grammars | None = None,
    ) -> Runner:
        """A runner with pools on all ranks, which are freed with it. Raises ConfigError for a second one."""
        if self._has_runner:
            raise ConfigError(
                "the ranks compute for an engine already; allowed: one engine over several devices at a time"
            )
        self._has_runner = True
        return self._new_runner(model, config, size, transfers, grammars, self.close)

    def _new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None,
        grammars: Grammars | None,
        on_close: Callable[[], None],
    ) -> Runner:
        ranks, group, shape = self._ranks, self._group, size.shape
        assert ranks is not None, "no model is loaded"
        assert group is not None
        if self.bytes_per_block(shape) * _PLACES_MIN > SHARED_BYTES:
            raise ConfigError(
                f"a block takes {self.bytes_per_block(shape):,} bytes; allowed with several ranks: up to "
                f"{SHARED_BYTES // _PLACES_MIN:,}"
            )
        order = Allocate(
            shape.kind, shape.block_size, size.num_blocks, config.max_rows, config.context_length
        )
        ranks.call(order)
        pool = self._own.allocate_pool(replace(size, shape=share_of(shape, self._split)))
        rows = LeadRows(config.max_rows, config.context_length, config.block_size, self._own.torch_device)
        own = self._own.new_arithmetic(model, pool, rows, group)
        forward = RankedForward(
            LeadArithmetic(own, rows, ranks, group),
            rows,
            config.stop_ids,
            ranks,
            self._shared_fd,
            self.states,
            on_close,
        )
        return Runner(forward, config, transfers, grammars)

    def new_executor(self, runner: Runner, overlap: int) -> Executor:
        """A device runs asynchronously, so the calling thread starts plans."""
        return DeviceExecutor(runner)
