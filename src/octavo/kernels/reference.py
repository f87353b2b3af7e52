"""The ops in NumPy, as plainly as they can be said: the executable specification of `contract.Ops`.

Every op is row-independent to the bit, which NumPy does not promise by itself. Three things see to it:

- products of floats are the native module's (`packed.multiply`), because BLAS changes its bits with the
  number of rows;
- exp and tanh are the native module's, because NumPy's vector loops and their scalar tails round differently;
- sums run in a spelled-out order, element after element, because NumPy's own depends on an array's shape.

What remains (+, -, *, /, square root, comparisons) is exact or correctly rounded, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.kernels import integer_reference, packed
from octavo.kernels.contract import AttentionSpec, Batch, Floats, Ints, KvPool, KvShape, Matrix, RawTensor
from octavo.kernels.held import kind_held
from octavo.kernels.pool import allocate_pool, views

PARTITION = 256  # positions that attention reduces at a time, at absolute borders

Mask = npt.NDArray[np.bool_]


class ReferenceOps:
    """`Ops` in NumPy; `weights` as in `NativeOps`."""

    def __init__(self, weights: str = "auto") -> None:
        self.name = "reference"
        self.arithmetic_id = f"reference-{weights}-2"
        self._weights = weights

    # -- weights and memory ------------------------------------------------------------------------
    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """Integer codes or panels of floats; raises UnsupportedModel or BadModelFile."""
        packed.require_matrix(raw)
        kind = kind_held(raw, self._weights, table)
        if kind in packed.FLOAT_KINDS:
            return packed.pack(raw, kind)
        return integer_reference.read(raw if kind == raw.kind else integer_reference.requantised(raw, kind))

    def vector(self, raw: RawTensor) -> Floats:
        """Float32, of the tensor's own shape; raises UnsupportedModel or BadModelFile."""
        return packed.unpack_vector(raw)

    def allocate_kv(self, shape: KvShape, num_blocks: int) -> KvPool:
        """Reserve address space for the pool; pages become resident when first written."""
        return allocate_pool(shape, num_blocks)

    def copy_blocks(self, pool: KvPool, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for source, target in zip(sources, targets, strict=True):
            pool.data[target] = pool.data[source]

    # -- the step ----------------------------------------------------------------------------------
    def embed(self, table: Matrix, tokens: Ints) -> Floats:
        """(T,) -> (T, E): rows of the table."""
        if isinstance(table, integer_reference.ReferenceIntegers):
            return integer_reference.rows_of(table, tokens)
        return packed.unpack_rows(_own(table), tokens)

    def take(self, x: Floats, rows: Ints) -> Floats:
        """x[rows], contiguous."""
        return np.take(x, rows, axis=0)

    def linear(self, x: Floats, weight: Matrix, bias: Floats | None = None) -> Floats:
        """(T, in) -> (T, out)."""
        if isinstance(weight, integer_reference.ReferenceIntegers):
            return integer_reference.multiply(x, weight, bias)
        return packed.multiply(x, _own(weight), bias)

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        """Over the last `len(weight)` elements of each row."""
        heads = x.reshape(-1, weight.size)
        mean_of_squares = _sum(heads * heads) / np.float32(weight.size)
        normed: Floats = heads / np.sqrt(mean_of_squares + np.float32(eps)) * weight
        return normed.reshape(x.shape)

    def layer_norm(self, x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
        """(T, E) -> (T, E)."""
        centred = x - _sum(x) / np.float32(weight.size)
        variance = _sum(centred * centred) / np.float32(weight.size)
        normed: Floats = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
        return normed

    def rope(self, x: Floats, positions: Ints, cos: Floats, sin: Floats, head_size: int) -> Floats:
        """Rotate halves of each head."""
        half = cos.shape[1]
        heads = x.reshape(x.shape[0], x.shape[1] // head_size, head_size)
        c, s = cos[positions][:, None, :], sin[positions][:, None, :]
        a, b = heads[..., :half], heads[..., half : 2 * half]
        out = heads.copy()
        out[..., :half] = a * c - b * s
        out[..., half : 2 * half] = b * c + a * s
        return out.reshape(x.shape)

    def store(self, pool: KvPool, layer: int, k: Floats, v: Floats, batch: Batch) -> None:
        """Write K and V of the step's tokens into their slots of `layer`."""
        keys, values = views(pool, layer)
        shape = pool.shape
        for c in range(batch.starts.size):
            for row in range(batch.offsets[c], batch.offsets[c + 1]):
                position = batch.starts[c] + row - batch.offsets[c]
                block, slot = batch.tables[c, position // shape.block_size], position % shape.block_size
                keys[block, :, :, slot] = k[row].reshape(shape.num_kv_heads, shape.head_size)
                values[block, :, slot, :] = v[row].reshape(shape.num_kv_heads, shape.head_size)

    def attend(self, pool: KvPool, layer: int, q: Floats, batch: Batch, spec: AttentionSpec) -> Floats:
        """(T, H * D) -> (T, H * D): causal attention over the block tables."""
        out = np.empty_like(q)
        size = pool.shape.head_size
        heads = q.reshape(q.shape[0], q.shape[1] // size, size)
        with np.errstate(all="ignore"):  # unused slots may hold NaN; they are computed with, then masked
            for c in range(batch.starts.size):
                rows = slice(batch.offsets[c], batch.offsets[c + 1])
                context = _Context(pool, layer, batch.tables[c])
                out[rows] = _attend_chunk(context, heads[rows], int(batch.starts[c]), spec).reshape(
                    -1, q.shape[1]
                )
        return out

    def gated(self, gate: Floats, up: Floats, activation: str) -> Floats:
        """activation(gate) * up."""
        activated = self.activate(gate, activation)
        return activated * up

    def activate(self, x: Floats, activation: str) -> Floats:
        """activation(x)."""
        one, half = np.float32(1), np.float32(0.5)
        with np.errstate(over="ignore"):
            if activation == "silu":
                return x / (one + _exp(-x))
            if activation == "gelu_tanh":
                inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * (x * x * x))
                return half * x * (one + _tanh(inner))
            if activation == "gelu":
                erf = np.array(
                    [math.erf(value / math.sqrt(2)) for value in x.reshape(-1).tolist()], np.float32
                )
                return half * x * (one + erf.reshape(x.shape))
        raise ValueError(f"unknown activation {activation!r}; known: silu, gelu_tanh, gelu")

    def add(self, x: Floats, y: Floats) -> Floats:
        """x + y."""
        return x + y

    def scale(self, x: Floats, factor: float) -> Floats:
        """x * factor, the factor rounded to float32 first."""
        return x * np.float32(factor)

    def soft_cap(self, x: Floats, cap: float) -> Floats:
        """cap * tanh(x / cap)."""
        return np.float32(cap) * _tanh(x / np.float32(cap))


@dataclass(frozen=True, slots=True)
class _Context:
    """What one chunk can read: a layer of the pool through the chunk's block table."""

    pool: KvPool
    layer: int
    table: Ints

    def read(self, start: int, stop: int) -> tuple[Floats, Floats]:
        """K (kv heads, D, P) and V (kv heads, P, D) of positions [start, stop)."""
        block_size = self.pool.shape.block_size
        first, last = start // block_size, -(-stop // block_size)
        keys, values = views(self.pool, self.layer)
        blocks = self.table[first:last]
        k = np.concatenate(list(keys[blocks]), axis=-1)
        v = np.concatenate(list(values[blocks]), axis=-2)
        inside = slice(start - first * block_size, stop - first * block_size)
        return k[:, :, inside], v[:, inside]


def _attend_chunk(context: _Context, q: Floats, start: int, spec: AttentionSpec) -> Floats:
    """(n, H, D) -> (n, H, D): positions start, start + 1, ... over partitions in ascending order.

    Keeps for each row the largest score so far, the sum of exp(score - largest), and that sum weighted by V.
    """
    length, heads, size = q.shape
    own = np.arange(start, start + length)
    low = 0 if spec.window is None else max(0, start - spec.window + 1)
    largest = np.full((length, heads), -np.inf, np.float32)
    total = np.zeros((length, heads), np.float32)
    out = np.zeros((length, heads, size), np.float32)
    for base in range(low // PARTITION * PARTITION, start + length, PARTITION):
        first, stop = max(base, low), min(base + PARTITION, start + length)
        positions = np.arange(first, stop)
        mask = _seen(own, positions, spec.window)
        k, v = context.read(first, stop)
        part = _partition(q, k, v, mask, spec)
        merged = np.maximum(largest, part.largest)
        old, new = _exp(largest - merged), _exp(part.largest - merged)
        seen: Mask = np.logical_or.reduce(
            mask, axis=1, keepdims=True
        )  # a row that sees nothing here stays as it is, to the bit
        total = np.where(seen, total * old + part.total * new, total)
        out = np.where(seen[..., None], out * old[..., None] + part.out * new[..., None], out)
        largest = np.where(seen, merged, largest)
    return out / total[..., None]


@dataclass(frozen=True, slots=True)
class _Part:
    """One partition's softmax, not yet divided: largest and total (n, H), out (n, H, D)."""

    largest: Floats
    total: Floats
    out: Floats


def _partition(q: Floats, k: Floats, v: Floats, mask: Mask, spec: AttentionSpec) -> _Part:
    """The softmax over P positions: q (n, H, D), k (kv heads, D, P), v (kv heads, P, D), mask (n, P)."""
    heads = q.shape[1]
    kv_head = np.arange(heads) // (heads // k.shape[0])  # query head h reads this kv head
    scores = np.zeros((q.shape[0], heads, k.shape[2]), np.float32)
    for d in range(q.shape[2]):
        scores = scores + q[:, :, d, None] * k[kv_head, d]
    scores = scores * np.float32(spec.scale)
    if spec.soft_cap is not None:
        scores = np.float32(spec.soft_cap) * _tanh(scores / np.float32(spec.soft_cap))
    scores = np.where(mask[:, None, :], scores, np.float32(-np.inf))
    largest = np.max(scores, axis=-1)
    weights = _exp(scores - largest[..., None])
    total = np.zeros_like(largest)
    out = np.zeros_like(q)
    for j in range(k.shape[2]):
        seen, weight = mask[:, j, None], weights[..., j]
        total = np.where(seen, total + weight, total)
        out = np.where(seen[..., None], out + weight[..., None] * v[kv_head, j], out)
    return _Part(largest, total, out)


def _seen(own: npt.NDArray[np.intp], positions: npt.NDArray[np.intp], window: int | None) -> Mask:
    """(n, P): which of `positions` each of the chunk's `own` positions sees."""
    distance = own[:, None] - positions[None, :]
    causal: Mask = distance >= 0
    return causal if window is None else causal & (distance < window)


def _sum(x: Floats) -> Floats:
    """(..., E) -> (..., 1): one element after the other in double, rounded once."""
    return np.add.accumulate(x, axis=-1, dtype=np.float64)[..., -1:].astype(np.float32)


def _exp(x: Floats) -> Floats:
    """Elementwise, by the native module."""
    return _mapped("exp", x)


def _tanh(x: Floats) -> Floats:
    """Elementwise, by the native module."""
    return _mapped("tanh", x)


def _mapped(function: str, x: Floats) -> Floats:
    """A native function of each element, whatever the memory layout of x."""
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    _native.map(function, flat, out)
    return out.reshape(x.shape)


def _own(matrix: Matrix) -> packed.FloatMatrix:
    """The matrix as one of ours; another backend's would be a bug of the caller."""
    assert isinstance(matrix, packed.FloatMatrix)
    return matrix
