"""Every family's embeddings are those of transformers: its last hidden state, pooled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.model.checkpoints import random_prompt
from tests.model.chunks import BACKENDS, load
from tests.model.model_bench import CONFIGS, make_model, save_model
from tests.tiny import run, tiny_engine

from octavo.params import Pooling, SamplerParams
from octavo.serving.embedding import vector_of
from octavo.types import Request

pytestmark = pytest.mark.full


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("backend", BACKENDS)
# transformers takes longrope's short factors for short texts, and we those of the configured context.
@pytest.mark.parametrize("name", [name for name in CONFIGS if "longrope" not in name])
def test_embeddings_equal_transformers(name, backend, tmp_path):
    theirs = make_model(name)
    ops, model = load(save_model(theirs, tmp_path), backend)
    engine = tiny_engine(ops, model=model, step_tokens=24)
    prompts = [random_prompt(length, seed=length) for length in (1, 16, 41)]
    requests = [
        Request(10 * index + place, tuple(prompt), SamplerParams(pooling=pooling), 1, 0)
        for index, prompt in enumerate(prompts)
        for place, pooling in enumerate(Pooling)
    ]
    answers = run(engine, requests)
    for index, prompt in enumerate(prompts):
        decoder = getattr(theirs, "model", theirs.base_model)  # the latter is the whole in Llama 4
        with torch.no_grad():
            states = decoder(torch.tensor([prompt])).last_hidden_state[0].double().numpy()
        for place, expected in enumerate((states[-1], states.mean(0))):
            ours = vector_of(answers[10 * index + place, 0].embedding)
            assert ours.shape == (model.spec.hidden_size,)
            assert abs(np.linalg.norm(ours) - 1.0) < 1e-6
            assert cosine(ours.astype(np.float64), expected) > 0.999999
