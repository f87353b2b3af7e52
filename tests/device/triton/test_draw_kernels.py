"""Tokens, penalties and biases by kernels are those of torch, bit for bit, for rows of every kind at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.device.triton.steps import CPU

from octavo.device.compiled import KernelSampler
from octavo.device.rows import DeviceRows
from octavo.device.sampler import TorchSampler
from octavo.params import SamplerParams
from octavo.types import AdmittedRow, StepPlan

pytestmark = pytest.mark.full

ASKED = [
    SamplerParams(temperature=0.0),
    SamplerParams(temperature=1.0),
    SamplerParams(temperature=0.3, repetition_penalty=1.3),
    SamplerParams(temperature=1.7, top_k=5, top_p=0.8, frequency_penalty=0.31, presence_penalty=-0.5),
    SamplerParams(temperature=1e-7, top_p=0.6, logit_bias=((3, 2.5), (96, -100.0), (7, 0.1))),
    SamplerParams(temperature=0.8, min_p=0.1, repetition_penalty=0.7, logit_bias=((0, 1.25),)),
]
CONTEXT = 1100


def rows_of(rng: np.random.Generator, vocab: int) -> tuple[DeviceRows, torch.Tensor]:
    """The rows, and how many tokens each has."""
    rows = DeviceRows(len(ASKED), CONTEXT, 16, CPU)
    lengths = [*map(int, rng.integers(2, 60, len(ASKED) - 1)), CONTEXT]
    admitted = [
        AdmittedRow(
            row,
            row,
            tuple(rng.integers(0, min(12 * (1 + row), vocab), length).tolist()),
            int(rng.integers(1, length)),
            CONTEXT,
            params,
            seed=int(rng.integers(-(2**62), 2**62)),
            choice=row,
        )
        for row, (length, params) in enumerate(zip(lengths, ASKED, strict=True))
    ]
    indices, values = rows.written_by(StepPlan(1, (), tuple(admitted), (), (), (), ())).arrays()
    rows.state[torch.from_numpy(indices).long()] = torch.from_numpy(values)
    return rows, torch.tensor(lengths)


def logits_of(rng: np.random.Generator, rows: int, vocab: int) -> torch.Tensor:
    logits = torch.from_numpy(rng.standard_normal((rows, vocab)).astype(np.float32) * 4)
    logits[:, ::7] = torch.round(logits[:, ::7])  # ties
    logits[:, 5::50] = -0.0
    return logits


@pytest.mark.parametrize("vocab", [97, 1025, 5003])
@pytest.mark.parametrize("seed", range(3))
def test_they_are_those_of_torch(seed: int, vocab: int) -> None:
    rng = np.random.default_rng(seed)
    rows, lengths = rows_of(rng, vocab)
    chosen = torch.from_numpy(rng.permutation(len(ASKED)))
    before = lengths[chosen]
    kernels, plain = KernelSampler(rows), TorchSampler(rows)
    logits = logits_of(rng, len(ASKED), vocab)
    found, wanted = logits.clone(), logits.clone()
    for sampler, own in ((kernels, found), (plain, wanted)):
        sampler.penalise(own, chosen, before, int(before.max()))
    assert found.numpy().tobytes() == wanted.numpy().tobytes()
    assert not torch.equal(found, logits)
    for sampler, own in ((kernels, found), (plain, wanted)):
        sampler.add_biases(own, chosen, 3)
    assert found.numpy().tobytes() == wanted.numpy().tobytes()
    assert torch.equal(kernels.draw_greedily(found), plain.draw_greedily(found))
    for is_filtered in (False, True):
        tokens = kernels.draw(found, chosen, before, is_filtered=is_filtered)
        assert torch.equal(tokens, plain.draw(found, chosen, before, is_filtered=is_filtered))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_row_of_no_numbers_has_no_token_and_its_neighbours_have_theirs(number: float) -> None:
    rng = np.random.default_rng(4)
    rows, lengths = rows_of(rng, 2000)
    logits, each = logits_of(rng, len(ASKED), 2000), torch.arange(len(ASKED))
    kernels = KernelSampler(rows)
    for is_filtered in (False, True):
        wanted = kernels.draw(logits, each, lengths, is_filtered=is_filtered)
        spoilt = logits.clone()
        spoilt[1, 1700] = spoilt[3, 2] = number
        spoilt[0] = -torch.inf
        found = kernels.draw(spoilt, each, lengths, is_filtered=is_filtered)
        assert found[[0, 1, 3]].tolist() == [-1, -1, -1]
        assert torch.equal(found[[2, 4, 5]], wanted[[2, 4, 5]])
    assert kernels.draw_greedily(spoilt)[[0, 1, 3]].tolist() == [-1, -1, -1]
    assert torch.equal(kernels.draw_greedily(spoilt)[[2, 4, 5]], logits.argmax(-1)[[2, 4, 5]])


def test_of_equals_the_lowest_is_chosen_wherever_parts_end() -> None:
    logits = torch.zeros((2, 5000))
    logits[0, [1023, 1024, 4999]] = 1.0
    logits[1, [4000, 2048]] = 1.0
    assert KernelSampler(DeviceRows(1, 16, 16, CPU)).draw_greedily(logits).tolist() == [1023, 2048]
