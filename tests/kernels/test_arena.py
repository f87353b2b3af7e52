"""Whoever keeps the rows and however their number changes: the bits of the ops, in a small arena."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo import _native
from octavo.kernels.contract import (
    AttentionSpec,
    Batch,
    Floats,
    KvPool,
    KvShape,
    Matrix,
    RawTensor,
    StepOps,
    T,
)
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.program import StepProgram

VOCABULARY, HIDDEN, HEAD = 97, 64, 16  # the vocabulary fills no cache line
SPEC = AttentionSpec(0.25)


class TwoWidths:
    """Two layers whose queries are of two widths, over one pool; the residual is wanted late."""

    def __init__(self, ops: NativeOps, pool: KvPool, over_tokens: bool) -> None:
        rng = np.random.default_rng(7)

        def matrix(outputs: int, inputs: int) -> Matrix:
            values = (rng.standard_normal((outputs, inputs)) * 0.2).astype(np.float32)
            return ops.matrix(RawTensor("w", "F32", values.shape, values.view(np.uint8).reshape(-1)))

        self.pool, self.over_tokens = pool, over_tokens
        self.table = matrix(VOCABULARY, HIDDEN)
        self.queries = [matrix(heads * HEAD, HIDDEN) for heads in (2, 4)]
        self.keys, self.values = ([matrix(2 * HEAD, HIDDEN) for _ in range(2)] for _ in range(2))
        self.outputs = [matrix(HIDDEN, heads * HEAD) for heads in (2, 4)]
        self.weight = np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32)

    def __call__(self, ops: StepOps[T], batch: Batch) -> T:
        x = ops.embed(self.table, batch.tokens)
        for layer in range(2):
            normed = ops.rms_norm(x, self.weight, 1e-5)
            q = ops.linear(normed, self.queries[layer])
            k, v = ops.linear(normed, self.keys[layer]), ops.linear(normed, self.values[layer])
            ops.store(self.pool, layer, k, v, batch)
            attended = ops.attend(self.pool, layer, q, batch, SPEC)
            if layer == 1 and not self.over_tokens:
                x, attended = ops.take(x, batch.logit_rows), ops.take(attended, batch.logit_rows)
            x = ops.add(x, ops.linear(attended, self.outputs[layer]))
        return ops.soft_cap(ops.linear(x, self.table), 5.0)


def batch_of(lengths: list[int], wanted: list[int]) -> Batch:
    """A prompt from its first token on for each length, at most 80 tokens long."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Batch(
        tokens=np.random.default_rng(len(wanted)).integers(0, VOCABULARY, offsets[-1]).astype(np.int32),
        positions=np.concatenate([np.arange(n) for n in lengths], dtype=np.int32),
        starts=np.zeros(len(lengths), np.int32),
        offsets=offsets,
        tables=np.arange(5 * len(lengths), dtype=np.int32).reshape(-1, 5),
        logit_rows=np.array(wanted, np.int32),
    )


LONG = [70, 77, 1, 12]  # up to five threads keep rows of their own, beside four bits up to ten
STEPS = [
    batch_of(LONG, list(range(1, 160))),
    batch_of(LONG, []),
    batch_of(LONG, [69, 146, 147, 159]),
    batch_of([8, 12], [19]),
    batch_of(LONG, list(range(159))),
]


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("over_tokens", [False, True])
@pytest.mark.parametrize("weights", ["f32", "int8", "q4"])
def test_steps_of_changing_sizes_have_the_bits_of_the_ops(
    weights: str, over_tokens: bool, timed: bool, threads: Callable[[int], None]
) -> None:
    ops = NativeOps(weights)
    pools = [ops.allocate_kv(KvShape(2, 2, HEAD, 16), 20) for _ in range(2)]
    threads(1)
    plain = TwoWidths(ops, pools[0], over_tokens)
    expected: list[Floats] = [plain(ops, batch) for batch in STEPS]
    program = StepProgram(TwoWidths(ops, pools[1], over_tokens), pools[1])
    program._program.time_phases(timed)  # then phases run one by one
    for count in (1, 2, 3, 5, 10):
        threads(count)
        for _ in range(3):
            for batch, wanted in zip(STEPS, expected, strict=True):
                np.testing.assert_array_equal(program(batch), wanted)


def test_a_longer_chain_needs_no_larger_arena() -> None:
    def floats(pairs: int) -> int:
        values = np.eye(HIDDEN, dtype=np.float32)
        panels = np.zeros((HIDDEN // 16, HIDDEN, 16), np.float32)
        _native.pack(values.view(np.uint8).reshape(-1), "F32", HIDDEN, HIDDEN, panels)
        program = _native.Program([])
        x = program.given_rows(HIDDEN)
        for _ in range(pairs):
            x = program.linear(x, _native.float_weight(panels, HIDDEN), None)
            x = program.rms_norm(x, np.ones(HIDDEN, np.float32), 1e-5)
        program.finish(x)
        return program.floats_per_row

    assert floats(4) == floats(8)
