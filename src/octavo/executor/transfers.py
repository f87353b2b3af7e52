"""The transfer worker: moves blocks between the pool and the offload store, on a thread of its own.

A transfer begins after the copies of its plan, so every earlier plan has finished. Its block has a holder
until the result is in the engine's inbox, so nothing else touches its bytes.

Transfers run in submission order. Consecutive ones between the pool and host memory in one direction are one
batch, which a device copies at the link's rate. Disk writes are committed half a second later, or by a sync:
a commit waits for the medium.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from octavo.errors import SessionRefused
from octavo.executor.disk_layout import Extents
from octavo.executor.forward import BlockMover
from octavo.executor.host import HostStore
from octavo.files import vanished_message
from octavo.kernels.contract import SlotMemory
from octavo.types import Move, Transfer, TransferDone

log = logging.getLogger("octavo.transfers")

BATCH_MAX = 64  # transfers
COMMIT_AFTER_S = 0.5  # after the first uncommitted transfer


class BlockStore(Protocol):
    """Bytes of blocks in numbered slots: `DiskStore`, `HostStore`, or both as a `TieredStore`."""

    @property
    def num_slots(self) -> int:
        """Slots are numbered from 0."""

    def entries(self) -> list[tuple[bytes, int]]:
        """Name and slot of all stored blocks."""

    def forget(self, slot: int) -> None:
        """Empty a slot."""

    def write(self, slot: int, name: bytes, data: memoryview) -> bool:
        """Store a block; False if that failed."""

    def read(self, slot: int, name: bytes, into: memoryview) -> bool:
        """Whether `into` now holds the bytes that were written under that name; else it holds garbage."""

    def verify(self, slot: int, name: bytes) -> bool:
        """Whether `read` would find the block. It is read and not kept; a damaged one is forgotten."""

    @property
    def extents(self) -> Extents | None:
        """The places of disk slots in their file, numbered from 0 without the host slots; None: no disk."""

    def host_of(self, slot: int) -> HostStore | None:
        """The place of a slot in host memory; None: it is not there."""

    def is_listed(self, slot: int, name: bytes) -> bool:
        """Whether a restart finds that name in the slot."""

    def find_vanished(self) -> Path | None:
        """A file of the store that was removed, moved or replaced: nothing written to it survives."""

    def commit(self) -> bool:
        """Make what was written survive a crash."""

    def take_given_up(self) -> list[bytes]:
        """Names lost since the last call because a commit failed: they cannot be read."""

    def close(self) -> None:
        """Commit, and close the files."""


class _Clear:
    """Empty the store."""


@dataclass(frozen=True, slots=True)
class _Sync:
    """Commit, and report which of these slots and names a restart would not find."""

    wanted: Sequence[tuple[int, bytes]]
    lost: Future[list[bytes]]


_Work = Transfer | _Clear | _Sync | None  # None: the end


class TransferWorker:
    """One thread, one store. `done` is called on it for every transfer."""

    def __init__(self, store: BlockStore, done: Callable[[TransferDone], None]) -> None:
        self._store = store
        self._done = done
        self._blocks: BlockMover | None = None
        self._vanished: Path | None = None  # the file reported last
        self._passing = bytearray()  # a block being copied from slot to slot
        self._queue: queue.Queue[_Work] = queue.Queue()
        self._ahead: deque[_Work] = deque(maxlen=1)  # dequeued, and not part of the batch before it
        self._commit_due: float | None = None  # when the next commit is due
        self._thread = threading.Thread(target=self._run, name="octavo-transfers", daemon=True)
        self._thread.start()

    def serve(self, blocks: BlockMover) -> None:
        """Start the worker over these blocks: once, before the first transfer."""
        self._blocks = blocks
        host = self._store.host_of(0)
        if host is not None:
            blocks.pin(host.memory)

    def slot_memory(self, anchor: tuple[int, int] | None = None) -> SlotMemory:
        """The slots as attention reads them, aligned to the anchor (`Forward.anchor`). Before anything is
        stored."""
        if anchor is not None and (found := self._store.host_of(0)) is not None:
            found.align(*anchor)
        host, extents, num_slots = self._store.host_of(0), self._store.extents, self._store.num_slots
        memory = None if host is None else np.frombuffer(host.memory, np.uint8)
        num_host = 0 if host is None else host.num_slots
        slot_bytes = 0 if host is None or memory is None else memory.size // host.num_slots
        if extents is None:
            return SlotMemory(memory, slot_bytes, num_host, -1, 1, 1, num_slots)
        return SlotMemory(
            memory,
            slot_bytes,
            num_host,
            extents.fd,
            extents.lanes,
            extents.pieces,
            num_host + extents.num_slots,
        )

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """Queue transfers. They run in this order; a load waits for the few stores before it."""
        for transfer in transfers:
            self._queue.put(transfer)

    def sync(self, wanted: Sequence[tuple[int, bytes]]) -> Future[list[bytes]]:
        """Sync data, then index, after all earlier transfers. The future's result: those names that a restart
        would not find in their slots; SessionRefused if it would find no file."""
        lost: Future[list[bytes]] = Future()
        self._queue.put(_Sync(wanted, lost))
        return lost

    def clear(self) -> None:
        """Wait for all earlier transfers, and empty the store."""
        self._queue.put(_Clear())
        self._queue.join()

    def drain(self) -> None:
        """Wait for all earlier transfers."""
        if self._thread.is_alive():
            self._queue.join()

    def close(self) -> None:
        """Finish queued transfers, commit, close the files. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
            if self._blocks is not None:
                self._blocks.unpin()
            self._store.close()

    def _run(self) -> None:
        while (work := self._take()) is not None:
            if isinstance(work, _Clear):
                self._forget_everything()
                self._queue.task_done()
            elif isinstance(work, _Sync):
                self._sync(work)
                self._queue.task_done()
            else:
                self._move_all(self._batch_from(work))
        self._queue.task_done()

    def _take(self) -> _Work:
        """Wait for the next item. Commits meanwhile, when that is due."""
        while True:
            left_s = None if self._commit_due is None else self._commit_due - time.monotonic()
            try:
                if left_s is not None and left_s <= 0.0:
                    self._commit()
                    continue
                return self._ahead.pop() if self._ahead else self._queue.get(timeout=left_s)
            except queue.Empty:
                continue

    def _batch_from(self, first: Transfer) -> list[Transfer]:
        """The transfer, and those after it that can be done with it."""
        batch = [first]
        while len(batch) < BATCH_MAX and self._is_host_move(first):
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if not isinstance(following, Transfer) or not self._fits_batch(following, first):
                self._ahead.append(following)
                break
            batch.append(following)
        return batch

    def _fits_batch(self, transfer: Transfer, first: Transfer) -> bool:
        return transfer.move is first.move and self._is_host_move(transfer)

    def _is_host_move(self, transfer: Transfer) -> bool:
        """Whether a block moves between the pool and host memory."""
        is_move = transfer.move in (Move.LOAD, Move.STORE)
        return is_move and self._store.host_of(transfer.slot) is not None

    def _move_all(self, batch: Sequence[Transfer]) -> None:
        """Run a batch, and report the end of each transfer."""
        started = time.perf_counter()
        try:
            ended = self._move_hosted(batch) if self._is_host_move(batch[0]) else [self._move(batch[0])]
            seconds = (time.perf_counter() - started) / len(batch)
        except Exception:
            log.exception("a transfer failed")
            ended, seconds = [False] * len(batch), 0.0
        self._report_given_up()
        for transfer, ok in zip(batch, ended, strict=True):
            if transfer.move is not Move.FORGET:
                self._done(TransferDone(transfer.transfer_id, ok, seconds))
        if self._commit_due is None:
            self._commit_due = time.monotonic() + COMMIT_AFTER_S
        for _ in batch:
            self._queue.task_done()

    def _move_hosted(self, batch: Sequence[Transfer]) -> list[bool]:
        """Move blocks between pool and host memory, all in one direction; whether each arrived."""
        blocks, host = self._blocks, self._store.host_of(batch[0].slot)
        assert blocks is not None
        assert host is not None
        if batch[0].move is Move.STORE:
            blocks.read_into([(one.block, host.begin_write(one.slot)) for one in batch])
            for one in batch:
                host.end_write(one.slot, one.name)
            return [True] * len(batch)
        places = [host.find(one.slot, one.name) for one in batch]
        found = zip(batch, places, strict=True)
        blocks.write_from([(one.block, place) for one, place in found if place is not None])
        return [place is not None for place in places]

    def _forget_everything(self) -> None:
        try:
            for slot in range(self._store.num_slots):
                self._store.forget(slot)
        except Exception:
            log.exception("the offload tier could not be emptied")
        self._commit()

    def _sync(self, sync: _Sync) -> None:
        self._commit()
        if not sync.lost.set_running_or_notify_cancel():
            return  # the caller has gone
        try:
            sync.lost.set_result(self._find_lost(sync.wanted))
        except Exception as error:  # noqa: BLE001 - raised at the caller
            sync.lost.set_exception(error)

    def _find_lost(self, wanted: Sequence[tuple[int, bytes]]) -> list[bytes]:
        before, self._vanished = self._vanished, self._store.find_vanished()
        if self._vanished is not None:
            if before is None:
                log.error("%s", vanished_message(self._vanished))
            raise SessionRefused(vanished_message(self._vanished))
        return [name for slot, name in wanted if not self._store.is_listed(slot, name)]

    def _commit(self) -> None:
        self._commit_due = None
        try:
            self._store.commit()
        except Exception:
            log.exception("the offload tier could not commit")
        self._report_given_up()

    def _report_given_up(self) -> None:
        if given_up := self._store.take_given_up():
            self._done(TransferDone(0, False, lost=tuple(given_up)))

    def _move(self, transfer: Transfer) -> bool:
        blocks, store = self._blocks, self._store
        assert blocks is not None
        if transfer.move is Move.FORGET:
            store.forget(transfer.slot)
            return True
        if transfer.move is Move.VERIFY:
            return store.verify(transfer.slot, transfer.name)
        if transfer.move is Move.MOVE:
            self._passing = self._passing or bytearray(blocks.bytes_per_block)
            data = memoryview(self._passing)
            is_there = store.read(transfer.source, transfer.name, data)
            return is_there and store.write(transfer.slot, transfer.name, data.toreadonly())
        slot, name, block = transfer.slot, transfer.name, transfer.block
        if transfer.move is Move.LOAD:
            return blocks.write_block(block, partial(store.read, slot, name))
        return store.write(slot, name, blocks.read_block(block))
