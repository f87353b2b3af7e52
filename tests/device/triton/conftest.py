"""Kernels run here in Triton's interpreter: the variable must stand before Triton is imported."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20240611)
