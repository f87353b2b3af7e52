"""The default model with rounded or quantised KV stays near float32, and names its blocks apart."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from tests.real.test_integer_weights import TOKENS, log_probabilities

from octavo import LLM, SamplingParams
from octavo.config import StartOptions

pytestmark = [pytest.mark.full, pytest.mark.real_model]


@pytest.mark.parametrize("kv, bound", [("bf16", 0.0005), ("int8", 0.005)])
def test_kv_of_fewer_bits_stays_near_float32(kv: str, bound: float) -> None:
    wanted, given = log_probabilities("f32"), log_probabilities("f32", kv)
    divergence = (np.exp(wanted) * (wanted - given)).sum(axis=1)
    agreement = (wanted.argmax(axis=1) == given.argmax(axis=1)).mean()
    print(f"\n{kv}: KL mean {divergence.mean():.6f}, top-1 agreement {agreement:.4f} over {TOKENS} tokens")
    assert 0 < divergence.mean() < bound
    assert agreement > 0.96


@pytest.mark.parametrize("kv, bytes_per_block", [("bf16", 368_640), ("int8", 196_608)])
def test_an_engine_holds_kv_as_asked_and_names_it(kv: str, bytes_per_block: int) -> None:
    llm = LLM(None, StartOptions(weights="f32", kv=kv, kv_memory_bytes=2**28, context_length=512))
    plain = LLM(None, StartOptions(weights="f32", kv="f32", kv_memory_bytes=2**28, context_length=512))
    assert llm.started.budget.bytes_per_block == bytes_per_block
    prompt = "A sheet folded three times makes a gathering of sixteen pages, called an octavo. " * 3
    params = SamplingParams(max_tokens=8, temperature=0.0)
    first, second = (llm.generate([prompt], params)[0] for _ in range(2))
    assert first.outputs[0].text == second.outputs[0].text
    assert second.num_cached_tokens >= 32
    tokens = array("I", range(16))
    chains = [one.engine.scheduler.namer.chain("", tokens) for one in (llm, plain)]
    assert chains[0].names != chains[1].names
