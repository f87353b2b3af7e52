"""Positions that are computed in one chunk, as drafts are, equal those of one step at a time.

Hidden rows, logits, the likeliest token, and K and V as stored; for 1 to 17 rows, every instruction set, kind
of weights and kind of KV.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo import _native

PROGRAM = """
import numpy as np
from octavo.kernels.contract import Batch, KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.model.decoder import hidden_states, project
from tests.blocks import QUANTISED
from tests.tiny import CONTEXT, VOCAB, over_kv_of, over_weights_of, tiny_model

PROMPT, MOST, BLOCKS = 37, 17, 4
rng = np.random.default_rng(3)
tokens = rng.integers(2, VOCAB, PROMPT + MOST).astype(np.int32)
table = np.array([[2, 0, 3, 1]], np.int32)

def batch(start, stop):
    where = np.arange(start, stop, dtype=np.int32)
    return Batch(tokens[start:stop], where, where[:1].copy(), np.array([0, stop - start], np.int32), table,
                 np.arange(stop - start, dtype=np.int32))

kinds = [(weights, "f32") for weights in ("F32", "F16", "BF16", *QUANTISED)]
kinds += [(weights, kv) for weights in ("F32", "Q4_1") for kv in ("bf16", "int8")]
for weights, kv in kinds:
    ops = over_kv_of(kv, over_weights_of(weights, NativeOps()))
    model = tiny_model(ops)
    pool = ops.allocate_kv(KvShape(2, 2, 16, 16, kv), BLOCKS)
    step = ops.prepare_step(lambda o, given: hidden_states(o, model, pool, given), pool)
    rows = ops.prepare_rows(lambda o, x: project(o, model, x), model.spec.hidden_size)
    step(batch(0, PROMPT))
    begun = pool.data.copy()
    alone = [step(batch(p, p + 1)).copy() for p in range(PROMPT, PROMPT + MOST)]
    logits = [rows(x).copy() for x in alone]
    likeliest = [int(rows.argmax(x)[0]) for x in alone]
    stored = pool.data.copy()
    for count in range(2, MOST + 1):
        pool.data[...] = begun
        together = step(batch(PROMPT, PROMPT + count)).copy()
        assert together.tobytes() == np.concatenate(alone[:count]).tobytes(), (weights, kv, count, "hidden")
        written = rows(together)
        assert written.tobytes() == np.concatenate(logits[:count]).tobytes(), (weights, kv, count, "logits")
        assert rows.argmax(together).tolist() == likeliest[:count], (weights, kv, count, "likeliest")
        step(batch(PROMPT + count, PROMPT + MOST)) if count < MOST else None
        assert pool.data.tobytes() == stored.tobytes(), (weights, kv, count, "stored")
print(ops.arithmetic_id, len(kinds))
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("isa", _native.simd_probe()["usable"])
def test_positions_computed_together_equal_one_at_a_time(isa: str, threads: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"from octavo import _native\n_native.set_num_threads({threads})\n{PROGRAM}"],
        env={**os.environ, "OCTAVO_ISA": isa, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    arithmetic_id, num_kinds = run.stdout.split()
    assert arithmetic_id.endswith(isa)
    assert int(num_kinds) == 20
