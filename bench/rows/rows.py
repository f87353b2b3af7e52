"""The cost of a decoding step by its number of rows: no count should cost more than a larger one.

    chunk        R positions of one sequence, as with R - 1 guesses
    sequences    one position of each of R sequences

Measures the real model's step, and the vocabulary with the likeliest token of each row. Each round measures
all counts, so the machine's drift affects all alike; the result is the medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from octavo.bench.kernels import duration
from octavo.kernels.contract import Batch, Floats, HostBatch, Ints, KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.model.decoder import hidden_states, project
from octavo.model.hub.paths import resolve
from octavo.model.loader import load_model
from octavo.units import blocks_for

BLOCK_SIZE = 16
_CALLS = 3  # of a count in a round: the least of them


@dataclass(frozen=True, slots=True)
class RowCost:
    """One count of rows; seconds are medians over the rounds. `dearer`: its time over that of the cheapest
    larger count, for the worse of both kinds; 1: none is cheaper."""

    rows: int
    chunk_s: float
    sequences_s: float
    vocabulary_s: float
    dearer: float


def measure_rows(
    model: str | None,
    weights: str,
    kv: str,
    counts: Sequence[int],
    context: int,
    rounds: int,
    show: Callable[[str], None] = lambda text: None,
) -> Iterator[RowCost]:
    """Measure all counts, ascending; `context` positions precede the rows. Raises ConfigError, ModelError."""
    ops = NativeOps(weights)
    given = load_model(resolve(model, show), ops, progress=show).model
    spec = given.spec
    blocks_each = blocks_for(context + max(counts), BLOCK_SIZE)
    num_blocks = blocks_each * max(counts)
    shape = KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, BLOCK_SIZE, kv)
    pool = ops.allocate_kv(shape, num_blocks)
    step = ops.prepare_step(lambda o, batch: hidden_states(o, given, pool, batch), pool)
    vocabulary = ops.prepare_rows(lambda o, x: project(o, given, x), spec.hidden_size)
    blocks = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    tables = blocks.reshape(max(counts), blocks_each)
    for table in tables:
        step(_batch(table[None], [0], [context]))
    calls: list[Callable[[], object]] = []
    for count in counts:
        chunk = _batch(tables[:1], [context], [count])
        several = _batch(tables[:count], [context] * count, [1] * count)
        rows: Floats = step(several).copy()
        calls += [partial(step, chunk), partial(step, several), partial(vocabulary.argmax, rows)]
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        show(f"round {number + 1} of {rounds} ...")
        for call, found in zip(calls, seconds, strict=True):
            found.append(min(duration(call) for _ in range(_CALLS)))
    medians = np.array([statistics.median(found) for found in seconds]).reshape(-1, 3)  # (counts, kinds)
    whole = medians[:, :2] + medians[:, 2:]
    for index, count in enumerate(counts):
        larger = whole[index + 1 :].min(axis=0, initial=np.inf)
        dearer = max(1.0, float((whole[index] / larger).max()))
        chunk_s, sequences_s, vocabulary_s = map(float, medians[index])
        yield RowCost(count, chunk_s, sequences_s, vocabulary_s, dearer)


def _batch(tables: Ints, starts: Sequence[int], lengths: Sequence[int]) -> HostBatch:
    """Chunks of arbitrary tokens, with logits for all rows."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ranges = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    positions = np.concatenate(ranges).astype(np.int32)
    tokens = (100 + positions * 7 % 1000).astype(np.int32)
    every = np.arange(len(tokens), dtype=np.int32)
    return Batch(tokens, positions, np.array(starts, np.int32), offsets, np.ascontiguousarray(tables), every)
