"""Steps by size: launched at first, captured when a size recurs, replayed from then on.

    up to 1,024 tokens      launched at first, kernel by kernel. Decoding is captured the second time; other
                            sizes, which are more numerous, the 17th: a capture costs as much as many
                            launches. From then on steps are padded to the size, and replayed
    more                    launched

A size is the numbers of tokens, chunks, one-token chunks, tiles of longer ones, and logits. So decoding,
drafts and chunks of prompts mixed with them are replayed in the same way. The arrays of a size have fixed
places: a step is one small copy, one kernel that writes them there with the plan's changes, and a replay.

Before the first request the likeliest sizes run without tokens (`warm`): that compiles kernels, makes
captures, and shows that the memory of a step suffices.
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
from octavo.device.rows import DeviceRows, Writes, carry, pack
from octavo.device.triton.attention import AttentionScratch, allocate_scratch
from octavo.device.triton.launch import padded
from octavo.device.triton.plans import write_plan
from octavo.executor.batch import StepShape
from octavo.types import StepWay
from octavo.units import padded_positions

_REPLAYED_MAX = 1024  # tokens; in larger steps the launches cost little
_KEPT_SIZES = 128  # sizes with places and captures
_COUNTED_SIZES = 4096  # sizes without a capture whose uses are counted
_LAUNCHED_FIRST = 16  # steps of a size before its capture; of decoding one
_EMPTY = np.empty(0, np.int32)
_NO_CHUNKS = StepShape(_EMPTY, _EMPTY, np.zeros(1, np.int32), _EMPTY, _EMPTY, _EMPTY)


@dataclass(slots=True)
class _SizedStep:
    """Steps of one size: the place of their arrays, their launches, and the capture of these."""

    place: Tensor
    step: CompiledStep
    replay: Replay | None = None


class SizedSteps:
    """A program's steps over the device's rows."""

    def __init__(
        self, program: Program, sizes: AttentionSizes, rows: DeviceRows, flash: FlashAttention | None
    ) -> None:
        self.way = StepWay.LAUNCHED  # of the last step
        self._program, self._sizes, self._rows, self._flash = program, sizes, rows, flash
        self._device = rows.state.device
        self._memory = GraphMemory(self._device)
        self._partials = self._allocate_partials()
        self._kept: dict[StepSize, _SizedStep] = {}  # captured, in LRU order
        self._num_launched: dict[StepSize, int] = {}  # steps of sizes that are not captured
        self._tried: set[int] = set()  # padded tokens of steps that have run: their kernels are compiled
        self._prepared: tuple[StepSize, _SizedStep, int]  # the next step; its number of logit rows

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows, and copy the step's arrays to their place."""
        state, device = self._rows.state, self._device
        if not shape.starts.size:
            indices, values = carry(writes.arrays(), device)
            write_plan(state, indices, values)
            return
        size, own = size_of(shape, self._sizes), True
        if self._is_captured(size):
            size, own = size.rounded(), False
        packed = pack(arrays_of(shape, size, self._sizes))
        indices, values, arrays = carry([*writes.arrays(), packed], device)
        if own:
            sized = _SizedStep(arrays, self._step_in(arrays, size))
            write_plan(state, indices, values)
        else:
            sized = self._keep(size, packed.size)
            write_plan(state, indices, values, sized.place, arrays)
        self._prepared = size, sized, shape.logit_rows.size

    def run(self) -> Tensor:
        """(R, E): the logit rows of the prepared step. Its size may be captured after it."""
        size, sized, num_wanted = self._prepared
        self.way = self._way_of(size, sized)
        if sized.replay is not None:
            return sized.replay()[:num_wanted]
        made = self._program.run(sized.step)
        if self._kept.get(size) is sized:
            self._capture(size, sized)
        return made[:num_wanted]

    def decoding_sizes(self) -> Iterator[StepSize]:
        """All sizes of decoding: the largest, then the others, the likeliest first."""
        counts = {padded_positions(count) for count in range(1, self._rows.max_rows + 1)}
        ascending = sorted(count for count in counts if count <= _REPLAYED_MAX)
        powers = [count for count in ascending if count & (count - 1) == 0]
        for count in dict.fromkeys([ascending[-1], *powers, *ascending]):
            yield StepSize(count, count, 0, count, 0)

    def is_warm(self, size: StepSize) -> bool:
        """Whether its steps are replayed."""
        return size in self._kept

    def warm(self, size: StepSize) -> Tensor:
        """Capture a size, and replay a step of it without tokens: (size, E)."""
        empty = self._empty_arrays(size)
        sized = self._keep(size, empty.numel())
        sized.place.copy_(empty)  # otherwise an earlier step's arrays would be computed and stored again
        if sized.replay is None:
            self._capture(size, sized)
        assert sized.replay is not None
        return sized.replay()

    def try_largest(self, num_tokens: int) -> None:
        """Run a padded prompt step of so many tokens, to check that its memory suffices."""
        tiles = -(-num_tokens // self._sizes.tokens_per_tile)
        size = StepSize(num_tokens, 1, 1, 0, tiles)
        place = self._empty_arrays(size)
        self._program.run(self._step_in(place, size))

    def _is_captured(self, size: StepSize) -> bool:
        """Whether a step is padded to the next size, which is captured, or will be after this step."""
        if size.tokens > _REPLAYED_MAX:
            return False
        size = size.rounded()
        if size in self._kept:
            return True
        count = self._num_launched.get(size, 0)
        if len(self._num_launched) == _COUNTED_SIZES:
            self._num_launched.clear()
        self._num_launched[size] = count + 1
        return count >= (1 if size.is_decoding else _LAUNCHED_FIRST)

    def _way_of(self, size: StepSize, sized: _SizedStep) -> StepWay:
        if sized.replay is not None:
            return StepWay.LAUNCHED if sized.replay.has_failed else StepWay.REPLAYED
        tokens = padded_positions(size.tokens)
        is_new = tokens not in self._tried  # kernels may have to be compiled for so many rows
        self._tried.add(tokens)
        if size.tokens > _REPLAYED_MAX:
            return StepWay.LAUNCHED
        return StepWay.FIRST if is_new or self._kept.get(size) is sized else StepWay.WARMING

    def _keep(self, size: StepSize, num_ints: int) -> _SizedStep:
        """The entry of the size; evicts the least recently used one."""
        sized = self._kept.pop(size, None)
        if sized is None:
            place = torch.empty(num_ints, dtype=torch.int32, device=self._device)
            sized = _SizedStep(place, self._step_in(place, size))
            self._num_launched.pop(size, None)
            if len(self._kept) == _KEPT_SIZES:
                del self._kept[next(iter(self._kept))]
        self._kept[size] = sized
        return sized

    def _capture(self, size: StepSize, sized: _SizedStep) -> None:
        body = partial(self._program.run, sized.step)
        sized.replay = Replay(body, self._device, self._memory, str(size))

    def _empty_arrays(self, size: StepSize) -> Tensor:
        """The arrays of a step without tokens."""
        return torch.from_numpy(pack(arrays_of(_NO_CHUNKS, size, self._sizes))).to(self._device)

    def _step_in(self, arrays: Tensor, size: StepSize) -> CompiledStep:
        return step_in(arrays, size, self._sizes, self._rows, self._flash, self._partials)

    def _allocate_partials(self) -> AttentionScratch | None:
        """Scratch for the largest split list: graphs have its address, so it never moves."""
        sizes = self._sizes
        largest = min(padded(sizes.max_rows), sizes.split_max)
        if not largest:
            return None
        items = largest * sizes.partitions_max
        return allocate_scratch(items, 1, sizes.num_heads, sizes.num_kv_heads, sizes.head_size, self._device)
