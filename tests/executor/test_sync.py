"""A sync answers when data, then index, are on the medium, and names what is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.doubles.faults import Fault, FaultKind
from tests.executor.store import BLOCK, ArrayBlocks, name_of, open_store, put, store_with

from octavo.executor.transfers import TransferWorker
from octavo.types import Move, Transfer, TransferDone


def test_a_block_is_listed_when_it_was_committed_and_until_it_is_forgotten(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert put(store, 1, 7)
    assert not store.is_listed(1, name_of(7))
    assert store.commit()
    assert store.is_listed(1, name_of(7))
    assert not store.is_listed(1, name_of(8))
    assert not store.is_listed(2, name_of(7))
    store.forget(1)
    assert not store.is_listed(1, name_of(7))
    store.close()


def worker_over(store) -> tuple[TransferWorker, list[TransferDone]]:  # type: ignore[no-untyped-def]
    done: list[TransferDone] = []
    worker = TransferWorker(store, done.append)
    pool = np.arange(3 * BLOCK, dtype=np.uint32).astype(np.uint8).reshape(3, BLOCK)
    worker.serve(ArrayBlocks(pool))
    return worker, done


def stores(count: int) -> list[Transfer]:
    return [Transfer(i, i, i, name_of(i), Move.STORE) for i in range(count)]


def test_a_sync_comes_behind_what_was_begun_and_a_restart_finds_all_of_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    worker, done = worker_over(store)
    worker.begin(stores(3))
    wanted = [(i, name_of(i)) for i in range(3)]
    assert worker.sync([*wanted, (3, name_of(3)), (0, name_of(9))]).result(10) == [name_of(3), name_of(9)]
    assert [one.ok for one in done] == [True] * 3
    worker.close()
    again = open_store(tmp_path)
    assert sorted(again.entries()) == sorted((name, slot) for slot, name in wanted)
    again.close()


def test_a_sync_that_the_medium_refuses_names_what_is_lost(tmp_path: Path) -> None:
    armed = False

    def plan(call: int, operation: str) -> Fault | None:
        return Fault(FaultKind.EIO) if armed and operation == "fdatasync" else None

    store, _ = store_with(tmp_path, plan)
    worker, _ = worker_over(store)
    worker.begin(stores(1))
    assert worker.sync([(0, name_of(0))]).result(10) == []
    armed = True
    worker.begin(stores(3)[1:])
    wanted = [(i, name_of(i)) for i in range(3)]
    assert worker.sync(wanted).result(10) == [name_of(1), name_of(2)]
    armed = False
    worker.close()


def test_who_left_before_a_sync_was_answered_stops_no_one(tmp_path: Path) -> None:
    worker, done = worker_over(open_store(tmp_path))
    gone = worker.sync([(0, name_of(0))])
    gone.cancel()
    worker.begin(stores(2))
    assert worker.sync([(0, name_of(0)), (1, name_of(1))]).result(10) == []
    assert [one.ok for one in done] == [True] * 2
    worker.close()
