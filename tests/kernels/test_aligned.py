"""Where weights lie: side by side in large pieces, each at a cache line."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.packed import CACHE_LINE, Chunks


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Chunks:
    monkeypatch.setattr(Chunks, "CHUNK_BYTES", 4096)
    return Chunks()


def test_what_is_taken_begins_at_cache_lines_and_nothing_overlaps(chunks: Chunks) -> None:
    taken = [chunks.take(count) for count in (1, 63, 64, 65, 1000, 0, 900, 1023, 700, 1024, 5000) * 3]
    for number, memory in enumerate(taken):
        memory[:] = number
    for number, memory in enumerate(taken):
        assert memory.ctypes.data % CACHE_LINE == 0
        assert (memory == number).all()


def test_neighbours_share_a_chunk_and_what_is_large_has_its_own_memory(chunks: Chunks) -> None:
    first, second, large, third = chunks.take(100), chunks.take(100), chunks.take(4096), chunks.take(100)
    assert second.ctypes.data == first.ctypes.data + 128
    assert third.ctypes.data == second.ctypes.data + 128
    assert large.size == 4096
    assert not np.shares_memory(large, first.base)
