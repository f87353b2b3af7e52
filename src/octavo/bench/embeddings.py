"""Texts a second: a fixed set of texts through the server's own client, tokenising included.

The texts are random slices of the sample text: many short ones and some long ones, like chunks of documents.
The engine has no prefix caching, so all rounds cost the same, and the comparison with a peer without a cache
is fair.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bench.text import sample_text
from octavo.errors import ConfigError
from octavo.params import Pooling
from octavo.serving.client import EngineClient
from octavo.serving.embedding import EmbeddingOptions, embed_all

TEXTS_MAX = 100_000
_SEED = 7
_WORDS_LEAST, _WORDS_MIDDLE, _SPREAD = 4, 60, 0.8  # log-normal lengths, in words


@dataclass(frozen=True, slots=True)
class EmbeddingsResult:
    """One pooling; speeds are of the median round."""

    pooling: str
    num_texts: int
    num_tokens: int
    longest_tokens: int
    seconds: tuple[float, ...]  # of each round
    texts_per_s: float
    tokens_per_s: float


def fixed_texts(count: int, words_max: int) -> list[str]:
    """`count` slices of the sample text of up to `words_max` words, always the same for the same sample text.
    Raises ConfigError."""
    if not (1 <= count <= TEXTS_MAX and _WORDS_LEAST <= words_max <= TEXTS_MAX):
        raise ConfigError(
            f"{count} texts of up to {words_max} words; allowed: 1 to {TEXTS_MAX:,} texts of {_WORDS_LEAST} "
            f"to {TEXTS_MAX:,} words"
        )
    drawn, words = random.Random(_SEED), sample_text(None).text.split()
    texts = []
    for _ in range(count):
        length = round(_WORDS_MIDDLE * drawn.lognormvariate(0.0, _SPREAD))
        length = max(_WORDS_LEAST, min(length, words_max))
        start = drawn.randrange(len(words) - length)
        texts.append(" ".join(words[start : start + length]))
    return texts


def measure_embeddings(
    llm: EngineClient,
    texts: Sequence[str],
    poolings: Sequence[Pooling],
    rounds: int,
    show: Callable[[str], None] = lambda text: None,
) -> list[EmbeddingsResult]:
    """Measure the poolings alternately in each round, after one round to warm up. Raises ConfigError."""
    if rounds < 1:
        raise ConfigError(f"rounds is {rounds}; allowed: 1 and more")
    return asyncio.run(_measure(llm, texts, poolings, rounds, show))


async def _measure(
    llm: EngineClient,
    texts: Sequence[str],
    poolings: Sequence[Pooling],
    rounds: int,
    show: Callable[[str], None],
) -> list[EmbeddingsResult]:
    seconds: dict[Pooling, list[float]] = {pooling: [] for pooling in poolings}
    for number in range(rounds + 1):
        for pooling in poolings:
            show(f"round {number} of {rounds}: {pooling} ...")
            started = time.perf_counter()
            prompts = [await llm.encode(text) for text in texts]
            await embed_all(llm, prompts, EmbeddingOptions(pooling))
            seconds[pooling].append(time.perf_counter() - started)
    lengths = [len(prompt) for prompt in prompts]
    return [_result(pooling, lengths, seconds[pooling][1:]) for pooling in poolings]


def _result(pooling: Pooling, lengths: Sequence[int], seconds: Sequence[float]) -> EmbeddingsResult:
    middle = statistics.median(seconds)
    return EmbeddingsResult(
        str(pooling),
        len(lengths),
        sum(lengths),
        max(lengths),
        tuple(seconds),
        len(lengths) / middle,
        sum(lengths) / middle,
    )
