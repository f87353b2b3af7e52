"""Embeddings: hidden rows of a prompt, pooled as the request specifies, instead of a sample.

    last    the row of the prompt's last position
    mean    the rows of all positions, added in float64 in order of positions, divided by their number

The sum is kept in the sequence's row from chunk to chunk. It adds one hidden row after another, so that
chunking changes no bit. A preempted sequence begins again in a new row, at its first position. A placeholder
token ends the request: no logits are computed for it.
"""

from __future__ import annotations

import numpy as np

from octavo.executor.draws import SamplingResult
from octavo.executor.forward import Forward
from octavo.executor.rows import Row, Rows
from octavo.kernels.contract import Floats
from octavo.params import Pooling
from octavo.sampling.sampler import SampleFailure
from octavo.types import Chunk, SampledToken, StepPlan

PLACEHOLDER = 0  # a token id that every vocabulary has
NOT_FINITE = "its hidden rows hold numbers that are not finite"
POOL_SLICE = 512  # hidden rows copied to the host at once


def pool_prompts(plan: StepPlan, rows: Rows, forward: Forward, taken: SamplingResult) -> dict[int, bytes]:
    """The embeddings of prompts that end in this step, by sequence, each with its placeholder in `taken`;
    prompts that go on keep their sums in their rows."""
    found: dict[int, bytes] = {}
    first = 0  # of the chunk's hidden rows
    for chunk in plan.ended:
        count = chunk.stop - chunk.logits_from
        entry = rows[chunk.row]
        if entry.params.pooling is not None:
            pooled = _pool(entry, chunk, forward, range(first, first + count))
            if pooled is not None:
                rows.append(chunk.row, PLACEHOLDER)
                _end(entry, pooled, taken, found)
        first += count
    return found


def _pool(entry: Row, chunk: Chunk, forward: Forward, places: range) -> Floats | None:
    """(E,): the embedding, where the chunk ends the prompt."""
    if entry.params.pooling is Pooling.LAST:
        return forward.hidden(places)[0] if chunk.num_samples else None
    if entry.has_missed:
        return None  # the sequence will begin again, or has failed
    assert entry.num_summed == chunk.start == chunk.logits_from, "a position is missing in a mean"
    entry.num_summed += len(places)
    for start in range(0, len(places), POOL_SLICE):
        rows = forward.hidden(places[start : start + POOL_SLICE])
        if entry.hidden_sum is None:
            entry.hidden_sum = np.zeros(rows.shape[1], np.float64)
        for row in rows:
            entry.hidden_sum += row
    if not chunk.num_samples:
        return None
    assert entry.hidden_sum is not None
    return (entry.hidden_sum / entry.num_prompt).astype(np.float32)


def _end(entry: Row, pooled: Floats, taken: SamplingResult, found: dict[int, bytes]) -> None:
    if not np.isfinite(pooled).all():
        taken.failed[entry.seq_id] = SampleFailure(NOT_FINITE, True)
        return
    taken.samples[entry.seq_id] = (SampledToken(PLACEHOLDER),)
    found[entry.seq_id] = np.ascontiguousarray(pooled, np.float32).tobytes()
