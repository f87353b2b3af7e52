"""The transfer worker: moves blocks between the pool and the store below, on a thread of its own.

A transfer begins behind the copies of its plan, so every plan made before it has finished; its block has a
holder until the answer is in the engine's inbox, so nothing else touches its bytes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from octavo.errors import SessionRefused
from octavo.executor.forward import BlockMover
from octavo.executor.host import HostStore
from octavo.files import vanished_in_words
from octavo.types import Move, Transfer, TransferDone

log = logging.getLogger("octavo.transfers")


class BlockStore(Protocol):
    """Bytes of blocks in numbered slots: `DiskStore`, `HostStore`, or both as a `TieredStore`."""

    @property
    def num_slots(self) -> int:
        """Slots are numbered from 0."""

    def entries(self) -> list[tuple[bytes, int]]:
        """Name and slot of all that is there."""

    def forget(self, slot: int) -> None:
        """What is in the slot is not listed any more."""

    def write(self, slot: int, name: bytes, data: memoryview) -> bool:
        """Whether the bytes are there."""

    def read(self, slot: int, name: bytes, into: memoryview) -> bool:
        """Whether `into` now holds the bytes that were written under that name; else it holds garbage."""

    def host_of(self, slot: int) -> HostStore | None:
        """Where the slot lies in host memory; None: it does not."""

    def is_listed(self, slot: int, name: bytes) -> bool:
        """Whether a restart finds that name in the slot."""

    def find_vanished(self) -> Path | None:
        """A file of it that is not where it was: nothing written to it survives."""

    def commit(self) -> bool:
        """Make what was written survive a crash."""

    def close(self) -> None:
        """Commit, and let go of the files."""


class _Clear:
    """Forget everything."""


@dataclass(frozen=True, slots=True)
class _Sync:
    """Commit, and tell which of these slots and names a restart would not find."""

    wanted: Sequence[tuple[int, bytes]]
    lost: Future[list[bytes]]


class TransferWorker:
    """One thread, one store. `done` is called on it for every transfer."""

    def __init__(self, store: BlockStore, done: Callable[[TransferDone], None]) -> None:
        self._store = store
        self._done = done
        self._blocks: BlockMover | None = None
        self._vanished: Path | None = None  # what was told of last
        self._passing = bytearray()  # a block on its way from slot to slot
        self._queue: queue.Queue[Transfer | _Clear | _Sync | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="octavo-transfers", daemon=True)
        self._thread.start()

    def serve(self, blocks: BlockMover) -> None:
        """Where the blocks' bytes are: once, before the first transfer."""
        self._blocks = blocks
        host = self._store.host_of(0)
        if host is not None:
            blocks.pin(host.memory)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """Queue them. They happen in this order, one at a time; a load waits for the few stores before it."""
        for transfer in transfers:
            self._queue.put(transfer)

    def sync(self, wanted: Sequence[tuple[int, bytes]]) -> Future[list[bytes]]:
        """Wait for data, then index, to be on the medium, behind all that was begun before. Those of the
        names that a restart would not find in their slots; SessionRefused where it would find no file."""
        lost: Future[list[bytes]] = Future()
        self._queue.put(_Sync(wanted, lost))
        return lost

    def clear(self) -> None:
        """Wait until everything that was begun has ended, and forget all that is below."""
        self._queue.put(_Clear())
        self._queue.join()

    def close(self) -> None:
        """End what was begun, commit, let go of the files. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
            if self._blocks is not None:
                self._blocks.unpin()
            self._store.close()

    def _run(self) -> None:
        while (transfer := self._queue.get()) is not None:
            if isinstance(transfer, _Clear):
                self._forget_everything()
                self._queue.task_done()
                continue
            if isinstance(transfer, _Sync):
                self._sync(transfer)
                self._queue.task_done()
                continue
            begun = time.perf_counter()
            try:
                ok = self._move(transfer)
                seconds = time.perf_counter() - begun
            except Exception:
                log.exception("a transfer failed")
                ok, seconds = False, 0.0
            if transfer.move is not Move.FORGET:
                self._done(TransferDone(transfer.transfer_id, ok, seconds))
            if self._queue.empty():  # when no transfer waits for the medium
                self._commit()
            self._queue.task_done()
        self._queue.task_done()

    def _forget_everything(self) -> None:
        try:
            for _, slot in self._store.entries():
                self._store.forget(slot)
        except Exception:
            log.exception("the tier below could not be emptied")
        self._commit()

    def _sync(self, sync: _Sync) -> None:
        self._commit()
        if not sync.lost.set_running_or_notify_cancel():
            return  # the caller has gone
        try:
            sync.lost.set_result(self._find_lost(sync.wanted))
        except Exception as error:  # noqa: BLE001 - the caller is told
            sync.lost.set_exception(error)

    def _find_lost(self, wanted: Sequence[tuple[int, bytes]]) -> list[bytes]:
        before, self._vanished = self._vanished, self._store.find_vanished()
        if self._vanished is not None:
            if before is None:
                log.error("%s", vanished_in_words(self._vanished))
            raise SessionRefused(vanished_in_words(self._vanished))
        return [name for slot, name in wanted if not self._store.is_listed(slot, name)]

    def _commit(self) -> None:
        try:
            self._store.commit()
        except Exception:
            log.exception("the tier below could not commit")

    def _move(self, transfer: Transfer) -> bool:
        blocks, store = self._blocks, self._store
        assert blocks is not None
        if transfer.move is Move.FORGET:
            store.forget(transfer.slot)
            return True
        if transfer.move is Move.MOVE:
            self._passing = self._passing or bytearray(blocks.bytes_per_block)
            data = memoryview(self._passing)
            is_there = store.read(transfer.source, transfer.name, data)
            return is_there and store.write(transfer.slot, transfer.name, data.toreadonly())
        slot, name, block = transfer.slot, transfer.name, transfer.block
        host = store.host_of(slot)
        if transfer.move is Move.LOAD:
            if host is not None:
                return host.lend(slot, name, partial(blocks.write_from, block))
            return blocks.write_block(block, partial(store.read, slot, name))
        if host is not None:
            return host.fill(slot, name, partial(blocks.read_into, block))
        return store.write(slot, name, blocks.read_block(block))
