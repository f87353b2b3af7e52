"""Penalties and bias on the device give the host's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.device.rows import DeviceRows, carry
from octavo.device.sampler import add_biases, is_adjusted_on_device, penalise
from octavo.params import SamplerParams
from octavo.sampling.penalties import adjust as adjust_on_host
from octavo.types import AdmittedRow, StepPlan

pytestmark = pytest.mark.full

CPU = torch.device("cpu")
VOCAB = 97
ASKED = [
    SamplerParams(),
    SamplerParams(repetition_penalty=1.3),
    SamplerParams(repetition_penalty=0.7, frequency_penalty=0.31, presence_penalty=-0.5),
    SamplerParams(presence_penalty=1.7, logit_bias=((3, 2.5), (96, -100.0), (7, 0.1))),
    SamplerParams(logit_bias=((0, 1.25),)),
]


@pytest.mark.parametrize("seed", range(5))
def test_they_are_the_hosts_bit_for_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = DeviceRows(len(ASKED), 64, 16, CPU)
    histories = [rng.integers(0, 12, rng.integers(2, 60)).astype(np.int32) for _ in ASKED]
    prompts = [int(rng.integers(1, history.size + 1)) for history in histories]
    admitted = [
        AdmittedRow(row, row, tuple(history.tolist()), prompt, 64, params, seed=1, choice=0)
        for row, (history, prompt, params) in enumerate(zip(histories, prompts, ASKED, strict=True))
    ]
    plan = StepPlan(1, (), tuple(admitted), (), (), (), ())
    indices, values = carry(rows.written_by(plan).arrays(), CPU)
    rows.state[indices.long()] = values
    logits = rng.standard_normal((len(ASKED), VOCAB)).astype(np.float32) * 5
    logits[:, ::10] = -0.0
    wanted = logits.copy()
    for row, params in enumerate(ASKED):
        adjust_on_host(wanted[row], params, None, histories[row], prompts[row], frozenset())
    found = torch.from_numpy(logits.copy())
    lengths = torch.tensor([history.size for history in histories])
    penalise(found, rows.adjusted, rows.tokens[:, : int(lengths.max())].long(), lengths)
    add_biases(found, rows.adjusted, 3)
    assert found.numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("params", "is_adjusted"),
    [
        (SamplerParams(repetition_penalty=1.1, logit_bias=((1, 2.0),)), True),
        (SamplerParams(min_tokens=1), False),
        (SamplerParams(allowed_token_ids=(1, 2)), False),
        (SamplerParams(banned_sequences=((1, 2),)), False),
        (SamplerParams(logit_bias=((1, 2.0), (1, 3.0))), False),
    ],
)
def test_what_is_adjusted_there(params: SamplerParams, is_adjusted: bool) -> None:
    assert is_adjusted_on_device(params) == is_adjusted
