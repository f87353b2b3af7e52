"""Host memory keeps what it was given while the process lives; in front of a disk the slots of both are one
space."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.executor.store import BLOCK, ArrayBlocks, bytes_of, name_of, open_store
from tests.waiting import wait_until

from octavo.errors import ConfigError
from octavo.executor.host import HostStore, TieredStore
from octavo.executor.transfers import BlockStore, TransferWorker
from octavo.types import Move, Transfer, TransferDone

SLOT = 8192


def put(store: BlockStore, slot: int, block: int) -> bool:
    return store.write(slot, name_of(block), memoryview(bytes_of(name_of(block))))


def fetch(store: BlockStore, slot: int, block: int) -> bytes | None:
    into = bytearray(BLOCK)
    return bytes(into) if store.read(slot, name_of(block), memoryview(into)) else None


def test_a_block_reads_back_under_its_own_name_alone() -> None:
    store = HostStore(3 * SLOT, BLOCK)
    assert store.num_slots == 3
    assert store.entries() == []
    assert put(store, 1, 7)
    assert fetch(store, 1, 7) == bytes_of(name_of(7))
    assert fetch(store, 1, 8) is None
    assert fetch(store, 0, 7) is None
    assert put(store, 1, 8)
    assert fetch(store, 1, 7) is None
    assert store.entries() == [(name_of(8), 1)]
    store.forget(1)
    assert fetch(store, 1, 8) is None
    assert store.entries() == []
    assert store.commit()
    store.close()


@pytest.mark.parametrize("num_bytes", [0, SLOT - 1, 2**62])
def test_what_cannot_be_had_is_refused_in_words(num_bytes: int) -> None:
    with pytest.raises(ConfigError, match=r"host_cache .*allowed: "):
        HostStore(num_bytes, BLOCK)


def test_slots_of_host_and_disk_are_one_space_and_a_restart_finds_the_disk_s(tmp_path: Path) -> None:
    store = TieredStore(HostStore(2 * SLOT, BLOCK), open_store(tmp_path))
    assert store.num_slots == 6
    for slot in range(6):
        assert put(store, slot, slot)
    assert sorted(store.entries(), key=lambda entry: entry[1]) == [(name_of(i), i) for i in range(6)]
    assert all(fetch(store, slot, slot) == bytes_of(name_of(slot)) for slot in range(6))
    store.forget(0)
    store.forget(5)
    assert {slot for _, slot in store.entries()} == {1, 2, 3, 4}
    store.close()
    store = TieredStore(HostStore(2 * SLOT, BLOCK), open_store(tmp_path))
    assert {slot for _, slot in store.entries()} == {2, 3, 4}
    store.close()


def test_a_move_takes_the_bytes_along_before_its_slot_is_written_again(tmp_path: Path) -> None:
    store = TieredStore(HostStore(SLOT, BLOCK), open_store(tmp_path))
    answers: dict[int, TransferDone] = {}
    is_done = threading.Semaphore(0)

    def answer(done: TransferDone) -> None:
        answers[done.transfer_id] = done
        is_done.release()

    worker = TransferWorker(store, answer)
    pool = np.zeros((3, BLOCK), np.uint8)
    for block in range(2):
        pool[block] = np.frombuffer(bytes_of(name_of(block)), np.uint8)
    worker.serve(ArrayBlocks(pool))
    worker.begin(
        [
            Transfer(1, 0, 0, name_of(0), Move.STORE),
            Transfer(2, -1, 3, name_of(0), Move.MOVE, source=0),
            Transfer(3, 1, 0, name_of(1), Move.STORE),
            Transfer(4, 2, 3, name_of(0), Move.LOAD),
            Transfer(5, -1, 4, name_of(5), Move.MOVE, source=0),  # it is not there
        ]
    )
    for _ in range(5):
        assert is_done.acquire(timeout=20)
    assert {i: done.ok for i, done in answers.items()} == {1: True, 2: True, 3: True, 4: True, 5: False}
    assert pool[2].tobytes() == bytes_of(name_of(0))
    assert fetch(store, 0, 1) == bytes_of(name_of(1))
    worker.close()


class Recording(ArrayBlocks):
    """Notes how many blocks each call moves."""

    def __init__(self, pool: np.ndarray) -> None:
        super().__init__(pool)
        self.calls: list[tuple[str, int]] = []

    def read_into(self, places: Sequence[tuple[int, memoryview]]) -> None:
        self.calls.append(("down", len(places)))
        super().read_into(places)

    def write_from(self, places: Sequence[tuple[int, memoryview]]) -> None:
        self.calls.append(("up", len(places)))
        super().write_from(places)


def test_moves_to_and_from_host_memory_are_batches_in_their_order(tmp_path: Path) -> None:
    store, done = TieredStore(HostStore(8 * SLOT, BLOCK), open_store(tmp_path)), list[TransferDone]()
    gate = threading.Event()

    def end(one: TransferDone) -> None:
        done.append(one)
        assert gate.wait(10)  # after the first: all others are there when the worker goes on

    pool = np.arange(8 * BLOCK, dtype=np.uint32).astype(np.uint8).reshape(8, BLOCK)
    before, blocks = pool.copy(), Recording(pool)
    worker = TransferWorker(store, end)
    worker.serve(blocks)
    worker.begin([Transfer(99, 0, 5, name_of(5), Move.STORE)])
    wait_until(lambda: done)
    moves = [Transfer(i, i, i, name_of(i), Move.STORE) for i in range(3)]
    moves.append(Transfer(3, 3, store.num_slots - 1, name_of(3), Move.STORE))  # to disk
    moves += [Transfer(4, 4, 4, name_of(4), Move.STORE)]
    moves += [Transfer(5 + i, 5 + i, i, name_of(i if i != 1 else 9), Move.LOAD) for i in range(3)]
    worker.begin(moves)
    gate.set()
    worker.sync([]).result(10)
    assert blocks.calls == [("down", 1), ("down", 3), ("down", 1), ("up", 2)]
    assert [(one.transfer_id, one.ok) for one in done[1:]] == [(i, i != 6) for i in range(8)]
    assert (pool[5] == before[0]).all()
    assert (pool[6] == before[6]).all()  # the slot holds another block
    assert (pool[7] == before[2]).all()
    worker.close()
