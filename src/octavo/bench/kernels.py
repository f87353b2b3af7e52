"""Measures each kernel alone with cold data, as in a step: weights and KV come from memory, not from a cache.

A *case* is one kernel at one size: its call, and the least bytes and operations that it needs. Weights are
several copies of a matrix, and KV several layers, used in turn, so that the data of a call have left the
cache before they are read again. Small rows (norms, gating, noise) stay in the cache, as in a step; their
speed may exceed the memory bandwidth.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from octavo import _native
from octavo.bench.limits import Limits
from octavo.config import HOST_KV_KINDS
from octavo.kernels.contract import (
    AttentionSpec,
    Batch,
    Bytes,
    Floats,
    HostBatch,
    KvPool,
    KvShape,
    Matrix,
    RawTensor,
)
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import BLOCKS
from octavo.kernels.pool import bytes_per_layer
from octavo.units import blocks_for

ROWS = (1, 8, 32, 128)
BLOCK_SIZE = 16
COLD_BYTES = 128 << 20  # of all copies together: more than the last-level cache
# Bytes below this are small, positive, finite numbers in every kind of matrix and pool.
_BYTE_END = 60
_CALLS_MIN = 3
_NUM_TOKENS = 512  # of a prefill step
_COPIED_BLOCKS = 64
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that kernels need, in elements."""

    name: str
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int


SHAPES = (
    Shape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49_152),
    Shape("Llama-3.2-1B", 2048, 8192, 32, 8, 64, 128_256),
)


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """A case's call, and the least bytes that it reads and writes."""

    call: Call
    num_bytes: float


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size. `prepare` allocates the data: up to a few hundred megabytes."""

    kernel: str
    size: str
    operations: float  # a multiply-add is two
    kind: str  # of operations: "f32", "bf16" or "int8"
    prepare: Callable[[], PreparedCase]


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One case's speed, and its share of the binding limit; above 1, its data came from a cache."""

    kernel: str
    size: str
    seconds: float  # median of a call
    gigabytes_per_s: float
    gigaoperations_per_s: float
    bound_by: str
    share: float


def all_cases() -> Iterator[Case]:
    """Every kernel at every size."""
    for shape in SHAPES:
        yield from linear_cases(shape)
        yield from attention_cases(shape)
        yield from row_cases(shape)
        yield from vocabulary_cases(shape)
        yield Case("copy blocks", f"{shape.name}, {_COPIED_BLOCKS} blocks", 0, "f32", partial(_copies, shape))


def run_case(case: Case, limits: Limits, seconds: float) -> KernelResult:
    """Call it for about `seconds`, at least three times after a warm-up call."""
    ready = case.prepare()
    median = statistics.median(durations(ready.call, seconds))
    return KernelResult(
        kernel=case.kernel,
        size=case.size,
        seconds=median,
        gigabytes_per_s=ready.num_bytes / median / 1e9,
        gigaoperations_per_s=case.operations / median / 1e9,
        bound_by=limits.binds(ready.num_bytes, case.operations, case.kind),
        share=limits.shortest_s(ready.num_bytes, case.operations, case.kind) / median,
    )


def durations(call: Call, seconds: float) -> list[float]:
    """Seconds of each call, for about `seconds` in all."""
    call()
    times: list[float] = []
    while sum(times) < seconds or len(times) < _CALLS_MIN:
        times.append(duration(call))
    return times


def duration(call: Call) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def linear_cases(shape: Shape) -> Iterator[Case]:
    """Every kind of weights, for every matrix that it can hold and every number of rows."""
    matrices = (
        ("q, o", shape.heads * shape.head_size, shape.hidden),
        ("gate, up", shape.ffn, shape.hidden),
        ("down", shape.hidden, shape.ffn),
        ("vocabulary", shape.vocabulary, shape.hidden),
    )
    for (part, outputs, inputs), kind, rows in itertools.product(matrices, BLOCKS, ROWS):
        if inputs % BLOCKS[kind].size:
            continue
        yield Case(
            f"linear {kind}",
            f"{shape.name} {part} {outputs}x{inputs}, {rows} rows",
            2 * rows * inputs * outputs,
            {"F32": "f32", "F16": "f32", "BF16": "bf16"}.get(kind, "int8"),
            partial(_linear, kind, outputs, inputs, rows),
        )


def attention_cases(shape: Shape) -> Iterator[Case]:
    """Decoding of one and of eight sequences, and prefill of a step, at several contexts; and the store."""
    for kv, context, sequences in itertools.product(HOST_KV_KINDS, (512, 2048, 7168), (1, 8)):
        yield Case(
            f"attention decode {kv}",
            f"{shape.name} {sequences} x {context}",
            4 * sequences * context * shape.heads * shape.head_size,
            "bf16" if kv == "bf16" else "f32",
            partial(_attention, shape, kv, sequences, 1, context),
        )
    for kv, before in itertools.product(HOST_KV_KINDS, (0, 2048, 6656)):
        seen = sum(range(before + 1, before + _NUM_TOKENS + 1))
        yield Case(
            f"attention prefill {kv}",
            f"{shape.name} {_NUM_TOKENS} behind {before}",
            4 * seen * shape.heads * shape.head_size,
            "bf16" if kv == "bf16" else "f32",
            partial(_attention, shape, kv, 1, _NUM_TOKENS, before + _NUM_TOKENS),
        )
    for kv in HOST_KV_KINDS:
        yield Case(f"store {kv}", f"{shape.name} {_NUM_TOKENS} rows", 0, "f32", partial(_store, shape, kv))


def row_cases(shape: Shape) -> Iterator[Case]:
    """The operations on rows of a prefill step between the matrix products."""
    for name, width, work in (
        ("rms norm", shape.hidden, _rms_norm),
        ("rope", shape.heads * shape.head_size, _rope),
        ("silu gate", shape.ffn, _gated),
        ("add", shape.hidden, _add),
    ):
        size = f"{shape.name} {_NUM_TOKENS} x {width}"
        yield Case(name, size, 0, "f32", partial(work, _floats(_NUM_TOKENS, width), shape))


def vocabulary_cases(shape: Shape) -> Iterator[Case]:
    """The sampler's operations on 32 rows of logits, and the noise of one row."""
    size = f"{shape.name} 32 x {shape.vocabulary}"
    yield Case("log-sum-exp", size, 0, "f32", partial(_log_sum_exp, shape))
    yield Case("argmax", size, 0, "f32", partial(_argmax, shape))
    yield Case("gumbel noise", f"{shape.name} {shape.vocabulary}", 0, "f32", partial(_gumbel, shape))


# -- paging ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PagingResult:
    """Attention over scattered blocks and over one contiguous run, measured alternately; medians, in
    seconds."""

    size: str
    scattered_s: float
    contiguous_s: float
    ratio: float  # contiguous over scattered, the median of pairs: 1 if paging costs nothing
    pairs: int


def paging_cases() -> Iterator[tuple[str, Shape, int, int, int]]:
    """(size, shape, sequences, tokens of each, context). For decoding, more KV than the last-level cache
    holds."""
    for shape in SHAPES:
        per_token = 2 * shape.kv_heads * shape.head_size * 4
        for context in (1024, 7168):
            sequences = max(1, COLD_BYTES // (per_token * context))
            yield f"{shape.name} decode {sequences} x {context}", shape, sequences, 1, context
        yield f"{shape.name} prefill {_NUM_TOKENS} behind 2048", shape, 1, _NUM_TOKENS, 2048 + _NUM_TOKENS


def run_paging(
    size: str, shape: Shape, sequences: int, tokens: int, context: int, seconds: float
) -> PagingResult:
    """Measure one case. The pool has one layer, so that consecutive blocks are one run of bytes."""
    ops, num_blocks = NativeOps(), sequences * blocks_for(context, BLOCK_SIZE)
    pool = filled_pool(ops, shape, "f32", 1, num_blocks)
    in_order = np.arange(num_blocks, dtype=np.int32)
    scattered = np.random.default_rng(0).permutation(in_order)
    q = _floats(sequences * tokens, shape.heads * shape.head_size)
    spec = AttentionSpec(shape.head_size**-0.5)
    calls = [
        partial(ops.attend, pool, 0, q, batch_of(sequences, tokens, context, blocks), spec)
        for blocks in (scattered, in_order)
    ]
    for call in calls:
        call()
    pairs: list[tuple[float, float]] = []
    while len(pairs) < 2 * _CALLS_MIN or sum(map(sum, pairs)) < seconds:
        # The order alternates, so that data left in the cache favours neither side.
        first = len(pairs) % 2
        times = {side: duration(calls[side]) for side in (first, 1 - first)}
        pairs.append((times[0], times[1]))
    return PagingResult(
        size=size,
        scattered_s=statistics.median(paged for paged, _ in pairs),
        contiguous_s=statistics.median(plain for _, plain in pairs),
        ratio=statistics.median(plain / paged for paged, plain in pairs),
        pairs=len(pairs),
    )


# -- data --------------------------------------------------------------------------------------------


def batch_of(sequences: int, tokens: int, context: int, blocks: np.ndarray) -> HostBatch:
    """The last `tokens` positions of sequences of `context` tokens; each table is the next part of
    `blocks`."""
    tables = np.ascontiguousarray(blocks.reshape(sequences, -1), np.int32)
    positions = np.arange(context - tokens, context, dtype=np.int32)
    return Batch(
        tokens=np.zeros(sequences * tokens, np.int32),
        positions=np.tile(positions, sequences),
        starts=np.full(sequences, context - tokens, np.int32),
        offsets=np.arange(0, sequences * tokens + 1, tokens, dtype=np.int32),
        tables=tables,
        logit_rows=np.zeros(0, np.int32),
    )


def filled_pool(ops: NativeOps, shape: Shape, kv: str, layers: int, num_blocks: int) -> KvPool:
    """A pool whose blocks hold finite numbers and whose pages are resident."""
    kv_shape = KvShape(layers, shape.kv_heads, shape.head_size, BLOCK_SIZE, kv)
    pool = ops.allocate_kv(kv_shape, num_blocks)
    pool.data[:] = random_bytes(pool.bytes_per_block)
    return pool


def random_bytes(count: int) -> Bytes:
    """Bytes that are small, positive, finite numbers in every kind."""
    return np.random.default_rng(0).integers(1, _BYTE_END, count, dtype=np.uint8)


def _floats(rows: int, width: int) -> Floats:
    return np.random.default_rng(0).normal(0, 1, (rows, width)).astype(np.float32)


def _in_turn(calls: Sequence[Call]) -> Call:
    """A call that runs the next of `calls` each time."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _linear(kind: str, outputs: int, inputs: int, rows: int) -> PreparedCase:
    ops, block = NativeOps("auto"), BLOCKS[kind]
    data = random_bytes(outputs * inputs // block.size * block.num_bytes)
    if kind == "MXFP4":
        data[:: block.num_bytes] = 120  # exponents below 3 give subnormal numbers, which are slow
    raw = RawTensor("w", kind, (outputs, inputs), data)
    copies: list[Matrix] = [ops.matrix(raw)]
    while len(copies) * copies[0].num_bytes < COLD_BYTES:
        copies.append(ops.matrix(raw))
    x = _floats(rows, inputs)
    num_bytes = copies[0].num_bytes + 4 * rows * (inputs + outputs)
    return PreparedCase(_in_turn([partial(ops.linear, x, copy) for copy in copies]), num_bytes)


def _attention(shape: Shape, kv: str, sequences: int, tokens: int, context: int) -> PreparedCase:
    ops, num_blocks = NativeOps(), sequences * blocks_for(context, BLOCK_SIZE)
    of_layer = bytes_per_layer(KvShape(1, shape.kv_heads, shape.head_size, BLOCK_SIZE, kv))
    read = num_blocks * of_layer
    layers = max(1, min(16, COLD_BYTES // read))
    pool = filled_pool(ops, shape, kv, layers, num_blocks)
    batch = batch_of(sequences, tokens, context, np.random.default_rng(0).permutation(num_blocks))
    q = _floats(sequences * tokens, shape.heads * shape.head_size)
    spec = AttentionSpec(shape.head_size**-0.5)
    calls = [partial(ops.attend, pool, layer, q, batch, spec) for layer in range(layers)]
    return PreparedCase(_in_turn(calls), read + 2 * q.nbytes)


def _store(shape: Shape, kv: str) -> PreparedCase:
    ops, num_blocks = NativeOps(), blocks_for(_NUM_TOKENS, BLOCK_SIZE)
    pool = filled_pool(ops, shape, kv, 16, num_blocks)
    written = num_blocks * bytes_per_layer(KvShape(1, shape.kv_heads, shape.head_size, BLOCK_SIZE, kv))
    batch = batch_of(1, _NUM_TOKENS, _NUM_TOKENS, np.arange(num_blocks))
    k = _floats(_NUM_TOKENS, shape.kv_heads * shape.head_size)
    calls = [partial(ops.store, pool, layer, k, k, batch) for layer in range(16)]
    return PreparedCase(_in_turn(calls), 2 * k.nbytes + written)


def _rms_norm(x: Floats, shape: Shape) -> PreparedCase:
    weight = np.ones(x.shape[1], np.float32)
    return PreparedCase(partial(NativeOps().rms_norm, x, weight, 1e-5), 2 * x.nbytes)


def _rope(x: Floats, shape: Shape) -> PreparedCase:
    table = _floats(_NUM_TOKENS, shape.head_size // 2)
    positions = np.arange(_NUM_TOKENS, dtype=np.int32)
    return PreparedCase(partial(NativeOps().rope, x, positions, table, table, shape.head_size), 2 * x.nbytes)


def _gated(x: Floats, shape: Shape) -> PreparedCase:
    return PreparedCase(partial(NativeOps().gated, x, x.copy(), "silu"), 3 * x.nbytes)


def _add(x: Floats, shape: Shape) -> PreparedCase:
    return PreparedCase(partial(NativeOps().add, x, x.copy()), 3 * x.nbytes)


def _log_sum_exp(shape: Shape) -> PreparedCase:
    logits, out = _floats(32, shape.vocabulary), np.empty(32, np.float32)
    return PreparedCase(partial(_native.log_sum_exp, logits, out), logits.nbytes)


def _argmax(shape: Shape) -> PreparedCase:
    logits, out = _floats(32, shape.vocabulary), np.empty(32, np.int32)
    return PreparedCase(partial(_native.argmax, logits, out), logits.nbytes)


def _gumbel(shape: Shape) -> PreparedCase:
    out = np.empty(shape.vocabulary, np.float32)
    return PreparedCase(partial(_native.gumbel, 1, 0, 0, out), out.nbytes)


def _copies(shape: Shape) -> PreparedCase:
    ops = NativeOps()
    pool = filled_pool(ops, shape, "f32", 16, 2 * _COPIED_BLOCKS)
    order = np.random.default_rng(0).permutation(2 * _COPIED_BLOCKS)
    sources, targets = order[:_COPIED_BLOCKS].tolist(), order[_COPIED_BLOCKS:].tolist()
    call = partial(ops.copy_blocks, pool, sources, targets)
    return PreparedCase(call, 2 * _COPIED_BLOCKS * pool.bytes_per_block)
