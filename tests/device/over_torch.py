"""Torch's ops for the tests that are written over the processor's: the tiny engine builds its own forward."""

from __future__ import annotations

import dataclasses

import torch

from octavo.device.arithmetic import EagerArithmetic
from octavo.device.backend import DeviceExecutor
from octavo.device.eager import EagerOps
from octavo.device.layout import allocate_pool
from octavo.device.runner import DeviceRunner
from octavo.executor.runner import RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars

torch.set_num_threads(1)


class TinyTorch(EagerOps):
    """Eager ops on torch's CPU whose pools hold K and V as `kv` says."""

    def __init__(self, kv: str = "f32") -> None:
        super().__init__(torch.device("cpu"), "f32")
        self.kv = kv
        self.name = f"torch-{kv}"

    def new_runner(
        self,
        model: Model,
        shape: KvShape,
        num_blocks: int,
        config: RunnerConfig,
        worker: TransferWorker | None,
        grammars: Grammars | None,
    ) -> DeviceRunner:
        pool = allocate_pool(dataclasses.replace(shape, kind=self.kv), num_blocks + 1, self.device)
        return DeviceRunner(EagerArithmetic(model, self, pool), config, worker, grammars)

    def new_executor(self, runner: DeviceRunner) -> DeviceExecutor:
        return DeviceExecutor(runner)
