"""The real model's embeddings of real texts, against transformers on the same weights."""

from __future__ import annotations

import numpy as np
import pytest
from tests.real.test_default_model import prompts

from octavo import LLM
from octavo.engine.port import Submit
from octavo.params import Pooling, SamplerParams
from octavo.serving.embedding import vector_of
from octavo.types import Request

pytestmark = [pytest.mark.full, pytest.mark.real_model]


def embedded(llm: LLM, texts: list[list[int]], pooling: Pooling) -> list[np.ndarray]:
    """Raw vectors, batched as the engine likes."""
    for index, tokens in enumerate(texts):
        request = Request(10_000 + index, tuple(tokens), SamplerParams(pooling=pooling), 1, 0)
        llm.engine.inbox.post(Submit(request))
    found = {}
    while len(found) < len(texts):
        found |= {update.request_id: update.embedding for update in llm.engine.step()}
    return [vector_of(found[10_000 + index], normalize=False) for index in range(len(texts))]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_embeddings_equal_transformers_on_the_real_model(llm: LLM, oracle) -> None:  # type: ignore[no-untyped-def]
    import torch

    texts = prompts(llm)
    last, mean = (embedded(llm, texts, pooling) for pooling in (Pooling.LAST, Pooling.MEAN))
    worst = 1.0
    for tokens, ours_last, ours_mean in zip(texts, last, mean, strict=True):
        with torch.no_grad():
            states = oracle.model(torch.tensor([tokens])).last_hidden_state[0].double().numpy()
        worst = min(worst, cosine(ours_last, states[-1]), cosine(ours_mean, states.mean(0)))
    print(f"\nlowest cosine of {2 * len(texts)} embeddings: {worst:.9f}")
    assert worst > 0.99999


def test_an_embedding_of_the_real_model_is_bit_equal_alone_and_in_a_crowd(llm: LLM) -> None:
    texts = prompts(llm)[:12]
    for pooling in Pooling:
        crowded = embedded(llm, texts, pooling)
        for tokens, one in zip(texts, crowded, strict=True):
            assert embedded(llm, [tokens], pooling)[0].tobytes() == one.tobytes()
