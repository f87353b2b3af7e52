"""The torch backend: tensors on a device, under the same plans as the processor's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from octavo.device.arithmetic import EagerArithmetic
from octavo.device.eager import EagerOps
from octavo.device.layout import Layout, allocate_pool
from octavo.device.runner import DeviceRunner
from octavo.errors import ConfigError
from octavo.executor.backend import EngineRunner, PoolSize
from octavo.executor.executor import Executor, PendingResult
from octavo.executor.runner import RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape, WeightOps
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars
from octavo.types import StepPlan

WEIGHTS = ("auto", "f32", "bf16")


class EagerBackend:
    """Op after op on any device; on torch's CPU it is what proves the rest without a GPU."""

    name = "torch"
    is_host = False

    def __init__(self, device: torch.device, weights: str, host_memory: Callable[[], int]) -> None:
        ops = EagerOps(device, weights)
        self.ops = ops
        self.weights: WeightOps = ops
        self.device = words_of(device)
        self.arithmetic_id = ops.arithmetic_id
        self._host_memory = host_memory

    def memory_available(self) -> int:
        """Bytes to be had for blocks now."""
        if self.ops.device.type == "cuda":
            return torch.cuda.mem_get_info(self.ops.device)[0]
        return self._host_memory() // 4

    def bytes_per_block(self, shape: KvShape) -> int:
        """What a block takes."""
        return Layout(shape).bytes_per_block

    def new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None,
        grammars: Grammars | None,
    ) -> DeviceRunner:
        """A runner with a pool of its own, and a dummy block behind it."""
        pool = allocate_pool(size.shape, size.num_blocks + 1, self.ops.device)
        return DeviceRunner(EagerArithmetic(model, self.ops, pool), config, transfers, grammars)

    def new_executor(self, runner: EngineRunner, overlap: int) -> Executor:
        """A device is its own thread: plans are started where they are made."""
        assert isinstance(runner, DeviceRunner)
        return DeviceExecutor(runner)


class DeviceExecutor:
    """Starts plans; whoever asks for a result waits for it."""

    def __init__(self, runner: DeviceRunner) -> None:
        self._runner = runner

    def submit(self, plan: StepPlan) -> PendingResult:
        """Start a plan."""
        return self._runner.submit(plan)

    def close(self) -> None:
        """Let go of what the runner has."""
        self._runner.close()


def open_backend(
    name: str, weights: str, attention: str, threads: int | None, host_memory: Callable[[], int]
) -> EagerBackend:
    """The backend of a device: "cpu", "cuda" or "cuda:1". Raises ConfigError where it cannot be had.

    torch's own threads are one unless `threads` says otherwise: with two, its first products of a process
    were seen to be wrong, once in five hundred processes (docs/log.md).
    """
    if weights not in WEIGHTS:
        raise ConfigError(
            f"weights is {weights}, which the torch backend does not hold; allowed: {', '.join(WEIGHTS)}"
        )
    device = torch.device(name)
    if device.type == "cuda":
        obstacle = find_cuda_obstacle()
        if obstacle is None and (device.index or 0) >= torch.cuda.device_count():
            obstacle = f"there are {torch.cuda.device_count()} devices, numbered from 0"
        if obstacle is not None:
            raise ConfigError(f"device is {name}, which cannot be used: {obstacle}; allowed here: cpu")
        device = torch.device("cuda", device.index or 0)
    else:
        torch.set_num_threads(threads or 1)
    return EagerBackend(device, weights, host_memory)


def find_cuda_obstacle() -> str | None:
    """Why torch cannot use a CUDA device; None where it can."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return None


def words_of(device: torch.device) -> str:
    """ "cuda:0 (NVIDIA H100 80GB HBM3)"."""
    if device.type != "cuda":
        return f"torch's {device.type}"
    return f"{device} ({torch.cuda.get_device_name(device)})"
