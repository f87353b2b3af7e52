"""Memory that a pool has before anybody writes to it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from octavo import _native
from octavo.kernels import prefault as ready
from octavo.kernels.contract import KvPool, KvShape
from octavo.kernels.pool import allocate_pool
from octavo.kernels.prefault import PagePrefaulter

LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes pages ahead")


def resident_pages(pool: KvPool, first: int, last: int) -> int:
    """Pages with memory among those of blocks [first, last), as the system tells."""
    address, size = pool.data.ctypes.data, pool.bytes_per_block
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek((address + first * size) // 4096 * 8)
        entries = np.frombuffer(file.read((last - first) * size // 4096 * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum())


@pytest.fixture
def pool() -> KvPool:
    return allocate_pool(KvShape(30, 3, 64, 16, "bf16"), 400)  # 141 MiB


@LINUX_ONLY
def test_the_first_blocks_have_memory_and_the_last_ones_do_not(pool: KvPool) -> None:
    pool.data[3, 5] = 7
    PagePrefaulter(pool, 100).wait()
    assert resident_pages(pool, 0, 100) == 100 * pool.bytes_per_block // 4096
    assert resident_pages(pool, 110, 400) == 0  # but for what a huge page has beyond them
    assert (pool.data[3, 5], int(pool.data[:100].sum())) == (7, 7)


def test_none_is_asked_for_after_a_stop(pool: KvPool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    first, stopped = threading.Event(), threading.Event()

    def take(data: np.ndarray) -> bool:
        asked.append(data.size)
        first.set()
        return stopped.wait(10)

    monkeypatch.setattr(ready._native, "take_pages", take)
    readying = PagePrefaulter(pool, 400)
    assert first.wait(10)
    stopping = threading.Thread(target=readying.stop)
    stopping.start()
    while not readying._stopping.is_set():
        pass
    stopped.set()
    stopping.join(10)
    assert 1 <= len(asked) <= len(readying._threads)  # the pieces that had begun
    readying.stop()
    assert readying.wait(0.0)


def test_a_system_that_gives_none_is_asked_once_by_each_thread(
    pool: KvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ready._native, "take_pages", lambda data: bool(asked.append(data.size)))
    readying = PagePrefaulter(pool, 400)
    assert readying.wait()
    assert 1 <= len(asked) <= len(readying._threads)


def test_pieces_cover_every_byte_once(pool: KvPool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ready._native, "take_pages", lambda data: asked.append(data.size) is None)
    PagePrefaulter(pool, 399).wait()
    assert sum(asked) == 399 * pool.bytes_per_block


def test_what_is_not_there_when_the_wait_is_over_comes_when_the_processor_is_idle(
    pool: KvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, order = threading.Event(), list[str]()
    monkeypatch.setattr(_native, "num_threads", lambda: 1)
    monkeypatch.setattr(ready, "_set_idle_priority", lambda: order.append("idle"))

    def take(data: np.ndarray) -> bool:
        order.append("take")
        return go_on.wait(10)

    monkeypatch.setattr(ready._native, "take_pages", take)
    readying = PagePrefaulter(pool, 400)
    assert not readying.wait(0.0)
    go_on.set()
    assert readying.wait()
    # The first piece may have been asked for after the wait was over, but none before that but the first.
    assert order.index("idle") <= 1
    assert order.count("idle") == 1
    assert order.count("take") == -(-400 * pool.bytes_per_block // ready.PIECE_BYTES)


@LINUX_ONLY
def test_an_idle_thread_gives_way_to_all_others() -> None:
    found: list[int] = []

    def look() -> None:
        ready._set_idle_priority()
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [os.SCHED_IDLE]
    assert os.sched_getscheduler(0) != os.SCHED_IDLE  # the thread alone


def test_less_than_a_page_is_left_alone() -> None:
    assert _native.take_pages(np.empty(0, np.uint8))
    if sys.platform == "linux":
        assert _native.take_pages(np.zeros(100, np.uint8))
