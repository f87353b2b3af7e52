"""Attention and KV stores in NumPy: the executable specification of `Ops.store` and `Ops.attend`.

The context is read in partitions of 256 positions at absolute borders, merged in ascending order. K and V are
read back as stored; by kind of KV:

    f32     K and V unchanged
    bf16    rounded to the nearest bfloat16, ties to even, and so are queries and weights (a softmax's total
            is that of the rounded weights); summed in float32, of each pair the second product first. The
            kernels count subnormals as zero and have a shorter exp there, so they are close, not equal
    int8    codes of each token and kv head, and one scale; queries are quantised too, so that a score is
            (sum of codes' products) * scale of K * (scale of q * scale); V's scale is folded into the weight

Sums of codes are integers below 2^24, exact in float32 in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.kernels.brain_reference import rounded_to_brain, widened
from octavo.kernels.contract import AttentionSpec, Floats, HostBatch, Ints, KvPool, KvShape
from octavo.kernels.elementwise import exp, tanh
from octavo.kernels.integer_reference import quantised
from octavo.kernels.packed import floats_of
from octavo.kernels.pool import brain_views, code_views, float_views

PARTITION = 256  # positions that attention reduces at once, at absolute borders

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class StoredContext:
    """K (kv heads, D, P) and V (kv heads, P, D), as numbers or codes; scales (kv heads, P) of codes.
    `in_pairs`: they are bfloat16, and so are the numbers that they are multiplied by."""

    k: Floats
    v: Floats
    k_scales: Floats | None = None
    v_scales: Floats | None = None
    in_pairs: bool = False

    def part(self, first: int, stop: int) -> StoredContext:
        """The part with positions [first, stop) of the P."""
        positions = slice(first, stop)
        k_scales, v_scales = (None if x is None else x[:, positions] for x in (self.k_scales, self.v_scales))
        return StoredContext(self.k[..., positions], self.v[:, positions], k_scales, v_scales, self.in_pairs)


class StoredBlocks(Protocol):
    """The blocks of a pool, in any memory and layout."""

    @property
    def shape(self) -> KvShape:
        """The shape of the KV group."""

    def write(self, layer: int, block: int, slot: int, k: Floats, v: Floats) -> None:
        """K and V (kv heads, D) of one token."""

    def read(self, layer: int, blocks: Ints) -> StoredContext:
        """The contents of these blocks, concatenated."""


def store(blocks: StoredBlocks, layer: int, k: Floats, v: Floats, batch: HostBatch) -> None:
    """Write K and V, (T, K * D) each, of the step's tokens into their slots of `layer`."""
    size, heads = blocks.shape.block_size, (blocks.shape.num_kv_heads, blocks.shape.head_size)
    for c in range(batch.starts.size):
        for row in range(batch.offsets[c], batch.offsets[c + 1]):
            position = int(batch.starts[c] + row - batch.offsets[c])
            block = int(batch.tables[c, position // size])
            blocks.write(layer, block, position % size, k[row].reshape(heads), v[row].reshape(heads))


def attend(
    blocks: StoredBlocks,
    layer: int,
    q: Floats,
    batch: HostBatch,
    spec: AttentionSpec,
    log_sum_exp: Floats | None,
) -> Floats:
    """(T, H * D) -> (T, H * D); fills `log_sum_exp` (T, H) where it is given."""
    out = np.empty_like(q)
    size = blocks.shape.head_size
    heads = q.reshape(q.shape[0], q.shape[1] // size, size)
    with np.errstate(all="ignore"):  # unused slots may hold NaN; they are computed and then masked
        for c in range(batch.starts.size):
            rows = slice(batch.offsets[c], batch.offsets[c + 1])
            context = _Context(blocks, layer, batch.tables[c])
            walk = _attend_chunk(context, heads[rows], int(batch.starts[c]), spec)
            out[rows] = (walk.out / walk.total[..., None]).reshape(-1, q.shape[1])
            if log_sum_exp is not None:
                log_sum_exp[rows] = walk.largest + np.log(walk.total.astype(np.float64))
    return out


@dataclass(frozen=True, slots=True)
class PoolBlocks:
    """`StoredBlocks` of the processor's pool."""

    pool: KvPool

    @property
    def shape(self) -> KvShape:
        """The shape of the KV group."""
        return self.pool.shape

    def write(self, layer: int, block: int, slot: int, k: Floats, v: Floats) -> None:
        """K and V (kv heads, D) of one token."""
        pool = self.pool
        if pool.shape.kind == "f32":
            views = float_views(pool, layer)
            views.k[block, :, :, slot] = k
            views.v[block, :, slot, :] = v
            return
        if pool.shape.kind == "bf16":
            brains = brain_views(pool, layer)
            brains.k[block, :, :, slot, :] = rounded_to_brain(k).reshape(k.shape[0], -1, 2)
            brains.v[block, :, slot // 2, :, slot % 2] = rounded_to_brain(v)
            return
        codes = code_views(pool, layer)
        with np.errstate(all="ignore"):  # a token that is no number gets a scale that is none
            for index, x in enumerate((k, v)):
                scale, code = quantised(x)
                codes.scales[block, index, :, slot] = scale[:, 0]
                if index == 0:
                    codes.k[block, :, :, slot, :] = (code + 128).reshape(k.shape[0], -1, 4)
                else:
                    codes.v[block, :, slot, :] = code

    def read(self, layer: int, blocks: Ints) -> StoredContext:
        """The contents of these blocks, concatenated."""
        pool, kind = self.pool, self.pool.shape.kind
        if kind == "f32":
            views = float_views(pool, layer)
            k = np.concatenate(list(views.k[blocks]), axis=-1)
            return StoredContext(k, np.concatenate(list(views.v[blocks]), axis=-2))
        if kind == "bf16":
            brains = brain_views(pool, layer)
            pairs = np.concatenate(list(brains.k[blocks]), axis=-2)  # (kv heads, D / 2, P, 2)
            k = pairs.swapaxes(2, 3).reshape(pairs.shape[0], -1, pairs.shape[2])
            pairs = np.concatenate(list(brains.v[blocks]), axis=-3)  # (kv heads, P / 2, D, 2)
            v = pairs.swapaxes(2, 3).reshape(pairs.shape[0], -1, pairs.shape[2])
            return StoredContext(widened(k), widened(v), in_pairs=True)
        codes = code_views(pool, layer)
        words = np.concatenate(list(codes.k[blocks]), axis=-2)  # (kv heads, D / 4, P, 4)
        k = words.swapaxes(2, 3).reshape(words.shape[0], -1, words.shape[2]).astype(np.float32) - 128
        v = np.concatenate(list(codes.v[blocks]), axis=-2).astype(np.float32)
        scales = np.concatenate(list(codes.scales[blocks]), axis=-1)
        return StoredContext(k, v, scales[0], scales[1])


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of one chunk: a layer of the pool through the chunk's block table."""

    blocks: StoredBlocks
    layer: int
    table: Ints

    def read(self, start: int, stop: int) -> StoredContext:
        """Positions [start, stop)."""
        size = self.blocks.shape.block_size
        first = start // size
        stored = self.blocks.read(self.layer, self.table[first : -(-stop // size)])
        return stored.part(start - first * size, stop - first * size)


@dataclass(frozen=True, slots=True)
class _Softmax:
    """A softmax before the division: largest score and total (n, H), out (n, H, D)."""

    largest: Floats
    total: Floats
    out: Floats


def _attend_chunk(context: _Context, q: Floats, start: int, spec: AttentionSpec) -> _Softmax:
    """q (n, H, D) of positions start, start + 1, ... over partitions in ascending order.

    Keeps for each row the largest score so far, the sum of exp(score - largest), and that sum weighted by V.
    """
    length, heads, _ = q.shape
    own = np.arange(start, start + length)
    low = 0 if spec.window is None else max(0, start - spec.window + 1)
    walk = _Softmax(
        np.full((length, heads), -np.inf, np.float32), np.zeros((length, heads), np.float32), np.zeros_like(q)
    )
    for base in range(low // PARTITION * PARTITION, start + length, PARTITION):
        first, stop = max(base, low), min(base + PARTITION, start + length)
        positions = np.arange(first, stop)
        mask = _seen(own, positions, spec.window)
        part = _partition(q, context.read(first, stop), own, positions, spec)
        walk = _merged(walk, part, np.logical_or.reduce(mask, axis=1, keepdims=True))
    if spec.sinks is None:
        return walk
    # A sink is one more partition, with one score whose value is zero.
    sinks = np.broadcast_to(floats_of(spec.sinks), (length, heads))
    one = _Softmax(sinks, np.ones_like(walk.total), np.zeros_like(q))
    return _merged(walk, one, np.ones((length, 1), np.bool_))


def _merged(walk: _Softmax, part: _Softmax, seen: Mask) -> _Softmax:
    """Merge both; a row that sees nothing of the part keeps its bits."""
    largest = np.maximum(walk.largest, part.largest)
    old, new = exp(walk.largest - largest), exp(part.largest - largest)
    out = walk.out * old[..., None] + part.out * new[..., None]
    return _Softmax(
        np.where(seen, largest, walk.largest),
        np.where(seen, walk.total * old + part.total * new, walk.total),
        np.where(seen[..., None], out, walk.out),
    )


def _partition(
    q: Floats, stored: StoredContext, own: Positions, positions: Positions, spec: AttentionSpec
) -> _Softmax:
    """The softmax of rows q (n, H, D) at `own` positions (n,) over `positions` (P,)."""
    mask = _seen(own, positions, spec.window)
    kv_head = np.arange(q.shape[1]) // (q.shape[1] // stored.k.shape[0])  # query head h reads this kv head
    scores = _scores(q, stored, kv_head, np.float32(spec.scale))
    if spec.soft_cap is not None:
        scores = np.float32(spec.soft_cap) * tanh(scores / np.float32(spec.soft_cap))
    if spec.slopes is not None:
        distance = (positions[None, :] - own[:, None]).astype(np.float32)
        scores = scores + floats_of(spec.slopes)[:, None] * distance[:, None, :]
    scores = np.where(mask[:, None, :], scores, np.float32(-np.inf))
    largest = np.max(scores, axis=-1)
    weights = exp(scores - largest[..., None])
    if stored.in_pairs:
        weights = widened(rounded_to_brain(weights))
    order = _in_turn(positions, stored)
    mask, weights = mask[:, None, order], weights[..., order]
    total = _sum(np.where(mask, weights, 0))
    if stored.v_scales is not None:
        weights = weights * stored.v_scales[kv_head][:, order]
    values = stored.v[kv_head][:, order]  # (H, P, D)
    products = (np.where(m[..., None], w[..., None] * values, 0) for m, w in zip(mask, weights, strict=True))
    out = np.stack([_sum(each.swapaxes(1, 2)) for each in products])  # row by row: (H, P, D) numbers at once
    return _Softmax(largest, total, out)


def _scores(q: Floats, stored: StoredContext, kv_head: Positions, scale: np.float32) -> Floats:
    """(n, H, P): q times K, scaled."""
    if stored.k_scales is None:
        if stored.in_pairs:
            q = widened(rounded_to_brain(q))
        order = _in_turn(np.arange(q.shape[2]), stored)
        keys = stored.k[kv_head][:, order]  # (H, D, P)
        products = (row[:, order, None] * keys for row in q)
        return np.stack([_sum(each.swapaxes(1, 2)) for each in products]) * scale
    q_scale, codes = quantised(q.reshape(-1, q.shape[2]))
    sums = np.einsum("nhd,hdp->nhp", codes.reshape(q.shape), stored.k[kv_head])
    factors = q_scale.reshape(*q.shape[:2], 1) * scale
    scaled: Floats = sums * stored.k_scales[kv_head] * factors
    return scaled


def _sum(x: Floats) -> Floats:
    """(..., n) -> (...): one element after the other in float32, from zero on."""
    total: Floats = np.add.accumulate(x, axis=-1)[..., -1] + np.float32(0)  # turns -0 into +0
    return total


def _in_turn(numbers: Positions, stored: StoredContext) -> Positions:
    """Indices of ascending `numbers` (dimensions or positions) in the order in which they are summed."""
    return np.lexsort((-numbers, numbers // 2)) if stored.in_pairs else np.arange(numbers.size)


def _seen(own: Positions, positions: Positions, window: int | None) -> Mask:
    """(n, P): which of `positions` each of the chunk's `own` positions sees."""
    distance = own[:, None] - positions[None, :]
    causal: Mask = distance >= 0
    return causal if window is None else causal & (distance < window)
