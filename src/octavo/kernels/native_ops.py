"""The CPU backend: every op is a native kernel. `reference.py` specifies them.

It knows no model and no scheduler. The native module manages threads (`octavo._native.set_num_threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from octavo import _native
from octavo.kernels import integers, packed
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
    RawTensor,
    Routing,
    RowsBody,
    SlotMemory,
    StepBody,
    Vector,
)
from octavo.kernels.packed import kind_held
from octavo.kernels.panels import mixture_of
from octavo.kernels.pool import allocate_pool, discard_blocks, layout_of, partition_bytes
from octavo.kernels.program import ColdStepProgram, RowsProgram, StepProgram

WINDOW_BYTES = 8 << 20  # of cold blocks read ahead of attention: fits a CPU cache
READERS = 4  # threads that read them, and mostly wait for the medium
ARITHMETIC_VERSION = 6  # raise it whenever a kernel's bits change: names of cached blocks depend on it


class NativeOps:
    """The `Ops` of the machine's CPU: one object serves any number of models.

    `weights`: "auto", "f32", "bf16", "int8" or "q4"; `packed.py` has the kind of a matrix for each.
    """

    def __init__(self, weights: str = "auto") -> None:
        self.name = "cpu"
        self.arithmetic_id = f"cpu-{weights}-{ARITHMETIC_VERSION}-{_native.simd_probe()['chosen']}"
        self._weights = weights

    # -- weights and memory ------------------------------------------------------------------------
    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """Panels of integers or floats; raises UnsupportedModel or BadModelFile."""
        packed.require_matrix(raw)
        kind = kind_held(raw, self._weights, table)
        return packed.pack(raw, kind) if kind in packed.FLOAT_KINDS else integers.pack(raw, kind)

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
        _native.copy_blocks(pool.data, np.asarray(sources, np.int32), np.asarray(targets, np.int32))

    def prepare_step(self, body: StepBody, pool: KvPool) -> Callable[[HostBatch], Floats]:
        """Recorded once, replayed in one native call."""
        return StepProgram(body, pool)

    def prepare_cold_step(self, body: StepBody, pool: KvPool, memory: SlotMemory) -> ColdStepProgram:
        """Recorded once, replayed a few layers at a time."""
        window = max(WINDOW_BYTES, 4 * partition_bytes(pool.shape))
        second = _native.SecondMemory(
            memory.host,
            memory.host_slot_bytes,
            memory.num_host,
            memory.fd,
            memory.lanes,
            memory.pieces,
            memory.num_slots,
            window,
            READERS,
        )
        return ColdStepProgram(body, pool, second)

    def prepare_rows(self, body: RowsBody, width: int) -> PreparedRows:
        """Recorded once, replayed in one native call."""
        return RowsProgram(body, width)

    # -- the step ----------------------------------------------------------------------------------
    def embed(self, table: Matrix, tokens: Ints, starts: Sequence[int] = ()) -> Floats:
        """(T,) -> (T, E): rows of the table."""
        assert not starts, "the native backend has no ranks"
        if isinstance(table, integers.IntegerMatrix):
            return integers.unpack_rows(table, tokens)
        return packed.unpack_rows(_own(table), tokens)

    def gather(self, x: Floats, widths: Sequence[int]) -> Floats:
        """There are no ranks."""
        raise AssertionError("the native backend has no ranks")

    def columns(self, x: Floats, first: int, last: int) -> Floats:
        """x[:, first:last], contiguous."""
        return np.ascontiguousarray(x[:, first:last])

    def take(self, x: Floats, rows: Ints) -> Floats:
        """x[rows], contiguous."""
        return np.take(x, rows, axis=0)

    def linear(self, x: Floats, weight: Matrix, bias: Vector | None = None) -> Floats:
        """(T, in) -> (T, out)."""
        if isinstance(weight, integers.IntegerMatrix):
            return integers.multiply(x, weight, packed.floats_or_none(bias))
        return packed.multiply(x, _own(weight), packed.floats_or_none(bias))

    def rms_norm(self, x: Floats, weight: Vector, eps: float) -> Floats:
        """Over the last `len(weight)` elements of each row."""
        out, size = np.empty_like(x), weight.shape[0]
        _native.rms_norm(x.reshape(-1, size), packed.floats_of(weight), eps, out.reshape(-1, size))
        return out

    def layer_norm(self, x: Floats, weight: Vector, bias: Vector, eps: float) -> Floats:
        """(T, E) -> (T, E)."""
        out = np.empty_like(x)
        _native.layer_norm(x, packed.floats_of(weight), packed.floats_of(bias), eps, out)
        return out

    def rope(self, x: Floats, positions: Ints, cos: Vector, sin: Vector, head_size: int) -> Floats:
        """Rotate halves of each head."""
        out = np.empty_like(x)
        _native.rope(x, positions, packed.floats_of(cos), packed.floats_of(sin), head_size, out)
        return out

    def store(self, pool: KvPool, layer: int, k: Floats, v: Floats, batch: HostBatch) -> None:
        """Write K and V of the step's tokens into their slots of `layer`."""
        layout = layout_of(pool.shape)
        _native.store_kv(layout, pool.data, layer, k, v, batch.starts, batch.offsets, batch.tables)

    def attend(
        self,
        pool: KvPool,
        layer: int,
        q: Floats,
        batch: HostBatch,
        spec: AttentionSpec,
        log_sum_exp: Floats | None = None,
    ) -> Floats:
        """(T, H * D) -> (T, H * D): causal attention over the block tables."""
        out = np.empty_like(q)
        _native.attend(
            layout_of(pool.shape),
            pool.data,
            layer,
            q,
            batch.starts,
            batch.offsets,
            batch.tables,
            spec.scale,
            spec.window,
            spec.soft_cap,
            packed.floats_or_none(spec.sinks),
            packed.floats_or_none(spec.slopes),
            out,
            log_sum_exp,
        )
        return out

    def gated(self, gate: Floats, up: Floats, activation: str) -> Floats:
        """activation(gate) * up."""
        out = np.empty_like(gate)
        _native.gated(activation, gate.reshape(-1), up.reshape(-1), out.reshape(-1))
        return out

    def activate(self, x: Floats, activation: str) -> Floats:
        """activation(x)."""
        out = np.empty_like(x)
        _native.map(activation, x.reshape(-1), out.reshape(-1))
        return out

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
        assert not widths, "the native backend has no ranks"
        out = np.empty_like(x)
        _native.experts(x, router_logits, mixture_of(experts, routing, activation), out)
        return out

    def add(self, x: Floats, y: Floats) -> Floats:
        """x + y."""
        out = np.empty_like(x)
        _native.add(x.reshape(-1), y.reshape(-1), out.reshape(-1))
        return out

    def scale(self, x: Floats, factor: float) -> Floats:
        """x * factor, the factor rounded to float32 first."""
        out = np.empty_like(x)
        _native.scale(x.reshape(-1), factor, out.reshape(-1))
        return out

    def soft_cap(self, x: Floats, cap: float) -> Floats:
        """cap * tanh(x / cap)."""
        out = np.empty_like(x)
        _native.soft_cap(x.reshape(-1), cap, out.reshape(-1))
        return out


def _own(matrix: Matrix) -> packed.FloatMatrix:
    """Require a matrix of this backend; another's is a bug of the caller."""
    assert isinstance(matrix, packed.FloatMatrix)
    return matrix
