"""A request meets one sampler for life: the host's and the device's round otherwise here and there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.device.over_torch import TinyTorch
from tests.engine.drafting import EagerSpeculator, Oracle
from tests.tiny import VOCAB, Answer, random_prompt, request, run, tiny_engine, tiny_model

from octavo.device.sampler import is_drawn_on_device
from octavo.engine.core import Engine
from octavo.params import SamplerParams

pytestmark = pytest.mark.full

OPS = TinyTorch()
MODEL = tiny_model(OPS)  # type: ignore[arg-type]


def of_ten_equals(**options: object) -> Engine:
    """An engine whose every next token is one of ten that are equally likely: any difference in rounding of
    `top_p` shows."""
    engine = tiny_engine(OPS, model=MODEL, **options)  # type: ignore[arg-type]

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        made = torch.full((hidden.shape[0], VOCAB), -1e9)
        made[:, 20:30] = 0.0
        return made

    engine.executor._runner.forward.arithmetic.logits = logits  # type: ignore[attr-defined]
    return engine


@pytest.mark.parametrize("seed", range(6))
def test_guesses_across_min_tokens_change_nothing(seed: int) -> None:
    prompt, oracle = random_prompt(np.random.default_rng(seed), 20), Oracle()

    def answer(engine: Engine) -> Answer:
        sampling = {"min_tokens": 8, "temperature": 1.0, "seed": seed, "top_p": 0.6, "logprobs": None}
        return run(engine, [request(1, prompt, 24, **sampling)])[1, 0]

    alone = answer(of_ten_equals())
    oracle.add((*prompt, *alone.tokens))
    guessed = answer(of_ten_equals(speculator=EagerSpeculator(oracle, "truth", 1, all_of_them=True)))
    assert guessed.accepted > 3
    assert guessed.tokens == alone.tokens


@pytest.mark.parametrize(
    ("params", "is_constrained", "on_device"),
    [
        (SamplerParams(), False, True),
        (SamplerParams(temperature=0.0, logprobs=5), False, True),
        (SamplerParams(top_k=5, top_p=0.5, min_p=0.1), False, True),
        (SamplerParams(min_tokens=2), False, False),
        (SamplerParams(presence_penalty=0.1), False, True),
        (SamplerParams(logit_bias=((3, 1.0),)), False, True),
        (SamplerParams(), True, False),
    ],
)
def test_which_one_depends_on_the_request_alone(
    params: SamplerParams, is_constrained: bool, on_device: bool
) -> None:
    assert is_drawn_on_device(params, is_constrained) == on_device
