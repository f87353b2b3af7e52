"""A loaded model's prompts and decode steps through the decoder, over a scrambled block table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from octavo.kernels.contract import Batch, KvShape, Ops
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.model.decoder import hidden_states, project
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.model.spec import Model

BLOCK = 16
# float32 weights: what transformers is compared with
BACKENDS = {"reference": partial(ReferenceOps, "f32"), "native": partial(NativeOps, "f32")}


def load(path: ModelPath, backend: str) -> tuple[Ops, Model]:
    """Ops and the model loaded with them."""
    ops = BACKENDS[backend]()
    return ops, load_model(path, ops).model


def run_chunks(
    ops: Ops, model: Model, tokens: Sequence[int], lengths: Sequence[int], *, prepared: bool = False
) -> np.ndarray:
    """(tokens, V) logits of one sequence computed in chunks of these lengths, blocks in scrambled places.

    `prepared`: by the step that the backend made ready, instead of op after op.
    """
    spec = model.spec
    num_blocks, num_kv_heads = -(-len(tokens) // BLOCK), len(model.split.kv_heads(spec.num_kv_heads))
    pool = ops.allocate_kv(KvShape(spec.num_layers, num_kv_heads, spec.head_size, BLOCK), num_blocks + 2)
    table = np.random.default_rng(2).permutation(num_blocks + 2)[:num_blocks].astype(np.int32)[None, :]
    assert sum(lengths) == len(tokens)

    def eager(batch: Batch) -> np.ndarray:
        return project(ops, model, hidden_states(ops, model, pool, batch))

    step = ops.prepare_step(lambda o, batch: hidden_states(o, model, pool, batch), pool)
    head = ops.prepare_rows(lambda o, x: project(o, model, x), spec.hidden_size)
    logits = (lambda batch: head(step(batch)).copy()) if prepared else eager
    rows, start = [], 0
    for length in lengths:
        stop = start + length
        batch = Batch(
            tokens=np.asarray(tokens[start:stop], np.int32),
            positions=np.arange(start, stop, dtype=np.int32),
            starts=np.asarray([start], np.int32),
            offsets=np.asarray([0, length], np.int32),
            tables=np.ascontiguousarray(table),
            logit_rows=np.arange(length, dtype=np.int32),
        )
        rows.append(logits(batch))
        start = stop
    return np.concatenate(rows)
