"""The torch backend: tensors on a device, under the plans of the CPU backends. `open_backend` makes one."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from octavo.device.arithmetic import Arithmetic
from octavo.device.devices import words_of
from octavo.device.forward import DeviceForward
from octavo.device.layout import DevicePool, Layout, allocate_pool
from octavo.device.ranks.collectives import RankGroup
from octavo.device.rows import DeviceRows
from octavo.errors import ConfigError
from octavo.executor.backend import EXACT, Backend, PoolSize
from octavo.executor.executor import DeviceExecutor, Executor
from octavo.executor.runner import Runner, RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape, WeightOps
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars
from octavo.units import format_bytes

NewArithmetic = Callable[[Model, DevicePool, DeviceRows, RankGroup | None], Arithmetic]


class TorchBackend(Backend):
    """Sizes, pools and runners of one device; an `Arithmetic` computes over a pool."""

    name = "torch"
    is_host = False

    def __init__(
        self,
        device: torch.device,
        weights: WeightOps,
        arithmetic_id: str,
        new_arithmetic: NewArithmetic,
        host_memory: Callable[[], int],
        exactness: str = EXACT,
        notes: Sequence[tuple[str, str]] = (),
        *,
        pads_steps: bool = False,
    ) -> None:
        """`host_memory`: available bytes of the host; `notes`: lines of `octavo doctor` about it."""
        self.torch_device = device
        self.device = words_of(device)
        self.weights = weights
        self.arithmetic_id = arithmetic_id
        self.exactness, self.notes, self.pads_steps = exactness, notes, pads_steps
        self.new_arithmetic, self._host_memory = new_arithmetic, host_memory
        self.is_measured = device.type == "cuda"  # the memory that steps need

    def memory_available(self) -> int:
        """Bytes available for blocks now."""
        if self.torch_device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()  # what loading left behind is free
            return self.memory_free()
        return self._host_memory() // 4  # the machine's other programs need theirs

    def memory_free(self) -> int:
        """Bytes of a GPU that no process has allocated or reserved."""
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def memory_used(self) -> int:
        """Bytes of a GPU that are not free; on a CPU those of this process."""
        if self.torch_device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.torch_device)
            return total - free
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def measure_steps(
        self,
        model: Model,
        config: RunnerConfig,
        shape: KvShape,
        step_tokens: int,
        progress: Callable[[str], None],
    ) -> int | None:
        """GPU memory used by a warmed runner over two blocks after its largest step: activations, rows,
        captures, and the driver's memory for kernels."""
        if not self.is_measured:
            return None
        before = self.memory_available()
        runner = self.new_runner(model, config, PoolSize(shape, 2))
        try:
            runner.warm(step_tokens, progress)
            return max(0, before - self.memory_free())
        finally:
            runner.close()

    def bytes_per_block(self, shape: KvShape) -> int:
        """Bytes of a block."""
        return Layout(shape).bytes_per_block

    def bytes_per_layer(self, shape: KvShape) -> int:
        """Bytes of a layer of a block."""
        return Layout(shape).bytes_per_layer

    def new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None = None,
        grammars: Grammars | None = None,
    ) -> Runner:
        """A runner with a pool of its own. Raises ConfigError if it does not fit."""
        pool = self.allocate_pool(size)
        rows = DeviceRows(config.max_rows, config.context_length, config.block_size, self.torch_device)
        forward = DeviceForward(self.new_arithmetic(model, pool, rows, None), rows, config.stop_ids)
        return Runner(forward, config, transfers, grammars)

    def allocate_pool(self, size: PoolSize) -> DevicePool:
        """Blocks of zeros. Raises ConfigError if they do not fit."""
        try:
            return allocate_pool(size.shape, size.num_blocks, self.torch_device)
        except torch.OutOfMemoryError:
            free = self.memory_available()
            asked = Layout(size.shape).bytes_per_block * size.num_blocks
            raise ConfigError(
                f"KV memory of {format_bytes(asked)} was asked for, and {format_bytes(free)} are free on "
                f"{self.device}; give a smaller --kv-memory, or end what else runs there (nvidia-smi)"
            ) from None

    def new_executor(self, runner: Runner, overlap: int) -> Executor:
        """A device runs asynchronously, so the calling thread starts plans."""
        return DeviceExecutor(runner)
