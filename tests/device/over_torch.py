"""Torch's ops for the tests that are written over the processor's: the tiny engine builds its own forward."""

from __future__ import annotations

import dataclasses

import torch

from octavo.device.backend import DeviceExecutor, TorchBackend
from octavo.device.eager import EagerOps
from octavo.device.opening import compiled_backend, eager_backend
from octavo.device.runner import DeviceRunner
from octavo.device.weights import DeviceWeights
from octavo.executor.backend import PoolSize
from octavo.executor.runner import RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars

torch.set_num_threads(1)
CPU = torch.device("cpu")


class _Running:
    """What the tiny engine asks of ops that are not the processor's."""

    kv: str
    backend: TorchBackend

    def new_runner(
        self,
        model: Model,
        shape: KvShape,
        num_blocks: int,
        config: RunnerConfig,
        worker: TransferWorker | None,
        grammars: Grammars | None,
    ) -> DeviceRunner:
        size = PoolSize(dataclasses.replace(shape, kind=self.kv), num_blocks)
        return self.backend.new_runner(model, config, size, worker, grammars)

    def new_executor(self, runner: DeviceRunner) -> DeviceExecutor:
        return DeviceExecutor(runner)


class TinyTorch(_Running, EagerOps):
    """Eager ops on torch's CPU whose pools hold K and V as `kv` says."""

    def __init__(self, kv: str = "f32") -> None:
        super().__init__(CPU, "f32")
        self.kv = kv
        self.name = f"torch-{kv}"
        self.backend = eager_backend(CPU, "f32", lambda: 1 << 30, self)


class TinyCompiled(_Running, DeviceWeights):
    """Kernels in Triton's interpreter, over weights of `dtype`."""

    def __init__(self, kv: str = "f32", dtype: torch.dtype = torch.float32) -> None:
        super().__init__(CPU, dtype)
        self.kv = kv
        self.name = f"compiled-{kv}"
        self.backend = compiled_backend(CPU, dtype, lambda: 1 << 30)
