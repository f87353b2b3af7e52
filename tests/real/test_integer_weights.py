"""The default model with its file's own integers stays near float32, in what it says and how surely."""

from __future__ import annotations

from pydoc_data.topics import topics

import numpy as np
import pytest

from octavo.config import StartOptions
from octavo.executor.runner import kv_shape
from octavo.kernels.contract import Batch, Floats
from octavo.model.decoder import hidden_states, project
from octavo.serving.start import build_engine

pytestmark = [pytest.mark.full, pytest.mark.real_model]

TOKENS = 512
TEXT = topics["execmodel"]  # prose that comes with Python


def log_probabilities(weights: str, kv: str = "f32") -> Floats:
    """(T, V) in double: the distributions after each token of a text."""
    started = build_engine(
        None, StartOptions(weights=weights, kv="f32", kv_memory_bytes=2**28, context_length=512), print
    )
    started.engine.executor.close()
    model, ops = started.loaded.model, started.backend.ops
    tokens = np.array(started.loaded.tokenizer.encode(TEXT)[:TOKENS], np.int32)
    every = np.arange(TOKENS, dtype=np.int32)
    tables = np.arange(TOKENS // 16, dtype=np.int32)[None]
    pool = ops.allocate_kv(kv_shape(model, 16, kv), TOKENS // 16)
    starts, offsets = np.zeros(1, np.int32), np.array([0, TOKENS], np.int32)
    batch = Batch(tokens, every, starts, offsets, tables, every)
    logits = project(ops, model, hidden_states(ops, model, pool, batch)).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("weights, bound", [("auto", 0.006), ("int8", 0.006), ("bf16", 0.0005)])
def test_integer_weights_stay_near_float32(weights: str, bound: float) -> None:
    wanted, given = log_probabilities("f32"), log_probabilities(weights)
    divergence = (np.exp(wanted) * (wanted - given)).sum(axis=1)
    agreement = (wanted.argmax(axis=1) == given.argmax(axis=1)).mean()
    print(
        f"\n{weights}: KL mean {divergence.mean():.5f}, p99 {np.quantile(divergence, 0.99):.4f}, "
        f"top-1 agreement {agreement:.4f} over {TOKENS} tokens"
    )
    assert divergence.mean() < bound
    assert agreement > 0.95
