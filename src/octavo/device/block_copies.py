"""Copies blocks between a device and host memory, on a stream of its own, concurrently with steps.

    read    after the earlier plans (an event)  ->  copy to pinned memory  ->  wait for it  ->  its bytes
    write   fill pinned memory                  ->  copy to the block      ->  wait for it  ->  done

The transfer thread waits without the GIL. Between the device and pinned host memory many blocks are copied
with one wait: a wait takes as long as a copy of 2 MB. A transfer begins after the copies of its plan, and a
holder keeps its block until the end, so no step writes to it meanwhile. On torch's CPU there is no stream,
and copies are synchronous.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch

from octavo.device.devices import current
from octavo.device.layout import DevicePool
from octavo.kernels.contract import Bytes
from octavo.units import format_bytes

log = logging.getLogger("octavo.device")


class DeviceBlocks:
    """A `BlockMover` over a device's pool. Only the transfer thread makes calls, except `fence`."""

    def __init__(self, pool: DevicePool) -> None:
        self.pool = pool
        is_cuda = pool.data.device.type == "cuda"
        self.bytes_per_block = pool.layout.bytes_per_block
        self._buffer = torch.empty(self.bytes_per_block, dtype=torch.uint8, pin_memory=is_cuda)
        self._stream = torch.cuda.Stream(pool.data.device) if is_cuda else None
        self._begun: torch.cuda.Event | None = None
        self._pinned = 0  # the address of pinned host memory

    def fence(self) -> None:
        """Order later transfers after all work on the caller's stream so far."""
        if self._stream is not None:
            started = torch.cuda.Event()
            started.record(torch.cuda.current_stream(self.pool.data.device))
            self._begun = started

    def read_block(self, block: int) -> memoryview:
        """The bytes of a block, valid until the next call."""
        self._copy(self._buffer, self.pool.data[block])
        return _bytes_of(self._buffer).toreadonly()

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        """Have `fill` write its bytes."""
        is_there = fill(_bytes_of(self._buffer))
        if is_there:
            self._copy(self.pool.data[block], self._buffer)
        return is_there

    def read_into(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Read many blocks directly into host memory, fastest if it is pinned."""
        self._copy_each([(_as_tensor(place), self.pool.data[block]) for block, place in places])

    def write_from(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Write many blocks directly from host memory."""
        self._copy_each([(self.pool.data[block], _as_tensor(place)) for block, place in places])

    def pin(self, memory: memoryview) -> None:
        """Have the driver pin host memory, so that the device copies by DMA."""
        if self._stream is None or not memory.nbytes:
            return
        address = np.frombuffer(memory, np.uint8).ctypes.data
        with current(self.pool.data.device):
            failure = int(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0))
        if not failure:
            self._pinned = address
        else:
            self._swallow_error()
            log.warning(
                "%s of host memory could not be pinned (CUDA error %d): blocks move slower; give a smaller "
                "--host-cache, or raise the limit of locked memory (ulimit -l)",
                format_bytes(memory.nbytes),
                failure,
            )

    def unpin(self) -> None:
        """Unpin the memory before it is freed."""
        if self._pinned:
            with current(self.pool.data.device):
                torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = 0

    def _swallow_error(self) -> None:
        """Clear the driver's sticky error by a small call, so that no later call reports it."""
        with suppress(RuntimeError), current(self.pool.data.device):
            torch.zeros(1, device=self.pool.data.device)

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Done when this returns."""
        self._copy_each([(target, source)])

    def _copy_each(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Targets and sources: all done when this returns."""
        if self._stream is None:
            for target, source in pairs:
                target.copy_(source)
            return
        with current(self.pool.data.device):
            if self._begun is not None:
                self._stream.wait_event(self._begun)
            try:
                with torch.cuda.stream(self._stream):
                    for target, source in pairs:
                        target.copy_(source, non_blocking=True)
            finally:  # if one fails, the earlier ones still move
                self._stream.synchronize()


def _bytes_of(buffer: torch.Tensor) -> memoryview:
    array: Bytes = buffer.numpy()
    return array.data


def _as_tensor(place: memoryview) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(place, np.uint8))
