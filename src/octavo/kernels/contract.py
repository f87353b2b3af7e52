"""The contract of the ops: a backend's interface for `model/decoder.py`, which is written once over it.

A backend's objects are opaque to the decoder: buffers T, vectors, a batch's integers I, the pool P. On the
CPU they are NumPy arrays and a `KvPool`; with torch, tensors on a device.

Exactness: every op computes one output row with the same operations in the same order, independent of the
number of other rows, the row's place, the block ids, and the number of threads (docs/architecture.md, "The
exactness contract"). So a row's bits depend only on that row's input.

Dimensions: T tokens in the step, C chunks, H query heads, K kv heads, D head size, B block size, N blocks,
L layers, E hidden size, V vocabulary.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

T = TypeVar("T")  # a buffer of a step
I = TypeVar("I")  # integers of a batch  # noqa: E741
P = TypeVar("P", contravariant=True)  # a pool


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor in its file's format. `data` is a flat view of the file's bytes (not a copy).

    `shape` is NumPy order: a matrix is (outputs, inputs), so y = x @ W.T. Quantised kinds are grouped by 32
    or 256 along inputs: `packed.BLOCKS`.
    """

    name: str
    kind: str  # of `packed.BLOCKS`
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class KvShape:
    """The shape of one KV group. A block holds K and V of all its layers in one contiguous range of bytes."""

    num_layers: int
    num_kv_heads: int
    head_size: int
    block_size: int
    kind: str = "f32"  # of K and V: one of `config.KV_KINDS`; codes have one scale per token and kv head


@dataclass(frozen=True, slots=True)
class KvPool:
    """N blocks of KV memory on the CPU: `data` is (N, bytes_per_block) uint8. `pool.py` has the layout."""

    shape: KvShape
    num_blocks: int
    bytes_per_block: int  # a multiple of 4 KiB
    data: Bytes
    memory: mmap.mmap  # holds `data`, from its beginning


@dataclass(frozen=True, slots=True)
class Batch(Generic[I]):
    """The flattened chunks of one step.

    Chunk c covers tokens [offsets[c], offsets[c + 1]) of the step; its first token is at position starts[c]
    of its sequence; its position p is in slot p % B of block tables[c, p // B].
    """

    tokens: I  # (T,)
    positions: I  # (T,)
    starts: I  # (C,)
    offsets: I  # (C + 1,)
    tables: I  # (C, W), W = widest table needed; entries beyond a chunk's last block are never read
    logit_rows: I  # (R,) indices into T of the tokens that need logits


HostBatch: TypeAlias = Batch[Ints]


class Vector(Protocol):
    """Float32 weights of one dimension, or a table of rope, in the backend's own form."""

    @property
    def shape(self) -> tuple[int, ...]:
        """As in NumPy."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The attention of one layer. `window` w: position p sees (p - w, p]. `soft_cap` c: scores become c
    tanh(s / c).

    `slopes` (H,): ALiBi, a score loses slope * distance (Press et al. 2022). `sinks` (H,): one more logit for
    each query head that joins the softmax's denominator only (Xiao et al. 2024, learned as in gpt-oss).
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: Vector | None = None
    slopes: Vector | None = None


class Matrix(Protocol):
    """A weight matrix (outputs, inputs) in the backend's own form."""

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""

    @property
    def kind(self) -> str:
        """The kind of the weights, as of `RawTensor`."""

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection (outputs, inputs) with an optional bias (outputs,)."""

    weight: Matrix
    bias: Vector | None = None


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router's logits (T, X) choose `top_k` of X experts for each token, and their weights.

    scoring: "softmax" over all, then the largest; "softmax_of_chosen": the largest, then over those;
    "sigmoid" of each chosen one. `normalised`: the chosen weights are divided by their sum. `weighs_input`:
    an expert's input is scaled by its weight, and its output is not. Equal logits go to the lower expert.
    """

    top_k: int
    scoring: str
    normalised: bool = False
    weighs_input: bool = False


@dataclass(frozen=True, slots=True)
class Expert:
    """One feed-forward part of a mixture: down(act(gate) * up)."""

    gate: Linear
    up: Linear
    down: Linear


class StepOps(Protocol[T, I, P]):
    """The ops that the decoder calls, over buffers T that it never reads.

    Every method returns a new buffer unless it says that it writes in place.
    """

    def embed(self, table: Matrix, tokens: I, starts: Sequence[int] = ()) -> T:
        """(T,) -> (T, E): rows of the table. With `starts` (ranks + 1,), rank r's table has rows [starts[r],
        starts[r + 1]) of the whole one, and the other ranks supply the rest."""

    def gather(self, x: T, widths: Sequence[int]) -> T:
        """(T, own width) -> (T, sum of widths): the columns of all ranks, concatenated in order of ranks."""

    def columns(self, x: T, first: int, last: int) -> T:
        """x[:, first:last], contiguous."""

    def take(self, x: T, rows: I) -> T:
        """x[rows], contiguous."""

    def linear(self, x: T, weight: Matrix, bias: Vector | None = None) -> T:
        """(T, in) -> (T, out): x @ weight.T + bias, each element summed over `in` in a fixed order."""

    def rms_norm(self, x: T, weight: Vector, eps: float) -> T:
        """Over the last `len(weight)` elements: (T, heads * D) with a (D,) weight is normalised head by
        head."""

    def layer_norm(self, x: T, weight: Vector, bias: Vector, eps: float) -> T:
        """(T, E) -> (T, E)."""

    def rope(self, x: T, positions: I, cos: Vector, sin: Vector, head_size: int) -> T:
        """Rotate halves: x (T, heads * D), cos and sin (context, dims / 2), D = head_size.

        Within each head, element i < dims/2 pairs with i + dims/2; elements from dims on pass through.
        """

    def store(self, pool: P, layer: int, k: T, v: T, batch: Batch[I]) -> None:
        """Write K and V, (T, K * D) each, of the step's tokens into their slots of `layer`."""

    def attend(
        self,
        pool: P,
        layer: int,
        q: T,
        batch: Batch[I],
        spec: AttentionSpec,
        log_sum_exp: T | None = None,
    ) -> T:
        """(T, H * D) -> (T, H * D): causal attention over the block tables, K and V read back as stored.

        Fills `log_sum_exp` (T, H) where it is given: the natural logarithm of the softmax's denominator.
        Slots outside [0, position] of a sequence must not affect the result, even if they hold NaN.
        """

    def gated(self, gate: T, up: T, activation: str) -> T:
        """activation(gate) * up; activation: "silu" | "gelu_tanh" | "gelu" | "relu" | "swiglu_clamped".

        "swiglu_clamped": g * sigmoid(1.702 g) * (u + 1), g = min(gate, 7), u = up within [-7, 7] (gpt-oss).
        """

    def activate(self, x: T, activation: str) -> T:
        """activation(x): "silu" | "gelu_tanh" | "gelu" | "relu"."""

    def experts(
        self,
        x: T,
        router_logits: T,
        experts: Sequence[Expert],
        routing: Routing,
        activation: str,
        widths: Sequence[int] = (),
    ) -> T:
        """(T, E), (T, X) -> (T, E): the weighted outputs of each token's experts, summed in the order of the
        experts' numbers. A row's bits do not depend on other rows; only chosen experts are read. With
        `widths`, the number of inner columns of each rank: (T, own width of E).
        """

    def add(self, x: T, y: T) -> T:
        """x + y."""

    def scale(self, x: T, factor: float) -> T:
        """x * factor, the factor rounded to float32 first."""

    def soft_cap(self, x: T, cap: float) -> T:
        """cap * tanh(x / cap)."""


class RankGather(Protocol):
    """One rank's view of the ranks that compute one model. All ranks make the same calls in one order."""

    rank: int

    def gather(self, x: Floats) -> Floats:
        """(...) -> (ranks, ...): each rank's array."""


class StepBody(Protocol):
    """A step as a function of the ops it is made of: the decoder's `hidden_states` of one model."""

    def __call__(self, ops: StepOps[T, I, KvPool], batch: Batch[I]) -> T: ...


class RowsBody(Protocol):
    """A function of rows alone: the decoder's `project`."""

    def __call__(self, ops: StepOps[T, I, KvPool], x: T) -> T: ...


class PreparedRows(Protocol):
    """A compiled function of rows, for many calls, one call at a time."""

    def __call__(self, x: Floats) -> Floats:
        """The result for rows x (R, width), valid until the next call."""

    def argmax(self, x: Floats) -> Ints:
        """(R,): the lowest index of the largest number in each row of its result; -1 for a row that holds
        NaN or +inf, or nothing but -inf. Cheaper than the result."""


class WeightOps(Protocol):
    """Converts a file's tensors to a backend's own weights."""

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """The backend's form of a 2-d tensor; the file's bytes are not referenced afterwards.

        `table`: it is an embedding or the output, which some modes hold with more bits than layers.
        """

    def vector(self, values: Floats) -> Vector:
        """The backend's form of these numbers."""


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """Where attention reads cold blocks: slots [0, num_host) of host memory, then those of a file, in stripes
    of `lanes` slots, each of which holds `pieces` pieces of a layer's bytes, layer after layer."""

    host: Bytes | None
    host_slot_bytes: int
    num_host: int
    fd: int  # -1: no file
    lanes: int
    pieces: int
    num_slots: int


class ColdStep(Protocol):
    """A step over sequences with cold blocks, some layers at a time. One step at a time."""

    def begin(self, batch: HostBatch) -> None:
        """Copy the batch, and start reading ahead. Table entries from COLD_FIRST (octavo.types) on are
        slots."""

    def advance(self, tables: Ints, num_layers: int) -> Floats | None:
        """Compute `num_layers` more layers; after the last one the result's rows, valid until the next
        step."""

    def abandon(self) -> None:
        """Drop the step, if there is one."""

    def failed_slots(self) -> list[int]:
        """Slots that the last step could not read: if there are any, its result is invalid."""


class Ops(StepOps[Floats, Ints, KvPool], WeightOps, Protocol):
    """The ops of the processor: native kernels, or their specification in NumPy."""

    name: str
    arithmetic_id: str  # has the kernels' version and instruction set: bits are equal within one id

    def allocate_kv(self, shape: KvShape, num_blocks: int) -> KvPool:
        """Reserve address space for the pool; pages become resident when first written."""

    def discard_blocks(self, pool: KvPool, first: int, last: int) -> None:
        """Free the memory of blocks [first, last); their content is lost."""

    def copy_blocks(self, pool: KvPool, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def prepare_step(self, body: StepBody, pool: KvPool) -> Callable[[HostBatch], Floats]:
        """Compile the step for many calls, one call at a time. A result is valid until the next call."""

    def prepare_cold_step(self, body: StepBody, pool: KvPool, memory: SlotMemory) -> ColdStep | None:
        """The step for sequences with some blocks in slots; None: not supported."""

    def prepare_rows(self, body: RowsBody, width: int) -> PreparedRows:
        """Prepare a function of rows (R, width)."""
