"""Steps by size: launched at first, captured when a size comes back, replayed from then on.

    up to 1,024 tokens      padded to the next of few sizes. Decoding is captured the second time; other
                            sizes, of which there are many, the 17th: a capture costs as much as many launches
    more                    launched, one kernel after the other

A size counts tokens, chunks, those of one token, the tiles of longer ones and the wanted logits. So decoding,
guessed tokens and prompts' chunks among them are replayed alike. The arrays of a size have fixed places: a
step is one small copy, one kernel that writes them there with the plan's changes, and a replay.

Before the first request the likeliest sizes run without a token in them (`warm`): kernels are compiled,
captures are made, and what a step needs of memory is known to be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from octavo.device.compiled_step import (
    AttentionSizes,
    CompiledStep,
    StepSize,
    arrays_of,
    size_of,
    step_in,
)
from octavo.device.flash import FlashAttention
from octavo.device.graphs import GraphMemory, Replay
from octavo.device.lowering import Program
from octavo.device.packing import pack
from octavo.device.rows import DeviceRows, Writes, carry
from octavo.device.triton.attention import AttentionScratch, allocate_scratch
from octavo.device.triton.launch import padded
from octavo.device.triton.plans import write_plan
from octavo.executor.batch import StepShape
from octavo.types import StepWay
from octavo.units import padded_positions

_REPLAYED_MAX = 1024  # tokens; steps of more are worth their launches
_KEPT_SIZES = 128  # whose places and captures are kept
_LAUNCHED_FIRST = 16  # steps of a size that is no decoding, before it is captured
_EMPTY = np.empty(0, np.int32)
_NO_CHUNKS = StepShape(_EMPTY, _EMPTY, np.zeros(1, np.int32), _EMPTY, _EMPTY, _EMPTY)


@dataclass(slots=True)
class _Sized:
    """Steps of one size: the place of their arrays, their launches, and how these are started."""

    place: Tensor
    step: CompiledStep
    num_steps: int = 0
    replay: Replay | None = None


class SizedSteps:
    """A program's steps over the device's rows."""

    def __init__(
        self, program: Program, sizes: AttentionSizes, rows: DeviceRows, flash: FlashAttention | None
    ) -> None:
        self.way = StepWay.LAUNCHED  # of the step that ran last
        self._program, self._sizes, self._rows, self._flash = program, sizes, rows, flash
        self._device = rows.state.device
        self._memory = GraphMemory(self._device)
        self._partials = self._allocate_partials()
        self._kept: dict[StepSize, _Sized] = {}  # that which was used last is the last one
        self._prepared: tuple[StepSize, _Sized, int]  # the next step; how many of its rows are wanted

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows, and bring the step's arrays to their place."""
        state, device = self._rows.state, self._device
        if not shape.starts.size:
            indices, values = carry(writes.arrays(), device)
            write_plan(state, indices, values)
            return
        size = size_of(shape, self._sizes)
        is_kept = size.tokens <= _REPLAYED_MAX
        size = size.rounded() if is_kept else size
        packed = pack(arrays_of(shape, size, self._sizes))
        indices, values, arrays = carry([*writes.arrays(), packed], device)
        if is_kept:
            sized = self._of(size)
            write_plan(state, indices, values, sized.place, arrays)
        else:
            sized = _Sized(arrays, self._step_in(arrays, size))
            write_plan(state, indices, values)
        self._prepared = size, sized, shape.logit_rows.size

    def run(self) -> Tensor:
        """(R, E): the wanted rows of the step that was prepared last."""
        size, sized, num_wanted = self._prepared
        return self._started(size, sized)[:num_wanted]

    def decoding_sizes(self) -> Iterator[StepSize]:
        """All sizes of decoding, the likeliest first."""
        counts = {padded_positions(count) for count in range(1, self._rows.max_rows + 1)}
        counts = {count for count in counts if count <= _REPLAYED_MAX}
        powers = [count for count in sorted(counts) if count & (count - 1) == 0 or count == max(counts)]
        for count in dict.fromkeys([*powers, *sorted(counts)]):
            yield StepSize(count, count, 0, count, 0)

    def is_warm(self, size: StepSize) -> bool:
        """Whether its steps are replayed."""
        return size in self._kept and self._kept[size].replay is not None

    def warm(self, size: StepSize) -> Tensor:
        """Run steps of a size that hold no token, until they are captured, and a replay: (size, E)."""
        sized = self._of(size)
        while sized.replay is None:
            self._started(size, sized)
        return self._started(size, sized)

    def try_largest(self, num_tokens: int) -> None:
        """Run a prompt's step of so many tokens that holds none: what it needs of memory is there."""
        tiles = -(-num_tokens // self._sizes.tokens_per_tile)
        size = StepSize(num_tokens, 1, 1, 0, tiles)
        place = self._empty_arrays(size)
        self._program.run(self._step_in(place, size))

    def _started(self, size: StepSize, sized: _Sized) -> Tensor:
        if size not in self._kept:
            self.way = StepWay.LAUNCHED
            return self._program.run(sized.step)
        launched_first = 1 if size.is_decoding else _LAUNCHED_FIRST
        if sized.replay is not None:
            self.way = StepWay.LAUNCHED if sized.replay.has_failed else StepWay.REPLAYED
        else:
            is_new = sized.num_steps in (0, launched_first)
            self.way = StepWay.FIRST if is_new else StepWay.WARMING
        if sized.num_steps == launched_first:
            body = partial(self._program.run, sized.step)
            sized.replay = Replay(body, self._device, self._memory, str(size))
        sized.num_steps += 1
        return self._program.run(sized.step) if sized.replay is None else sized.replay()

    def _of(self, size: StepSize) -> _Sized:
        """What there is for the size; what was not used for longest goes."""
        sized = self._kept.pop(size, None)
        if sized is None:
            place = self._empty_arrays(size)
            sized = _Sized(place, self._step_in(place, size))
        if len(self._kept) == _KEPT_SIZES:
            if self._device.type == "cuda":  # its graph may be running
                torch.cuda.current_stream(self._device).synchronize()
            del self._kept[next(iter(self._kept))]
        self._kept[size] = sized
        return sized

    def _empty_arrays(self, size: StepSize) -> Tensor:
        """Of a step without tokens."""
        return torch.from_numpy(pack(arrays_of(_NO_CHUNKS, size, self._sizes))).to(self._device)

    def _step_in(self, arrays: Tensor, size: StepSize) -> CompiledStep:
        return step_in(arrays, size, self._sizes, self._rows, self._flash, self._partials)

    def _allocate_partials(self) -> AttentionScratch | None:
        """For the largest list that is split: graphs hold on to it, so it never moves."""
        sizes = self._sizes
        largest = min(padded(self._rows.max_rows), sizes.split_max)
        if not largest:
            return None
        items = largest * sizes.partitions_max
        return allocate_scratch(items, 1, sizes.num_heads, sizes.num_kv_heads, sizes.head_size, self._device)
