"""Attention with AMX beside KV in bfloat16 sums as its header says, to the bit; nothing leaks between rows.

Where the machine has no AMX these run on what it has, as far as they are about all instruction sets.
"""

from __future__ import annotations

import numpy as np
import pytest

from octavo import _native
from octavo.kernels.brain_reference import rounded_to_brain, widened
from octavo.kernels.contract import AttentionSpec, Batch, Floats, KvPool, KvShape
from octavo.kernels.native_ops import NativeOps

Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
TOKENS, BLOCKS = 300, 35
needs_amx = pytest.mark.skipif(
    _native.simd_probe()["chosen"] != "avx512_amx", reason="this machine's kernels do without AMX"
)


def _brains(rng: np.random.Generator, *shape: int) -> Floats:
    """Numbers of bfloat16, of sizes so alike that a sum of two such products is exact in a double."""
    return widened(rounded_to_brain(rng.standard_normal(shape).astype(np.float32)))


def _batch(first: int, last: int) -> Batch:
    positions = np.arange(first, last, dtype=np.int32)
    return Batch(
        np.zeros(last - first, np.int32),
        positions,
        np.array([first], np.int32),
        np.array([0, last - first], np.int32),
        np.arange(BLOCKS, dtype=np.int32)[None],
        np.zeros(0, np.int32),
    )


def _pool(ops: NativeOps, k: Floats, v: Floats, head_size: int, heads: int = 1) -> KvPool:
    pool = ops.allocate_kv(KvShape(1, heads, head_size, 16, "bf16"), BLOCKS)
    pool.data[:] = 0xFF  # what nobody has written is no number
    ops.store(pool, 0, k, v, _batch(0, len(k)))
    return pool


def _summed(left: Floats, right: Floats, step: int) -> Floats:
    """Sums over the last axis, `step` numbers at a time: the even ones, the odd ones, both, all."""
    total = np.zeros(left.shape[:-1], np.float32)
    for first in range(0, left.shape[-1], step):
        chains = []
        for start in (first, first + 1):
            chain = np.zeros(left.shape[:-1], np.float32)
            for i in range(start, min(first + step, left.shape[-1]), 2):
                product = left[..., i].astype(np.float64) * right[..., i]
                chain = (product + chain).astype(np.float32)
            chains.append(chain)
        total = total + (chains[0] + chains[1])
    return total


@needs_amx
@pytest.mark.parametrize(("head_size", "step"), [(64, 32), (80, 20), (96, 32), (24, 24), (256, 32), (40, 20)])
def test_a_score_is_the_sum_that_is_specified(head_size: int, step: int) -> None:
    rng = np.random.default_rng(head_size)
    ops = NativeOps()
    q, k = _brains(rng, TOKENS, 3, head_size), _brains(rng, TOKENS, 1, head_size)
    pool = _pool(ops, k.reshape(TOKENS, -1), k.reshape(TOKENS, -1), head_size)
    scores = np.empty((TOKENS, 3), np.float32)  # of one position each: its logarithm's sum is the score
    ops.attend(pool, 0, q.reshape(TOKENS, -1), _batch(0, TOKENS), AttentionSpec(0.125, 1), scores)
    np.testing.assert_array_equal(scores, _summed(q, np.broadcast_to(k, q.shape), step) * np.float32(0.125))


@needs_amx
@pytest.mark.parametrize("head_size", [64, 80, 24, 256])
def test_an_output_is_the_sum_that_is_specified(head_size: int) -> None:
    rng = np.random.default_rng(head_size)
    ops = NativeOps()
    v = _brains(rng, 256, head_size)
    pool = _pool(ops, v, v, head_size)
    given = ops.attend(
        pool, 0, np.zeros((256, 2 * head_size), np.float32), _batch(0, 256), AttentionSpec(1.0)
    )
    for row in (0, 1, 15, 16, 17, 100, 255):  # queries of zero weigh all positions alike
        seen = np.where(np.arange(256)[:, None] <= row, v, 0)
        expected = _summed(np.ones((head_size, 256), np.float32), seen.T, 16) / np.float32(row + 1)
        np.testing.assert_array_equal(given[row].reshape(2, -1), [expected, expected])


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("heads", [1, 2])
def test_what_a_row_does_not_see_may_be_anything(heads: int, window: int | None, value: float) -> None:
    """A later token's V is not finite: earlier rows of the same chunk have the bits that they have alone."""
    rng = np.random.default_rng(3)
    ops = NativeOps()
    k, v = (rng.standard_normal((TOKENS, heads * 24)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((TOKENS, heads * 3 * 24)).astype(np.float32)
    v[131], v[150, -24:] = value, -value
    pool = _pool(ops, k, v, 24, heads)
    spec = AttentionSpec(0.2, window)
    together = ops.attend(pool, 0, q, _batch(0, TOKENS), spec)
    for token in (*range(120, 200, 3), TOKENS - 1):
        some = slice(token - 2, token + 1)  # of a few rows several heads share a task
        for rows in (slice(token, token + 1), some):
            given = ops.attend(pool, 0, q[rows].copy(), _batch(rows.start, rows.stop), spec)
            numbers = np.isfinite(given)
            np.testing.assert_array_equal(np.isfinite(together[rows]), numbers)
            assert given[numbers].tobytes() == together[rows][numbers].tobytes()
    assert np.isfinite(together[:131]).all()
    assert not np.isfinite(together[131]).any()


def test_a_sum_that_vanishes_has_one_sign() -> None:
    """What is lost below the smallest normal number leaves a negative zero: of two partitions together, and
    then of the third; steps of V that a row does not see, but rows beside it do, make the latter positive."""
    ops = NativeOps()
    v = np.zeros((560, 64), np.float32)
    v[[0, 512]], v[[256, 528]], v[544:] = 1.5 * 2.0**-126, -(1.5 + 2.0**-7) * 2.0**-126, 1.0
    pool, q = _pool(ops, v, v, 64), np.zeros((560, 64), np.float32)
    together = ops.attend(pool, 0, q, _batch(0, 560), AttentionSpec(1.0))
    alone = ops.attend(pool, 0, q[:1].copy(), _batch(543, 544), AttentionSpec(1.0))
    assert (alone == 0).all()
    assert alone.tobytes() == together[543:544].tobytes()
