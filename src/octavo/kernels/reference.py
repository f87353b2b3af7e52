"""The ops in NumPy, as simple as possible: the executable specification of `contract.Ops`.

Every op is row-independent to the bit, which NumPy does not guarantee by itself. Three rules ensure it:

- products of float32 and float16 are the native module's (`packed.multiply`), because BLAS changes its bits
  with the number of rows;
- exp and tanh are the native module's (`elementwise`), because NumPy's vector loops and scalar tails differ;
- sums run in an explicit order, element after element, because NumPy's own depends on an array's shape.

What remains (+, -, *, /, square root, comparisons) is exact or correctly rounded, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from octavo.kernels import attention_reference, brain_reference, experts_reference, integer_reference, packed
from octavo.kernels.attention_reference import PoolBlocks, StoredBlocks
from octavo.kernels.contract import (
    AttentionSpec,
    Expert,
    Floats,
    HostBatch,
    Ints,
    KvPool,
    KvShape,
    Matrix,
    PreparedRows,
    RankGather,
    RawTensor,
    Routing,
    RowsBody,
    SlotMemory,
    StepBody,
    Vector,
)
from octavo.kernels.elementwise import exp, tanh
from octavo.kernels.packed import kind_held
from octavo.kernels.pool import allocate_pool, discard_blocks


class ReferenceOps:
    """`Ops` in NumPy; `weights` as in `NativeOps`. With `ranks`, those of one rank of several."""

    def __init__(self, weights: str = "auto", ranks: RankGather | None = None) -> None:
        self.name = "reference"
        self.ranks = ranks
        self.arithmetic_id = f"reference-{weights}-3"
        self.weights = weights

    # -- weights and memory ------------------------------------------------------------------------
    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """Integer codes or panels of floats; raises UnsupportedModel or BadModelFile."""
        packed.require_matrix(raw)
        kind = kind_held(raw, self.weights, table)
        if kind == "BF16":
            return brain_reference.read(raw)
        if kind in packed.FLOAT_KINDS:
            return packed.pack(raw, kind)
        return integer_reference.read(raw if kind == raw.kind else integer_reference.requantised(raw, kind))

    def vector(self, values: Floats) -> Floats:
        """The array itself."""
        return values

    def allocate_kv(self, shape: KvShape, num_blocks: int) -> KvPool:
        """Reserve address space for the pool; pages become resident when first written."""
        return allocate_pool(shape, num_blocks)

    def discard_blocks(self, pool: KvPool, first: int, last: int) -> None:
        """Give the memory of blocks [first, last) back to the system."""
        discard_blocks(pool, first, last)

    def copy_blocks(self, pool: KvPool, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for source, target in zip(sources, targets, strict=True):
            pool.data[target] = pool.data[source]

    def prepare_step(self, body: StepBody, pool: KvPool) -> Callable[[HostBatch], Floats]:
        """The body itself, op after op."""
        return lambda batch: body(self, batch)

    def prepare_cold_step(self, body: StepBody, pool: KvPool, memory: SlotMemory) -> None:
        """The specification reads blocks of the pool alone."""

    def prepare_rows(self, body: RowsBody, width: int) -> PreparedRows:
        """The body itself, op after op."""
        return _Rows(self, body)

    # -- the step ----------------------------------------------------------------------------------
    def embed(self, table: Matrix, tokens: Ints, starts: Sequence[int] = ()) -> Floats:
        """(T,) -> (T, E): rows of the table."""
        if starts:
            assert self.ranks is not None
            first, last = starts[self.ranks.rank : self.ranks.rank + 2]
            own = self.embed(table, np.clip(tokens, first, last - 1) - np.int32(first))
            owners = np.searchsorted(np.array(starts[1:]), tokens, side="right")
            return self.ranks.gather(own)[owners, np.arange(tokens.size)]
        if isinstance(table, integer_reference.ReferenceIntegers):
            return integer_reference.rows_of(table, tokens)
        if isinstance(table, brain_reference.ReferenceBrains):
            return table.values[tokens]
        return packed.unpack_rows(_own(table), tokens)

    def gather(self, x: Floats, widths: Sequence[int]) -> Floats:
        """(T, own width) -> (T, sum of widths): the columns of all ranks."""
        assert self.ranks is not None
        widest = max(widths)
        given = np.zeros((x.shape[0], widest), np.float32)  # the exchanged pieces have one size
        given[:, : x.shape[1]] = x
        pieces = self.ranks.gather(given)
        return np.concatenate([piece[:, :width] for piece, width in zip(pieces, widths, strict=True)], axis=1)

    def columns(self, x: Floats, first: int, last: int) -> Floats:
        """x[:, first:last], contiguous."""
        return np.ascontiguousarray(x[:, first:last])

    def take(self, x: Floats, rows: Ints) -> Floats:
        """x[rows], contiguous."""
        return np.take(x, rows, axis=0)

    def linear(self, x: Floats, weight: Matrix, bias: Vector | None = None) -> Floats:
        """(T, in) -> (T, out)."""
        if isinstance(weight, integer_reference.ReferenceIntegers):
            return integer_reference.multiply(x, weight, packed.floats_or_none(bias))
        if isinstance(weight, brain_reference.ReferenceBrains):
            return brain_reference.multiply(x, weight, packed.floats_or_none(bias))
        return packed.multiply(x, _own(weight), packed.floats_or_none(bias))

    def rms_norm(self, x: Floats, weight: Vector, eps: float) -> Floats:
        """Over the last `len(weight)` elements of each row."""
        factors = packed.floats_of(weight)
        heads = x.reshape(-1, factors.size)
        mean_of_squares = _sum(heads * heads) / np.float32(factors.size)
        normed: Floats = heads / np.sqrt(mean_of_squares + np.float32(eps)) * factors
        return normed.reshape(x.shape)

    def layer_norm(self, x: Floats, weight: Vector, bias: Vector, eps: float) -> Floats:
        """(T, E) -> (T, E)."""
        factors, added = packed.floats_of(weight), packed.floats_of(bias)
        centred = x - _sum(x) / np.float32(factors.size)
        variance = _sum(centred * centred) / np.float32(factors.size)
        normed: Floats = centred / np.sqrt(variance + np.float32(eps)) * factors + added
        return normed

    def rope(self, x: Floats, positions: Ints, cos: Vector, sin: Vector, head_size: int) -> Floats:
        """Rotate halves of each head."""
        half = cos.shape[1]
        heads = x.reshape(x.shape[0], x.shape[1] // head_size, head_size)
        c, s = (packed.floats_of(table)[positions][:, None, :] for table in (cos, sin))
        a, b = heads[..., :half], heads[..., half : 2 * half]
        out = heads.copy()
        out[..., :half] = a * c - b * s
        out[..., half : 2 * half] = b * c + a * s
        return out.reshape(x.shape)

    def store(self, pool: KvPool | StoredBlocks, layer: int, k: Floats, v: Floats, batch: HostBatch) -> None:
        """Write K and V of the step's tokens into their slots of `layer`."""
        attention_reference.store(_blocks_of(pool), layer, k, v, batch)

    def attend(
        self,
        pool: KvPool | StoredBlocks,
        layer: int,
        q: Floats,
        batch: HostBatch,
        spec: AttentionSpec,
        log_sum_exp: Floats | None = None,
    ) -> Floats:
        """(T, H * D) -> (T, H * D): causal attention over the block tables."""
        return attention_reference.attend(_blocks_of(pool), layer, q, batch, spec, log_sum_exp)

    def gated(self, gate: Floats, up: Floats, activation: str) -> Floats:
        """activation(gate) * up."""
        if activation == "swiglu_clamped":
            return _swiglu_clamped(gate, up)
        activated = self.activate(gate, activation)
        return activated * up

    def activate(self, x: Floats, activation: str) -> Floats:
        """activation(x)."""
        one, half = np.float32(1), np.float32(0.5)
        with np.errstate(over="ignore"):
            if activation == "silu":
                return x / (one + exp(-x))
            if activation == "gelu_tanh":
                inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * (x * x * x))
                return half * x * (one + tanh(inner))
            if activation == "gelu":
                erf = np.array(
                    [math.erf(value / math.sqrt(2)) for value in x.reshape(-1).tolist()], np.float32
                )
                return half * x * (one + erf.reshape(x.shape))
            if activation == "relu":
                return np.where(x < 0, np.float32(0), x)
        raise ValueError(f"unknown activation {activation!r}; known: silu, gelu_tanh, gelu, relu")

    def experts(
        self,
        x: Floats,
        router_logits: Floats,
        experts: Sequence[Expert],
        routing: Routing,
        activation: str,
        widths: Sequence[int] = (),
    ) -> Floats:
        """(T, E), (T, X) -> (T, E): each row's weighted sum."""

        def apply(expert: Expert, rows: Floats) -> Floats:
            gate = self.linear(rows, expert.gate.weight, expert.gate.bias)
            up = self.linear(rows, expert.up.weight, expert.up.bias)
            inner = self.gated(gate, up, activation)
            if widths:
                inner = self.gather(inner, widths)
            return self.linear(inner, expert.down.weight, expert.down.bias)

        choices = experts_reference.route(router_logits, routing)
        return experts_reference.mix(x, choices, experts, routing.weighs_input, apply)

    def add(self, x: Floats, y: Floats) -> Floats:
        """x + y."""
        return x + y

    def scale(self, x: Floats, factor: float) -> Floats:
        """x * factor, the factor rounded to float32 first."""
        return x * np.float32(factor)

    def soft_cap(self, x: Floats, cap: float) -> Floats:
        """cap * tanh(x / cap)."""
        return np.float32(cap) * tanh(x / np.float32(cap))


class _Rows:
    """A function of rows, op after op."""

    def __init__(self, ops: ReferenceOps, body: RowsBody) -> None:
        self._ops, self._body = ops, body

    def __call__(self, x: Floats) -> Floats:
        """The body's result for rows x (R, width)."""
        return self._body(self._ops, x)

    def argmax(self, x: Floats) -> Ints:
        """(R,): where each row of the result is largest, or -1."""
        rows = self(x)
        sound = np.isfinite(rows.max(axis=-1))  # false for NaN, +inf and all -inf
        return np.where(sound, rows.argmax(axis=-1), -1).astype(np.int32)


def _sum(x: Floats) -> Floats:
    """(..., E) -> (..., 1): one element after the other in double, rounded once."""
    return np.add.accumulate(x, axis=-1, dtype=np.float64)[..., -1:].astype(np.float32)


def _swiglu_clamped(gate: Floats, up: Floats) -> Floats:
    """g sigmoid(1.702 g) (u + 1), g at most 7 and u within [-7, 7]; NaN stays NaN."""
    one, limit = np.float32(1), np.float32(7)
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    with np.errstate(over="ignore"):
        gated: Floats = g / (one + exp(-(np.float32(1.702) * g))) * (u + one)
    return gated


def _blocks_of(pool: KvPool | StoredBlocks) -> StoredBlocks:
    return PoolBlocks(pool) if isinstance(pool, KvPool) else pool


def _own(matrix: Matrix) -> packed.FloatMatrix:
    """Require a matrix of this backend; another's is a bug of the caller."""
    assert isinstance(matrix, packed.FloatMatrix)
    return matrix
