"""What the tests of attention share: random inputs, a context made chunk by chunk, the softmax in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.kernels.attention_reference import PARTITION
from octavo.kernels.brain_reference import rounded_to_brain, widened
from octavo.kernels.contract import AttentionSpec, Batch, Floats, KvPool, Ops
from octavo.kernels.integer_reference import quantised
from octavo.kernels.pool import brain_views, code_views, float_views

Steps = Callable[..., Batch]
Pools = Callable[..., KvPool]
Doubles = np.ndarray


def random_qkv(
    rng: np.random.Generator, tokens: int, heads: int = 6, kv_heads: int = 2, size: int = 16
) -> tuple[Floats, Floats, Floats]:
    """Q (tokens, heads * size), K and V (tokens, kv_heads * size), standard normal."""
    q, k, v = (
        rng.standard_normal((tokens, n * size)).astype(np.float32) for n in (heads, kv_heads, kv_heads)
    )
    return q, k, v


def run(
    ops: Ops,
    pool: KvPool,
    batch: Steps,
    table: list[int],
    cuts: list[int],
    qkv: tuple[Floats, ...],
    spec: AttentionSpec,
) -> Floats:
    """Store and attend positions [cuts[i], cuts[i + 1]) one chunk after the other; all rows of the output."""
    q, k, v = qkv
    outs = []
    for start, stop in itertools.pairwise(cuts):
        step = batch((start, stop - start, table))
        ops.store(pool, 1, k[start:stop], v[start:stop], step)
        outs.append(ops.attend(pool, 1, q[start:stop], step, spec))
    return np.concatenate(outs)


@dataclass(frozen=True, slots=True)
class Softmax:
    """The output (n, H, D) and the logarithm of the denominator (n, H)."""

    out: Doubles
    log_sum_exp: Doubles


def dense(q: Doubles, k: Doubles, v: Doubles, spec: AttentionSpec) -> Doubles:
    """Float64 softmax over the whole context: q (n, H, D) stands at the end of k and v (P, K, D)."""
    return dense_softmax(q, k, v, spec).out


def dense_softmax(q: Doubles, k: Doubles, v: Doubles, spec: AttentionSpec, kind: str = "f32") -> Softmax:
    """The same with its denominator; the weights rounded where K and V are bfloat16."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = np.einsum("nhd,phd->nhp", q.astype(np.float64), k) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
    distance = np.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None] - np.arange(k.shape[0])[None, :]
    if spec.slopes is not None:
        scores = scores - spec.slopes[:, None].astype(np.float64) * distance[:, None, :]
    seen = (distance >= 0) & (distance < (spec.window or 10**9))
    scores = np.where(seen[:, None, :], scores, -np.inf)
    if spec.sinks is not None:
        sinks = np.broadcast_to(spec.sinks[:, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, sinks], axis=-1)
        v = np.concatenate([v, np.zeros_like(v[:1])])
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - largest)
    if kind == "bf16":
        for first in range(0, k.shape[0], PARTITION):
            within = slice(first, min(first + PARTITION, k.shape[0]))
            weights[..., within] = _rounded_weights(scores[..., within], largest)
    total = weights.sum(axis=-1, keepdims=True)
    return Softmax(np.einsum("nhp,phd->nhd", weights / total, v), (largest + np.log(total))[..., 0])


def _rounded_weights(scores: Doubles, largest: Doubles) -> Doubles:
    """Those of one partition, rounded as the weights below its own largest score."""
    own = np.maximum(scores.max(axis=-1, keepdims=True), -1e30)  # a row may see nothing of it
    return widened(rounded_to_brain(np.exp(scores - own).astype(np.float32))) * np.exp(own - largest)


def assert_attended(given: Floats, expected: Doubles, kind: str) -> None:
    """Within float32's errors; beside bf16 a weight between two steps may go to the other one at times."""
    if kind != "bf16":
        np.testing.assert_allclose(given, expected, atol=3e-6, rtol=1e-6)
        return
    off = np.abs(given - expected)
    assert np.quantile(off, 0.95) < 3e-5 * np.abs(expected).max()
    assert off.max() < 2**-8 * np.abs(expected).max()


def stored(pool: KvPool, layer: int, table: list[int], tokens: int) -> tuple[Doubles, Doubles]:
    """K and V (tokens, kv heads, D) as the pool holds them, as numbers."""
    shape = pool.shape
    if shape.kind == "int8":
        codes = code_views(pool, layer)
        words = codes.k[table].transpose(0, 3, 1, 2, 4)  # (blocks, B, K, D / 4, 4)
        k = words.reshape(-1, shape.num_kv_heads, shape.head_size)[:tokens].astype(np.float64) - 128
        v = _rows(codes.v[table].astype(np.float64))[:tokens]
        scales = codes.scales[table].transpose(0, 3, 1, 2).reshape(-1, 2, shape.num_kv_heads, 1)[:tokens]
        return k * scales[:, 0], v * scales[:, 1]
    if shape.kind == "bf16":
        brains, heads = brain_views(pool, layer), (shape.num_kv_heads, shape.head_size)
        k = brains.k[table].transpose(0, 3, 1, 2, 4).reshape(-1, *heads)[:tokens]
        v = brains.v[table].transpose(0, 2, 4, 1, 3).reshape(-1, *heads)[:tokens]
        return widened(k), widened(v)
    views = float_views(pool, layer)
    k, v = views.k[table].transpose(0, 3, 1, 2), views.v[table].swapaxes(1, 2)
    k, v = (np.ascontiguousarray(x).reshape(-1, *x.shape[2:])[:tokens] for x in (k, v))
    return k, v


def _rows(blocks: Doubles) -> Doubles:
    """(blocks, K, B, D) -> (blocks * B, K, D)."""
    return blocks.swapaxes(1, 2).reshape(-1, blocks.shape[1], blocks.shape[3])


def compared(q: Floats, kind: str) -> Doubles:
    """q (n, H, D) as the scores see it: rounded beside bf16, quantised beside int8."""
    if kind == "f32":
        return q
    if kind == "bf16":
        return widened(rounded_to_brain(q))
    scale, codes = quantised(q.reshape(-1, q.shape[-1]))
    return (codes.astype(np.float64) * scale).reshape(q.shape)
