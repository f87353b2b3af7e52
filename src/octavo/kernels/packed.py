"""Weight matrices in panels of floats, for both CPU backends, and checks of tensors from files.

    panels[p, i, lane] = W[16 p + lane, i]     outputs along the vector lanes, zeros beyond the last

Sixteen outputs of one input are one load, and each output is summed over the inputs in order. F16 is widened
exactly on use, so it changes memory and no bit. BF16 is stored in pairs of inputs, [p, i / 2, lane, i % 2],
and multiplied by rows rounded to bfloat16: of each pair the second product is added first
(`brain_reference.py`).

The kind in which a matrix is held, by `--weights`:

    auto    the file's own: integers stay integers, F16 and BF16 keep their 16 bits; nothing is lost
    f32     float32, de-quantised
    bf16    rounded to 16 bits
    int8    Q8_0
    q4      Q4_1, embeddings and the output Q8_0; kinds with no more bits are unchanged

Four bits in the vocabulary lose far more quality than in the layers (docs/log.md); published files have eight
there too. int8 and q4 keep a matrix unchanged if its rows are no multiple of 32. BF16 is stored in pairs:
rows with an odd number of inputs become F32.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.errors import BadModelFile, UnsupportedModel
from octavo.kernels.contract import Bytes, Floats, Ints, RawTensor, Vector

PANEL_WIDTH = 16
QUANT_GROUP = 32
FLOAT_KINDS = frozenset({"F32", "F16", "BF16"})
Halves = npt.NDArray[np.uint16]  # the bits of floats of 16 bits
CACHE_LINE = 64  # a vector load that crosses two lines costs double


def aligned_bytes(count: int) -> Bytes:
    """`count` bytes, uninitialised. Untouched pages of a large array are not resident.

    Raises MemoryError when the address space is refused.
    """
    memory = np.empty(count + CACHE_LINE - 1, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + count]


class Chunks:
    """Memory for weights, allocated from large pieces for which NumPy requests huge pages: a step reads each
    weight once, so with pages of 4 KiB TLB misses would be slow. A piece lives as long as any array in it."""

    CHUNK_BYTES = 32 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = aligned_bytes(0)

    def take(self, count: int) -> Bytes:
        """`count` bytes, uninitialised, that begin at a cache line. Raises MemoryError."""
        padded = -(-count // CACHE_LINE) * CACHE_LINE
        with self._lock:
            if padded > self._rest.size:
                if padded >= self.CHUNK_BYTES // 4:
                    return aligned_bytes(count)
                self._rest = aligned_bytes(self.CHUNK_BYTES)
            taken, self._rest = self._rest[:count], self._rest[padded:]
            return taken


weight_chunks = Chunks()


@dataclass(frozen=True, slots=True)
class Block:
    """A file's unit of storage: `size` consecutive elements of a row in `num_bytes` bytes."""

    size: int
    num_bytes: int


BLOCKS: Mapping[str, Block] = MappingProxyType(
    {
        "F32": Block(1, 4),
        "F16": Block(1, 2),
        "BF16": Block(1, 2),
        "Q8_0": Block(32, 34),
        "Q4_0": Block(32, 18),
        "Q4_1": Block(32, 20),
        "Q5_0": Block(32, 22),
        "Q5_1": Block(32, 24),
        "IQ4_NL": Block(32, 18),
        "MXFP4": Block(32, 17),
        "Q2_K": Block(256, 84),
        "Q3_K": Block(256, 110),
        "Q4_K": Block(256, 144),
        "Q5_K": Block(256, 176),
        "Q6_K": Block(256, 210),
        "IQ4_XS": Block(256, 136),
    }
)


def stored_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a kind of `BLOCKS` in a file; its rows must be whole blocks."""
    block = BLOCKS[kind]
    return math.prod(shape) // block.size * block.num_bytes


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A float32 matrix (outputs, inputs) in panels (ceil(outputs / 16), inputs, 16)."""

    shape: tuple[int, int]
    panels: Floats = field(repr=False)

    @property
    def kind(self) -> str:
        """The kind of the weights."""
        return "F32"

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.panels.nbytes


@dataclass(frozen=True, slots=True)
class HalfMatrix:
    """A matrix (outputs, inputs), panels (ceil(outputs / 16), inputs, 16) of 16 bits: F16; BF16 in pairs."""

    shape: tuple[int, int]
    kind: str
    panels: Halves = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.panels.nbytes


FloatMatrix = PackedMatrix | HalfMatrix


def pack(raw: RawTensor, kind: str = "F32") -> FloatMatrix:
    """The packed form of a 2-d tensor, made directly from the file's bytes and rounded to `kind`.

    Raises UnsupportedModel for an unknown kind, BadModelFile when shape and bytes disagree.
    """
    require_matrix(raw)
    outputs, inputs = raw.shape
    shape = (-(-outputs // PANEL_WIDTH), inputs, PANEL_WIDTH)
    memory = weight_chunks.take(math.prod(shape) * BLOCKS[kind].num_bytes)
    if kind == "F32":
        panels = memory.view(np.float32).reshape(shape)
        _native.pack(raw.data, raw.kind, outputs, inputs, panels)
        return PackedMatrix((outputs, inputs), panels)
    halves = memory.view(np.uint16).reshape(shape)
    _native.pack_halves(raw.data, raw.kind, outputs, inputs, kind, halves)
    return HalfMatrix((outputs, inputs), kind, halves)


def unpack_vector(raw: RawTensor) -> Floats:
    """The tensor as float32, of its own shape. Raises as `pack`."""
    _require_consistent(raw)
    out = np.empty(math.prod(raw.shape), np.float32)
    _native.dequantise(raw.data, raw.kind, out.size, out)
    return out.reshape(raw.shape)


def unpack_rows(table: FloatMatrix, rows: Ints) -> Floats:
    """(T,) -> (T, inputs). Raises IndexError for a row that does not exist."""
    out = np.empty((rows.size, table.shape[1]), np.float32)
    if isinstance(table, PackedMatrix):
        _native.embed(table.panels, table.shape[0], rows, out)
    else:
        _native.embed_halves(table.panels, table.kind, table.shape[0], rows, out)
    return out


def multiply(x: Floats, weight: FloatMatrix, bias: Floats | None) -> Floats:
    """(T, inputs) -> (T, outputs): each output one chain of fused multiply-adds over the inputs."""
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    if isinstance(weight, PackedMatrix):
        _native.linear(x, weight.panels, bias, out)
    else:
        _native.linear_halves(x, weight.panels, weight.kind, bias, out)
    return out


def floats_of(vector: Vector) -> Floats:
    """A vector of this backend as an array; another backend's is a bug of the caller."""
    assert isinstance(vector, np.ndarray)
    return vector


def floats_or_none(vector: Vector | None) -> Floats | None:
    """As `floats_of`; None for None."""
    return None if vector is None else floats_of(vector)


def require_matrix(raw: RawTensor) -> None:
    """Raise unless the tensor is a consistent matrix."""
    if len(raw.shape) != 2:
        raise BadModelFile(f"tensor {raw.name} has shape {raw.shape}; a matrix is needed")
    _require_consistent(raw)


def _require_consistent(raw: RawTensor) -> None:
    """Raise unless the kind is known and the bytes are exactly those of the shape."""
    if raw.kind not in BLOCKS:
        known = ", ".join(BLOCKS)
        raise UnsupportedModel(f"tensor {raw.name} is of kind {raw.kind}; known: {known}")
    if any(size < 1 for size in raw.shape):
        raise BadModelFile(f"tensor {raw.name} has shape {raw.shape}; every size must be at least 1")
    block = BLOCKS[raw.kind]
    if math.prod(raw.shape[-1:]) % block.size:
        raise BadModelFile(
            f"tensor {raw.name} of kind {raw.kind} has shape {raw.shape}; "
            f"its rows must be multiples of {block.size}"
        )
    needed = stored_bytes(raw.kind, raw.shape)
    if raw.data.size != needed:
        raise BadModelFile(
            f"tensor {raw.name} ({raw.kind}, {raw.shape}) has {raw.data.size:,} bytes; {needed:,} are needed"
        )


def kind_held(raw: RawTensor, weights: str, table: bool = False) -> str:
    """The kind of `RawTensor` to which the mode converts a matrix; `table`: an embedding, or the output.

    Raises ValueError for an unknown mode.
    """
    kind = _wanted(raw, weights, table)
    return "F32" if kind == "BF16" and raw.shape[-1] % 2 else kind


def _wanted(raw: RawTensor, weights: str, table: bool) -> str:
    divisible = raw.shape[-1] % QUANT_GROUP == 0
    match weights:
        case "auto":
            return raw.kind
        case "f32":
            return "F32"
        case "bf16":
            return "BF16"
        case "int8":
            return "Q8_0" if divisible else raw.kind
        case "q4":
            wanted = "Q8_0" if table else "Q4_1"
            return wanted if divisible and bits_of(raw.kind) > bits_of(wanted) else raw.kind
    raise ValueError(f"unknown weights {weights!r}; known: auto, f32, bf16, int8, q4")


def bits_of(kind: str) -> float:
    """Bits of a weight of this kind in a file, including its share of the scales."""
    block = BLOCKS[kind]
    return 8 * block.num_bytes / block.size
