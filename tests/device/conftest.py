"""Triton's kernels run in its interpreter here: it must know before it is imported for the first time."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
from bench.cuda.chained import chained_dot


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The interpreter computes what kernels mask, and NumPy would warn of it."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def chained_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's products as tensor cores make them: tests of exactness need these."""
    from triton.runtime import interpreter

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", chained_dot)
