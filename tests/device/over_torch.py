"""Torch's ops for the tests that are written over the processor's: the tiny engine builds its own forward."""

from __future__ import annotations

import dataclasses

import torch

from octavo.device.backend import TorchBackend
from octavo.device.open_backend import compiled_backend, reference_backend
from octavo.device.weights import DeviceWeights
from octavo.executor.backend import PoolSize
from octavo.executor.executor import DeviceExecutor
from octavo.executor.runner import Runner, RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape
from octavo.kernels.reference import ReferenceOps
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
    ) -> Runner:
        size = PoolSize(dataclasses.replace(shape, kind=self.kv), num_blocks)
        return self.backend.new_runner(model, config, size, worker, grammars)

    def new_executor(self, runner: Runner) -> DeviceExecutor:
        return DeviceExecutor(runner)


class TinyTorch(_Running, ReferenceOps):
    """The reference's ops over torch's CPU; pools hold K and V as `kv` says."""

    def __init__(self, kv: str = "f32") -> None:
        super().__init__("f32")
        self.kv = kv
        self.name = f"torch-{kv}"
        self.backend = reference_backend("f32", lambda: 1 << 30, self)


class TinyCompiled(_Running, DeviceWeights):
    """Kernels in Triton's interpreter, over weights of `dtype`."""

    def __init__(self, kv: str = "f32", dtype: torch.dtype = torch.float32) -> None:
        super().__init__(CPU, dtype)
        self.kv = kv
        self.name = f"compiled-{kv}"
        self.backend = compiled_backend(CPU, dtype, lambda: 1 << 30)
