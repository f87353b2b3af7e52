"""The bytes of the KV pool on the CPU, and the layout of a block, for both CPU backends.

    block      | layer 0 | layer 1 | ... | padding to 4 KiB |
    layer      | K | V |                      f32, bf16
               | K | V | scales |             int8

    K          [kv heads][D][B]         tokens along the vector lanes: scores need no horizontal sums
    V          [kv heads][B][D']        D' is D rounded up to 16, so that whole vectors can be loaded
    K, bf16    [kv heads][D/2][B][2]    two dimensions of a token are one 32-bit word
    V, bf16    [kv heads][B/2][D'][2]   two tokens of a dimension are one word
    K, int8    [kv heads][D/4][B][4]    code + 128: four dimensions of a token are one word
    scales     [K, V][kv heads][B]      float32: largest magnitude of the token's head / 127, of 22 bits

One block is one contiguous range for all layers, so moving it between tiers is one transfer.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.kernels.contract import Bytes, Floats, KvPool, KvShape

LANES = 16
PARTITION = 256  # positions
_PAGE = 4096
_ELEMENT_BYTES = {"f32": 4, "bf16": 2, "int8": 1}

Halves = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class FloatViews:
    """K (N, kv heads, D, B) and V (N, kv heads, B, D) of one layer."""

    k: Floats
    v: Floats


@dataclass(frozen=True, slots=True)
class BrainViews:
    """K (N, kv heads, D / 2, B, 2) and V (N, kv heads, B / 2, D, 2) of one layer, as bits of bfloat16."""

    k: Halves
    v: Halves


@dataclass(frozen=True, slots=True)
class CodeViews:
    """K (N, kv heads, D / 4, B, 4), V (N, kv heads, B, D), scales (N, 2, kv heads, B): K's, V's."""

    k: Bytes
    v: Codes
    scales: Floats


def layout_of(shape: KvShape) -> _native.KvLayout:
    """The native module's form of the shape; raises ValueError for sizes that the kernels do not support."""
    return _native.KvLayout(
        shape.num_layers, shape.num_kv_heads, shape.head_size, shape.block_size, shape.kind
    )


def allocate_pool(shape: KvShape, num_blocks: int) -> KvPool:
    """Reserve `num_blocks` blocks; the system backs a page with memory when it is first written.

    Raises ValueError for unsupported sizes, MemoryError when the address space is refused.
    """
    bytes_per_block = layout_of(shape).bytes_per_block
    try:
        # Private: the system would not free pages of a shared mapping.
        memory = mmap.mmap(-1, num_blocks * bytes_per_block, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_blocks:,} blocks of {bytes_per_block:,} bytes: {error}") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, np.uint8).reshape(num_blocks, bytes_per_block)
    return KvPool(shape, num_blocks, bytes_per_block, data, memory)


def discard_blocks(pool: KvPool, first: int, last: int) -> None:
    """Free the memory of blocks [first, last), if the system supports that."""
    if hasattr(mmap, "MADV_DONTNEED") and first < last:
        size = pool.bytes_per_block  # a multiple of the page
        pool.memory.madvise(mmap.MADV_DONTNEED, first * size, (last - first) * size)


def padded_head_size(shape: KvShape) -> int:
    """D rounded up to whole vectors: the row length of V."""
    return -(-shape.head_size // LANES) * LANES


def bytes_per_layer(shape: KvShape) -> int:
    """Bytes of a layer of a block, by the layout above."""
    slots = shape.num_kv_heads * shape.block_size
    scales = 2 * 4 if shape.kind == "int8" else 0
    return slots * ((shape.head_size + padded_head_size(shape)) * _ELEMENT_BYTES[shape.kind] + scales)


def partition_bytes(shape: KvShape) -> int:
    """Bytes that attention reads of a layer at once: the positions of a partition, or of a larger block."""
    return max(PARTITION // shape.block_size, 1) * bytes_per_layer(shape)


def bytes_per_block(shape: KvShape) -> int:
    """Bytes of a block (the native module computes it independently)."""
    return -(-shape.num_layers * bytes_per_layer(shape) // _PAGE) * _PAGE


def float_views(pool: KvPool, layer: int) -> FloatViews:
    """One layer of an f32 pool: writable views of its bytes."""
    shape = pool.shape
    assert shape.kind == "f32", "other kinds have views of their own"
    heads, size, block = shape.num_kv_heads, shape.head_size, shape.block_size
    k, v = (x.view(np.float32) for x in _keys_and_values(pool, layer))
    v = v.reshape(-1, heads, block, padded_head_size(shape))
    return FloatViews(k.reshape(-1, heads, size, block), v[..., :size])


def brain_views(pool: KvPool, layer: int) -> BrainViews:
    """One layer of a bf16 pool: writable views of its bytes."""
    shape = pool.shape
    assert shape.kind == "bf16", "other kinds have views of their own"
    heads, size, block = shape.num_kv_heads, shape.head_size, shape.block_size
    k, v = (x.view(np.uint16) for x in _keys_and_values(pool, layer))
    v = v.reshape(-1, heads, block // 2, padded_head_size(shape), 2)
    return BrainViews(k.reshape(-1, heads, size // 2, block, 2), v[..., :size, :])


def code_views(pool: KvPool, layer: int) -> CodeViews:
    """One layer of an int8 pool: writable views of its bytes."""
    shape = pool.shape
    assert shape.kind == "int8", "only int8 has codes"
    heads, size, block = shape.num_kv_heads, shape.head_size, shape.block_size
    k, value_bytes = _keys_and_values(pool, layer)
    v = value_bytes.view(np.int8).reshape(-1, heads, block, padded_head_size(shape))
    stop = (layer + 1) * bytes_per_layer(shape)
    scales = pool.data[:, stop - 2 * heads * block * 4 : stop].view(np.float32)
    return CodeViews(
        k.reshape(-1, heads, size // 4, block, 4), v[..., :size], scales.reshape(-1, 2, heads, block)
    )


def _keys_and_values(pool: KvPool, layer: int) -> tuple[Bytes, Bytes]:
    """The bytes (N, ...) of a layer's K and of its V in every block."""
    shape = pool.shape
    slots = shape.num_kv_heads * shape.block_size * _ELEMENT_BYTES[shape.kind]
    start = layer * bytes_per_layer(shape)
    middle = start + slots * shape.head_size
    return pool.data[:, start:middle], pool.data[:, middle : middle + slots * padded_head_size(shape)]
