"""Host memory as an offload tier: blocks in an arena, lost with the process; alone, or in front of a disk.

    TieredStore   slots [ 0 ... H - 1 | H ... H + D - 1 ]
                          HostStore     DiskStore

It is useful where pool memory is scarce: with a GPU, or on a CPU where the pool is kept small on purpose.
There is no index and no checksum: no other process writes to this memory, and no restart finds it.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from octavo.errors import ConfigError
from octavo.executor.disk import DiskStore
from octavo.executor.disk_layout import Extents

_PAGE = 4096


class HostStore:
    """A `BlockStore` in memory. A page of the arena becomes resident when first written. One thread makes all
    calls."""

    def __init__(self, num_bytes: int, block_bytes: int) -> None:
        """Reserve the slots. Raises ConfigError when not even one fits or the address space is refused."""
        slot_bytes = -(-block_bytes // _PAGE) * _PAGE
        self.num_slots = num_bytes // slot_bytes
        self.block_bytes = block_bytes
        if self.num_slots < 1:
            raise ConfigError(
                f"host_cache is {num_bytes:,} bytes; allowed: 0 (none), or {slot_bytes:,} (one block) or more"
            )
        try:
            num_bytes = (self.num_slots + 1) * slot_bytes  # one slot more: `align` moves them
            arena = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"host_cache of {num_bytes:,} bytes is refused by the system: {error}; allowed: what it can "
                "reserve; give --host-cache less"
            ) from None
        self._arena = np.frombuffer(arena, np.uint8)
        self._slots = self._arena[: self.num_slots * slot_bytes].reshape(self.num_slots, slot_bytes)
        self._names: list[bytes | None] = [None] * self.num_slots

    @property
    def memory(self) -> memoryview:
        """All slots."""
        return self._slots.reshape(-1).data

    def align(self, address: int, num_bytes: int) -> None:
        """Align each slot to multiples of `num_bytes` from `address`. Nothing may be stored yet; does nothing
        if slots have another size."""
        slot_bytes = self._slots.shape[1]
        if num_bytes == slot_bytes:
            first = (address - self._arena.ctypes.data) % slot_bytes
            slots = self._arena[first : first + self.num_slots * slot_bytes]
            self._slots = slots.reshape(self.num_slots, slot_bytes)

    def host_of(self, slot: int) -> HostStore:
        """All slots lie here."""
        return self

    def begin_write(self, slot: int) -> memoryview:
        """The slot's memory, for writing; until `end_write` the slot is empty."""
        self._names[slot] = None
        return self._slots[slot, : self.block_bytes].data

    def end_write(self, slot: int, name: bytes) -> None:
        """The block is there."""
        self._names[slot] = name

    def find(self, slot: int, name: bytes) -> memoryview | None:
        """The slot's block; None where it holds another."""
        return self._slots[slot, : self.block_bytes].data if self._names[slot] == name else None

    def entries(self) -> list[tuple[bytes, int]]:
        """Name and slot of all stored blocks."""
        return [(name, slot) for slot, name in enumerate(self._names) if name is not None]

    def write(self, slot: int, name: bytes, data: memoryview) -> bool:
        """Put a block into a slot, replacing its content. Never fails."""
        self._slots[slot, : self.block_bytes] = np.frombuffer(data, np.uint8)
        self._names[slot] = name
        return True

    def read(self, slot: int, name: bytes, into: memoryview) -> bool:
        """Copy a block into `into`; False, and nothing is copied, where the slot holds another name."""
        if self._names[slot] != name:
            return False
        np.frombuffer(into, np.uint8)[:] = self._slots[slot, : self.block_bytes]
        return True

    def verify(self, slot: int, name: bytes) -> bool:
        """Whether the slot holds that name: nothing here is damaged."""
        return self._names[slot] == name

    @property
    def extents(self) -> None:
        """There is no file."""

    def forget(self, slot: int) -> None:
        """Empty a slot."""
        self._names[slot] = None

    def is_listed(self, slot: int, name: bytes) -> bool:
        """No restart finds anything here."""
        return False

    def find_vanished(self) -> Path | None:
        """There are no files."""
        return None

    def commit(self) -> bool:
        """Nothing here survives."""
        return True

    def take_given_up(self) -> list[bytes]:
        """Nothing is lost here."""
        return []

    def close(self) -> None:
        """Free the memory. No call may follow."""
        self._slots = np.empty((0, 0), np.uint8)
        self._arena = np.empty(0, np.uint8)
        self._names = []


class TieredStore:
    """Host memory and disk as one `BlockStore`: host slots first."""

    def __init__(self, host: HostStore, disk: DiskStore) -> None:
        assert host.block_bytes == disk.block_bytes
        self.num_slots = host.num_slots + disk.num_slots
        self._host, self._disk = host, disk

    def host_of(self, slot: int) -> HostStore | None:
        """The place of a slot in host memory."""
        return self._host if slot < self._host.num_slots else None

    def entries(self) -> list[tuple[bytes, int]]:
        """Name and slot of all stored blocks, the longest unused of each store first."""
        on_disk = [(name, self._host.num_slots + slot) for name, slot in self._disk.entries()]
        return self._host.entries() + on_disk

    def write(self, slot: int, name: bytes, data: memoryview) -> bool:
        """Store a block; False if that failed."""
        store, own = self._place(slot)
        return store.write(own, name, data)

    def read(self, slot: int, name: bytes, into: memoryview) -> bool:
        """Whether `into` now holds the bytes that were written under that name; else it holds garbage."""
        store, own = self._place(slot)
        return store.read(own, name, into)

    def verify(self, slot: int, name: bytes) -> bool:
        """Whether `read` would find the block."""
        store, own = self._place(slot)
        return store.verify(own, name)

    @property
    def extents(self) -> Extents:
        """The disk's extents, which number its slots from 0: slot H of both is slot 0 there."""
        return self._disk.extents

    def forget(self, slot: int) -> None:
        """Empty a slot."""
        store, own = self._place(slot)
        store.forget(own)

    def is_listed(self, slot: int, name: bytes) -> bool:
        """Whether a restart finds that name in the slot."""
        store, own = self._place(slot)
        return store.is_listed(own, name)

    def find_vanished(self) -> Path | None:
        """A file of the disk store that was removed, moved or replaced."""
        return self._disk.find_vanished()

    def commit(self) -> bool:
        """Make what is on disk survive a crash."""
        return self._disk.commit()

    def take_given_up(self) -> list[bytes]:
        """The disk store's lost names."""
        return self._disk.take_given_up()

    def close(self) -> None:
        """Commit, and close both."""
        self._disk.close()
        self._host.close()

    def _place(self, slot: int) -> tuple[HostStore | DiskStore, int]:
        num_host = self._host.num_slots
        return (self._host, slot) if slot < num_host else (self._disk, slot - num_host)
