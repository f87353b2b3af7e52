"""The processor's tests over torch: what they build `NativeOps` for gets torch's pool, rows and drawing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
from tests.device.over_torch import TinyTorch

from octavo.device.layout import Layout
from octavo.kernels.contract import KvShape


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
