"""The bytes of the KV pool on the CPU, and where things lie in a block. Both CPU backends share it.

    block      | layer 0 | layer 1 | ... | padding to 4 KiB |
    layer      | K | V |                      f32, bf16
               | K | V | scales |             int8

    K          [kv heads][D][B]         tokens along the vector lanes: scores need no horizontal sums
    V          [kv heads][B][D']        D' is D rounded up to 16, so that whole vectors can be loaded
    K, int8    [kv heads][D/4][B][4]    code + 128: a token's four dimensions are one 32-bit word
    scales     [K, V][kv heads][B]      float32: largest magnitude of the token's head / 127

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
_PAGE = 4096
_ELEMENT_BYTES = {"f32": 4, "bf16": 2, "int8": 1}

Halves = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class FloatViews:
    """K (N, kv heads, D, B) and V (N, kv heads, B, D) of one layer; bfloat16 as its bits."""

    k: Floats | Halves
    v: Floats | Halves


@dataclass(frozen=True, slots=True)
class CodeViews:
    """K (N, kv heads, D / 4, B, 4), V (N, kv heads, B, D), scales (N, 2, kv heads, B): K's, V's."""

    k: Bytes
    v: Codes
    scales: Floats


def layout_of(shape: KvShape) -> _native.KvLayout:
    """The native module's form of the shape; raises ValueError for sizes that the kernels do not know."""
    return _native.KvLayout(
        shape.num_layers, shape.num_kv_heads, shape.head_size, shape.block_size, shape.kind
    )


def allocate_pool(shape: KvShape, num_blocks: int) -> KvPool:
    """Reserve `num_blocks` blocks; the system backs a page with memory when it is first written.

    Raises ValueError for sizes that the kernels do not know, MemoryError when the address space is refused.
    """
    bytes_per_block = layout_of(shape).bytes_per_block
    try:
        # Private: of a shared mapping the system would keep the pages that are given back.
        memory = mmap.mmap(-1, num_blocks * bytes_per_block, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_blocks:,} blocks of {bytes_per_block:,} bytes: {error}") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, np.uint8).reshape(num_blocks, bytes_per_block)
    return KvPool(shape, num_blocks, bytes_per_block, data, memory)


def discard_blocks(pool: KvPool, first: int, last: int) -> None:
    """Give the memory of blocks [first, last) back to the system, where it can take it."""
    if hasattr(mmap, "MADV_DONTNEED") and first < last:
        size = pool.bytes_per_block  # a multiple of the page
        pool.memory.madvise(mmap.MADV_DONTNEED, first * size, (last - first) * size)


def padded_head_size(shape: KvShape) -> int:
    """D rounded up to whole vectors: the row length of V."""
    return -(-shape.head_size // LANES) * LANES


def bytes_per_layer(shape: KvShape) -> int:
    """What a layer of a block takes, computed from the drawing above."""
    slots = shape.num_kv_heads * shape.block_size
    scales = 2 * 4 if shape.kind == "int8" else 0
    return slots * ((shape.head_size + padded_head_size(shape)) * _ELEMENT_BYTES[shape.kind] + scales)


def bytes_per_block(shape: KvShape) -> int:
    """What a block takes (the native module computes it for itself)."""
    return -(-shape.num_layers * bytes_per_layer(shape) // _PAGE) * _PAGE


def float_views(pool: KvPool, layer: int) -> FloatViews:
    """One layer of an f32 or bf16 pool: writable views of its bytes."""
    shape = pool.shape
    assert shape.kind in ("f32", "bf16"), "codes have views of their own"
    as_floats = shape.kind == "f32"
    numbers: Floats | Halves = pool.data.view(np.float32) if as_floats else pool.data.view(np.uint16)
    heads, size, block = shape.num_kv_heads, shape.head_size, shape.block_size
    per_key, per_value = heads * size * block, heads * block * padded_head_size(shape)
    start = layer * (per_key + per_value)
    k = numbers[:, start : start + per_key].reshape(-1, heads, size, block)
    v = numbers[:, start + per_key : start + per_key + per_value].reshape(
        -1, heads, block, padded_head_size(shape)
    )
    return FloatViews(k, v[..., :size])


def code_views(pool: KvPool, layer: int) -> CodeViews:
    """One layer of an int8 pool: writable views of its bytes."""
    shape = pool.shape
    assert shape.kind == "int8", "only int8 has codes"
    heads, size, block, padded = (
        shape.num_kv_heads,
        shape.head_size,
        shape.block_size,
        padded_head_size(shape),
    )
    start = layer * bytes_per_layer(shape)
    v_start = start + heads * size * block
    scales_start = v_start + heads * block * padded
    k = pool.data[:, start:v_start].reshape(-1, heads, size // 4, block, 4)
    v = pool.data[:, v_start:scales_start].view(np.int8).reshape(-1, heads, block, padded)
    scales = pool.data[:, scales_start : scales_start + 2 * heads * block * 4].view(np.float32)
    return CodeViews(k, v[..., :size], scales.reshape(-1, 2, heads, block))
