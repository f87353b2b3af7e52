"""The noise of the kernel is the host's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton.language as tl

from octavo.device.triton.launch import kernel, launch
from octavo.device.triton.noise import noise_of, noise_words
from octavo.sampling.sampler import gumbel_noise as host_noise

pytestmark = pytest.mark.full


@kernel()
def write_noise(out, positions, choices, seeds, size, COUNTERS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, counter = tl.program_id(0), tl.arange(0, COUNTERS)
    seed = (tl.load(seeds + 2 * row), tl.load(seeds + 2 * row + 1))
    words = noise_words(counter, tl.load(positions + row), tl.load(choices + row), seed[0], seed[1])
    for place in tl.static_range(4):
        token = 4 * counter + place
        tl.store(out + row * size + token, noise_of(words[place]), mask=token < size)


@pytest.mark.parametrize("size", [1, 5, 97, 1027])
def test_it_is_the_hosts_bit_for_bit(size: int) -> None:
    rng = np.random.default_rng(size)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), int(rng.integers(-(2**62), 2**62))]
    positions, choices = rng.integers(1, 2**31, len(seeds)), rng.integers(0, 100, len(seeds))
    out = torch.full((len(seeds), size), torch.nan)
    halves = torch.tensor([(seed & 0xFFFF_FFFF, seed >> 32 & 0xFFFF_FFFF) for seed in seeds])
    given = [torch.from_numpy(positions), torch.from_numpy(choices), halves.to(torch.int32)]
    launch(write_noise, (len(seeds),), [out, *given, size], {"COUNTERS": 512})
    for row, seed in enumerate(seeds):
        wanted = host_noise(seed, int(choices[row]), int(positions[row]), size)
        assert out[row].numpy().tobytes() == wanted.tobytes()
