"""The processor's tests over torch: what they build `NativeOps` for gets torch's ops, and a batch of arrays
becomes a step on torch's CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.device.over_torch import TinyTorch

from octavo.device.layout import Layout
from octavo.device.step import DeviceStep, StepShape
from octavo.kernels.contract import HostBatch, KvShape


class TorchInstead(TinyTorch):
    """Called as `NativeOps` is: the argument says how weights are held, and K and V are float32."""

    def __init__(self, weights: str = "auto") -> None:
        super().__init__("f32")


@contextmanager
def torch_instead_of_native(*modules: ModuleType) -> Iterator[pytest.MonkeyPatch]:
    """While it is open these modules' `NativeOps`, kinds of KV and sizes of blocks are torch's."""
    instead = {
        "NativeOps": TorchInstead,
        "over_kv_of": lambda kind, ops: TinyTorch(kind),
        "bytes_per_block": lambda shape: Layout(shape).bytes_per_block,
        "BLOCK_BYTES": Layout(KvShape(2, 2, 16, 16, "f32")).bytes_per_block,
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            assert hasattr(module, "NativeOps"), f"{module.__name__} builds no ops"
            for name, value in instead.items():
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield patch


def step_of(batch: HostBatch) -> DeviceStep:
    """The same chunks on torch's CPU."""
    chunks = np.arange(batch.starts.size, dtype=np.int32)
    token_chunks = np.repeat(chunks, np.diff(batch.offsets))
    shape = StepShape(chunks, batch.starts, batch.offsets, token_chunks, batch.positions, batch.logit_rows)
    arrays = (torch.from_numpy(array) for array in (*shape.arrays, batch.tokens, batch.tables))
    return DeviceStep(shape, *arrays)
