"""The torch backend: tensors on a device, under the same plans as the processor's.

EagerBackend      op after op, exact by construction: torch's CPU
CompiledBackend   Octavo's kernels in Triton, full graphs: CUDA
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from octavo.device.arithmetic import Arithmetic, EagerArithmetic
from octavo.device.choosing import check_capability, words_of
from octavo.device.compiled import CompiledArithmetic
from octavo.device.eager import EagerOps
from octavo.device.identity import kernels_id
from octavo.device.layout import DevicePool, Layout, allocate_pool
from octavo.device.rows import DeviceRows
from octavo.device.runner import DeviceRunner
from octavo.device.weights import DeviceWeights
from octavo.errors import ConfigError
from octavo.executor.backend import EngineRunner, PoolSize
from octavo.executor.executor import Executor, PendingResult
from octavo.executor.runner import RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape, WeightOps
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars
from octavo.types import StepPlan
from octavo.units import format_bytes

_PROCESSORS_OF_A_CPU = 1  # the interpreter runs one program after the other


class DeviceExecutor:
    """Starts plans where they are made; whoever asks for a result waits for it."""

    def __init__(self, runner: DeviceRunner) -> None:
        self._runner = runner

    def submit(self, plan: StepPlan) -> PendingResult:
        """Start a plan."""
        return self._runner.submit(plan)

    def close(self) -> None:
        """Let go of what the runner has."""
        self._runner.close()


class _DeviceBackend:
    """What both have in common: sizes, pools and runners."""

    name = "torch"
    is_host = False
    weights: WeightOps

    def __init__(self, device: torch.device, arithmetic_id: str, host_memory: Callable[[], int]) -> None:
        self.torch_device = device
        self.device = words_of(device)
        self.arithmetic_id = arithmetic_id
        self._host_memory = host_memory

    def memory_available(self) -> int:
        """Bytes to be had for blocks now."""
        if self.torch_device.type == "cuda":
            return torch.cuda.mem_get_info(self.torch_device)[0]
        return self._host_memory() // 4

    def bytes_per_block(self, shape: KvShape) -> int:
        """What a block takes."""
        return Layout(shape).bytes_per_block

    def new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None = None,
        grammars: Grammars | None = None,
    ) -> DeviceRunner:
        """A runner with a pool of its own, and a dummy block behind it. Raises ConfigError where it does not
        fit."""
        try:
            pool = allocate_pool(size.shape, size.num_blocks + 1, self.torch_device)
        except torch.OutOfMemoryError:
            free = self.memory_available()
            asked = Layout(size.shape).bytes_per_block * (size.num_blocks + 1)
            raise ConfigError(
                f"KV memory of {format_bytes(asked)} was asked for, and {format_bytes(free)} are free on "
                f"{self.device}; give a smaller --kv-memory, or end what else runs there (nvidia-smi)"
            ) from None
        rows = DeviceRows(
            config.max_rows, config.context_length, config.block_size, size.num_blocks, self.torch_device
        )
        return DeviceRunner(self.new_arithmetic(model, pool, rows), rows, config, transfers, grammars)

    def new_arithmetic(self, model: Model, pool: DevicePool, rows: DeviceRows) -> Arithmetic:
        """What computes over the pool."""
        raise NotImplementedError

    def new_executor(self, runner: EngineRunner, overlap: int) -> Executor:
        """A device is its own thread: plans are started where they are made."""
        assert isinstance(runner, DeviceRunner)
        return DeviceExecutor(runner)


class EagerBackend(_DeviceBackend):
    """Op after op on any device."""

    def __init__(self, device: torch.device, weights: str, host_memory: Callable[[], int]) -> None:
        self.ops = EagerOps(device, weights)
        self.weights = self.ops
        super().__init__(device, self.ops.arithmetic_id, host_memory)

    def new_arithmetic(self, model: Model, pool: DevicePool, rows: DeviceRows) -> Arithmetic:
        """Eager."""
        return EagerArithmetic(model, self.ops, pool)


class CompiledBackend(_DeviceBackend):
    """Octavo's kernels: on CUDA, or on a CPU in Triton's interpreter (for tests)."""

    def __init__(self, device: torch.device, dtype: torch.dtype, host_memory: Callable[[], int]) -> None:
        self.weights = DeviceWeights(device, dtype)
        super().__init__(device, kernels_id(device, dtype), host_memory)

    def new_arithmetic(self, model: Model, pool: DevicePool, rows: DeviceRows) -> Arithmetic:
        """Kernels, and graphs of them."""
        count = _PROCESSORS_OF_A_CPU
        if self.torch_device.type == "cuda":
            count = torch.cuda.get_device_properties(self.torch_device).multi_processor_count
        return CompiledArithmetic(model, pool, rows, count)


def open_backend(
    name: str, weights: str, attention: str, threads: int | None, host_memory: Callable[[], int]
) -> EagerBackend | CompiledBackend:
    """The backend of a device: "cpu", "cuda" or "cuda:1". Raises ConfigError where it cannot be had.

    torch's own threads are one unless `threads` says otherwise: with two, its first products of a process
    were seen to be wrong, once in five hundred processes (docs/log.md).
    """
    if weights not in ("auto", "f32", "bf16"):
        raise ConfigError(
            f"weights is {weights}, which the torch backend does not hold; allowed: auto, f32, bf16"
        )
    device = check_capability(name)
    if device.type == "cpu":
        torch.set_num_threads(threads or 1)
        return EagerBackend(device, weights, host_memory)
    return CompiledBackend(device, torch.float32 if weights == "f32" else torch.bfloat16, host_memory)
