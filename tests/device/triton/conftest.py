"""Kernels run here in Triton's interpreter: the variable must stand before Triton is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

if TYPE_CHECKING:
    import torch


@pytest.fixture
def rng() -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(20240611)
