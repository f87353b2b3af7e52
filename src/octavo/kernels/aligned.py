"""Bytes that begin at a cache line: a vector load that crosses two lines costs double."""

from __future__ import annotations

import threading

import numpy as np

from octavo.kernels.contract import Bytes

CACHE_LINE = 64


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
