"""Torch's ops for the tests that are written over the processor's: the tiny engine builds its own forward."""

from __future__ import annotations

import dataclasses

import torch

from octavo.device.eager import EagerOps
from octavo.device.eager_forward import EagerForward
from octavo.kernels.contract import KvShape
from octavo.model.spec import Model

torch.set_num_threads(1)


class TinyTorch(EagerOps):
    """Eager ops on torch's CPU whose pools hold K and V as `kv` says."""

    def __init__(self, kv: str = "f32") -> None:
        super().__init__(torch.device("cpu"), "f32")
        self.kv = kv
        self.name = f"torch-{kv}"

    def new_forward(self, model: Model, ops: EagerOps, shape: KvShape, num_blocks: int) -> EagerForward:
        return EagerForward(model, ops, dataclasses.replace(shape, kind=self.kv), num_blocks)
