"""Bytes that begin at a cache line: a vector load that crosses two lines costs double."""

from __future__ import annotations

import numpy as np

from octavo.kernels.contract import Bytes

CACHE_LINE = 64


def aligned_bytes(count: int, *, zeroed: bool = False) -> Bytes:
    """`count` bytes, uninitialised or zero. Untouched pages of a large array are not resident.

    Raises MemoryError when the address space is refused.
    """
    allocate = np.zeros if zeroed else np.empty
    memory = allocate(count + CACHE_LINE - 1, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + count]
