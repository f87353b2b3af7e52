"""A small store, what is put into it, and what must be found in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tests.doubles.faults import FaultPlan, FaultyFiles

from octavo.executor.disk import DiskStore
from octavo.files import Files

BLOCK = 5000  # no multiple of a page: a slot is 8192
SLOT = 8192
FINGERPRINT = bytes(range(32))
NAMESPACE = FINGERPRINT.hex()[:32]


class ArrayBlocks:
    """Blocks in an array (N, BLOCK)."""

    bytes_per_block = BLOCK

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def read_block(self, block: int) -> memoryview:
        return memoryview(self.data[block]).toreadonly()

    def read_into(self, places: Sequence[tuple[int, memoryview]]) -> None:
        for block, place in places:
            place[:] = self.read_block(block)

    def write_from(self, places: Sequence[tuple[int, memoryview]]) -> None:
        for block, place in places:
            memoryview(self.data[block])[:] = place

    def pin(self, memory: memoryview) -> None:
        self.pinned = memory.nbytes

    def unpin(self) -> None:
        self.pinned = 0

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        return fill(memoryview(self.data[block]))


def name_of(block: int) -> bytes:
    return hashlib.blake2b(str(block).encode(), digest_size=32).digest()


def bytes_of(name: bytes) -> bytes:
    return hashlib.shake_128(name).digest(BLOCK)


def open_store(folder: Path, files: Files | None = None, num_slots: int = 4) -> DiskStore:
    return DiskStore.open(folder, num_slots * SLOT, BLOCK, FINGERPRINT, files)


def put(store: DiskStore, slot: int, block: int) -> bool:
    return store.write(slot, name_of(block), memoryview(bytes_of(name_of(block))))


def fetch(store: DiskStore, slot: int, name: bytes) -> bytes | None:
    into = bytearray(BLOCK)
    return bytes(into) if store.read(slot, name, memoryview(into)) else None


def listed(store: DiskStore) -> dict[int, bytes]:
    return {slot: name for name, slot in store.entries()}


def blocks_in(*pairs: tuple[int, int]) -> dict[int, bytes]:
    return {slot: name_of(block) for slot, block in pairs}


def check_reads_back(store: DiskStore) -> dict[int, bytes]:
    """Every name that is listed reads back right."""
    found = listed(store)
    for slot, name in found.items():
        assert fetch(store, slot, name) == bytes_of(name), f"slot {slot}"
    return found


def check_never_wrong(store: DiskStore) -> int:
    """Every name that is listed reads back right or not at all; how many do."""
    answers = [(name, fetch(store, slot, name)) for name, slot in store.entries()]
    assert all(answer in (None, bytes_of(name)) for name, answer in answers)
    return sum(answer is not None for _, answer in answers)


def filled(folder: Path, num_slots: int = 4) -> None:
    store = open_store(folder, num_slots=num_slots)
    for slot in range(num_slots):
        assert put(store, slot, slot)
    store.close()


def store_with(folder: Path, plan: FaultPlan) -> tuple[DiskStore, FaultyFiles]:
    files = FaultyFiles(Files(), plan)
    return open_store(folder, files), files
