"""The bytes of the KV pool on the CPU, and where things lie in a block. Both CPU backends share it.

    block   | layer 0: K, V | layer 1: K, V | ... | padding to 4 KiB |        float32
    K       [kv heads][D][B]          tokens along the vector lanes: scores need no horizontal sums
    V       [kv heads][B][D']         D' is D rounded up to 16, so that whole vectors can be loaded

One block is one contiguous range for all layers, so moving it between tiers is one transfer.
"""

from __future__ import annotations

import numpy as np

from octavo import _native
from octavo.kernels.contract import Floats, KvPool, KvShape

LANES = 16
_PAGE = 4096


def layout_of(shape: KvShape) -> _native.KvLayout:
    """The native module's form of the shape; raises ValueError for sizes that the kernels do not know."""
    return _native.KvLayout(shape.num_layers, shape.num_kv_heads, shape.head_size, shape.block_size)


def allocate_pool(shape: KvShape, num_blocks: int) -> KvPool:
    """Reserve `num_blocks` blocks; the system backs a page with memory when it is first written.

    Raises ValueError for sizes that the kernels do not know, MemoryError when the address space is refused.
    """
    bytes_per_block = layout_of(shape).bytes_per_block
    # A large zeroed array comes from an anonymous mapping: its untouched pages are not resident.
    data = np.zeros((num_blocks, bytes_per_block), np.uint8)
    return KvPool(shape, num_blocks, bytes_per_block, data)


def padded_head_size(shape: KvShape) -> int:
    """D rounded up to whole vectors: the row length of V."""
    return -(-shape.head_size // LANES) * LANES


def bytes_per_block(shape: KvShape) -> int:
    """What a block takes, computed from the drawing above (the native module computes it for itself)."""
    floats = (
        shape.num_layers * shape.num_kv_heads * shape.block_size * (shape.head_size + padded_head_size(shape))
    )
    return -(-floats * 4 // _PAGE) * _PAGE


def views(pool: KvPool, layer: int) -> tuple[Floats, Floats]:
    """K (N, kv heads, D, B) and V (N, kv heads, B, D) of one layer: writable views of the pool."""
    shape = pool.shape
    heads, size, block, padded = (
        shape.num_kv_heads,
        shape.head_size,
        shape.block_size,
        padded_head_size(shape),
    )
    floats = pool.data.view(np.float32)
    per_key, per_value = heads * size * block, heads * block * padded
    start = layer * (per_key + per_value)
    k = floats[:, start : start + per_key].reshape(-1, heads, size, block)
    v = floats[:, start + per_key : start + per_key + per_value].reshape(-1, heads, block, padded)
    return k, v[..., :size]
