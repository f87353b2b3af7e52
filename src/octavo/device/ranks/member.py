"""A rank other than 0: it runs rank 0's commands, in order.

    Load      -->  its part of each weight (`model/split.py`)
    Allocate  -->  rows of its own, and a pool of its KV heads: block b is rank 0's block b
    Prepare, Run ...  -->  the same steps over the same rows, with exchanges in `RankGroup`

Rows hold only tokens and tables: rank 0 samples, and broadcasts the tokens.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from octavo.device.arithmetic import Arithmetic
from octavo.device.backend import TorchBackend
from octavo.device.block_copies import DeviceBlocks
from octavo.device.layout import allocate_pool
from octavo.device.ranks.collectives import RankGroup
from octavo.device.ranks.messages import (
    Allocate,
    Answer,
    AnyMessage,
    Append,
    Close,
    CopyBlocks,
    Fence,
    ForkRow,
    Load,
    Measure,
    MoveBlocks,
    Prepare,
    Project,
    Release,
    Run,
    Warm,
    WarmMore,
    decode_shape,
    ints,
)
from octavo.device.rows import DeviceRows, Writes
from octavo.errors import OctavoError
from octavo.executor.runner import kv_shape
from octavo.kernels.contract import Bytes, Ints, KvShape
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.model.spec import Model
from octavo.model.split import Split


class RankMember:
    """One rank's weights, rows and blocks. One thread runs commands, another moves blocks."""

    def __init__(self, backend: TorchBackend, group: RankGroup, shared_fd: int) -> None:
        """`shared_fd`: the file of the ranks' shared memory."""
        self._backend, self._group, self._shared_fd = backend, group, shared_fd
        self._places: Bytes = np.empty((0, 0), np.uint8)
        self.split = Split(group.rank, group.num_ranks)
        self.is_loading = False
        self._model: Model | None = None
        self._arithmetic: Arithmetic | None = None
        self._rows: DeviceRows | None = None
        self._blocks: DeviceBlocks | None = None
        self._fenced, self._fence_came = 0, threading.Condition()

    def carry_out(self, message: AnyMessage) -> Answer | None:
        """Run a command; returns its answer, if any. Raises the device's errors, which end the rank."""
        match message:
            case Prepare(indices, values, shape):
                self._own_arithmetic.prepare(decode_shape(shape), _ReceivedWrites(indices, values))
            case Run():
                self._own_arithmetic.hidden()
            case Project(num_rows):
                hidden = self._own_arithmetic.new_hidden(num_rows)
                self._own_arithmetic.logits(self._group.broadcast(hidden))
            case Append(num_tokens):
                columns = torch.empty((3, num_tokens), dtype=torch.int64, device=self._backend.torch_device)
                rows, positions, tokens = self._group.broadcast(columns)
                self._own_arithmetic.sampler.append(rows, positions, tokens)
            case CopyBlocks(sources, targets):
                self._own_arithmetic.copy_blocks(sources, targets)
            case ForkRow(parent, child):
                assert self._rows is not None
                self._rows.copy_row(parent, child)
            case Fence(number):
                self._fence(number)
            case Load() | Allocate() | Release() | Measure():
                return self._set_up(message)
            case Warm(step_tokens):
                self._own_arithmetic.warm(step_tokens, lambda text: None)
            case WarmMore():
                self._own_arithmetic.warm_more()
            case Close():
                pass
        return None

    def move(self, move: MoveBlocks) -> Answer:
        """Copy the rank's share of blocks to, or from, its part of each place in the shared memory."""
        assert self._blocks is not None
        with self._fence_came:
            came = self._fence_came.wait_for(lambda: self._fenced >= move.fence, 2 * self._group.timeout_s)
        assert came, "a transfer waits for a plan that did not come"
        move_share(self._blocks, self._places, self.split.rank, move.blocks, is_store=move.is_store)
        return Answer()

    @property
    def _own_arithmetic(self) -> Arithmetic:
        assert self._arithmetic is not None, "nothing is allocated"
        return self._arithmetic

    def _set_up(self, message: Load | Allocate | Release | Measure) -> Answer:
        """Load; rank 0 reports a refusal. Its tensors outlive the inference mode of steps."""
        try:
            with torch.inference_mode(mode=False):
                match message:
                    case Load(name, path, kind, context_length):
                        return self._load(ModelPath(name, Path(path), kind), context_length)
                    case Allocate():
                        return self._allocate(message)
                    case Release():
                        return self._release()
                    case Measure():
                        return Answer(self._backend.memory_available())
        except (OctavoError, torch.OutOfMemoryError) as error:
            return Answer(error=str(error).partition("\n")[0])

    def _load(self, path: ModelPath, context_length: int | None) -> Answer:
        self.is_loading = True
        loaded = load_model(path, self._backend.weights, context_length, split=self.split)
        loaded.tokenizer.close()
        self._model, self.is_loading = loaded.model, False
        return Answer(loaded.model.weights.num_bytes)

    def _allocate(self, order: Allocate) -> Answer:
        assert self._model is not None, "no model is loaded"
        self._release()  # free the earlier model first
        device = self._backend.torch_device
        shape = share_of(kv_shape(self._model, order.block_size, order.kv), self.split)
        pool = allocate_pool(shape, order.num_blocks, device)
        self._rows = DeviceRows(order.max_rows, order.context_length, order.block_size, device)
        self._arithmetic = self._backend.new_arithmetic(self._model, pool, self._rows, self._group)
        self._blocks = DeviceBlocks(pool)
        self._places = map_places(self._shared_fd, self._blocks.bytes_per_block * self.split.num_ranks)
        self._blocks.pin(self._places.reshape(-1).data)
        return Answer()

    def _release(self) -> Answer:
        if self._blocks is not None:
            self._blocks.unpin()
        self._arithmetic = self._blocks = self._rows = None
        self._places = np.empty((0, 0), np.uint8)
        return Answer()

    def _fence(self, number: int) -> None:
        assert self._blocks is not None
        self._blocks.fence()
        with self._fence_came:
            self._fenced = number
            self._fence_came.notify_all()


def share_of(whole: KvShape, split: Split) -> KvShape:
    """The rank's part of each block: its KV heads."""
    return replace(whole, num_kv_heads=len(split.kv_heads(whole.num_kv_heads)))


def move_share(
    blocks: DeviceBlocks, shared: Bytes, rank: int, numbers: Sequence[int], *, is_store: bool
) -> None:
    """Block i and the rank's part of place i of the shared memory: (places, bytes of a place)."""
    share = blocks.bytes_per_block
    places = [
        (block, shared[place, rank * share : (rank + 1) * share].data) for place, block in enumerate(numbers)
    ]
    if is_store:
        blocks.read_into(places)
    else:
        blocks.write_from(places)


class _ReceivedWrites(Writes):
    """A plan's writes, as received."""

    def __init__(self, indices: bytes, values: bytes) -> None:
        super().__init__()
        self._given = ints(indices), ints(values)

    def arrays(self) -> tuple[Ints, Ints]:
        """Indices and values (n,)."""
        return self._given


def map_places(fd: int, num_bytes: int) -> Bytes:
    """The ranks' shared memory as places for whole blocks of so many bytes: (places, bytes)."""
    size = os.fstat(fd).st_size
    return np.frombuffer(mmap.mmap(fd, size), np.uint8, size // num_bytes * num_bytes).reshape(-1, num_bytes)
