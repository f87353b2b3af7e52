"""The noise of the kernel is the host's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.device.triton.noise import gumbel_noise
from octavo.sampling.sampler import gumbel_noise as host_noise

pytestmark = pytest.mark.full


@pytest.mark.parametrize("size", [1, 5, 97, 1027])
def test_it_is_the_hosts_bit_for_bit(size: int) -> None:
    rng = np.random.default_rng(size)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), int(rng.integers(-(2**62), 2**62))]
    positions, choices = rng.integers(1, 2**31, len(seeds)), rng.integers(0, 100, len(seeds))
    out = torch.full((len(seeds), size), torch.nan)
    low = torch.tensor([seed & 0xFFFF_FFFF for seed in seeds])
    high = torch.tensor([seed >> 32 & 0xFFFF_FFFF for seed in seeds])
    gumbel_noise(out, torch.from_numpy(positions), torch.from_numpy(choices), low, high)
    for row, seed in enumerate(seeds):
        wanted = host_noise(seed, int(choices[row]), int(positions[row]), size)
        assert out[row].numpy().tobytes() == wanted.tobytes()
