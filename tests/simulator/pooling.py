"""Embeddings in random lives: which requests want one, and what their clients must be told."""

from __future__ import annotations

import random
from dataclasses import replace

from octavo.params import Pooling, SamplerParams
from octavo.sim.oracle import embedding_of
from octavo.types import FinishReason, Request, Update


def with_pooling(request: Request, rate: float = 0.08) -> Request:
    """The same prompt, now and then with its embedding wanted and no token; drawn aside, so that the life
    goes on as it would have."""
    drawn = random.Random(f"pooling {request.request_id} {request.seed}")
    if drawn.random() >= rate:
        return request
    return replace(request, params=SamplerParams(pooling=drawn.choice(list(Pooling))), max_tokens=1, n=1)


def check_told(request: Request, update: Update) -> None:
    """No token, and the embedding with an end that is a good one. A mean takes nothing from the cache."""
    assert not update.tokens, "a token of a request that wants none"
    assert update.usage.num_output == 0, "a placeholder is counted as output"
    is_well = update.finish in (FinishReason.STOP, FinishReason.LENGTH)
    wanted = embedding_of(request.prompt) if is_well else b""
    assert update.embedding == wanted, "an embedding of another prompt, or none"
    if request.params.pooling is Pooling.MEAN:
        assert update.usage.num_cached == 0, "a mean lacks what was found"
