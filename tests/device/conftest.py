"""Triton's kernels run in its interpreter here: it must know before it is imported for the first time."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The interpreter computes what kernels mask, and NumPy would warn of it."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def chained_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's products as tensor cores make them: each element one chain over K, in order, whatever
    the tile. NumPy's own depend on a tile's shape, and with some BLAS on a row's place in it, so tests of
    exactness need these."""
    from triton.runtime import interpreter

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):  # type: ignore[no-untyped-def]
        left, right = (x.data.astype(d.data.dtype) for x in (a, b))
        total = d.data.copy()
        for k in range(left.shape[-1]):
            total += left[..., :, k, None] * right[..., k, None, :]
        return interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
