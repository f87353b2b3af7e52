"""Kernels run here in Triton's interpreter: the variable must stand before Triton is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20240611)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The interpreter computes what kernels mask, and NumPy would warn of it."""
    with np.errstate(all="ignore"):
        yield
