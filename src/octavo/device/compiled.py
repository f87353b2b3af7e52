"""A step by Octavo's own kernels: the decoder recorded once, its launches fused, and usual steps replayed.

    up to 1,024 tokens      padded to the next of few sizes: launched the first time, captured the second,
                            replayed from then on
    more                    launches, one after the other

A size counts tokens, chunks, those of one token, the tiles of longer ones and the wanted logits. So decoding,
guessed tokens and prompts' chunks among them are replayed alike. The arrays of a size have fixed places: a
step is one small copy, one kernel that writes them there with the plan's changes, and a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from octavo.device.compiled_sampler import KernelSampler
from octavo.device.compiled_step import (
    AttentionSizes,
    CompiledStep,
    StepSize,
    arrays_of,
    num_ints_of,
    size_of,
    step_in,
)
from octavo.device.flash import FlashAttention
from octavo.device.graphs import GraphMemory, Replay
from octavo.device.layout import DevicePool
from octavo.device.lowering import Program, lower
from octavo.device.packing import pack
from octavo.device.rows import DeviceRows, Writes, carry
from octavo.device.triton.attention import AttentionScratch, allocate_scratch
from octavo.device.triton.attention_work import PARTITION_SIZE
from octavo.device.triton.blocks import copy_blocks, independent_runs
from octavo.device.triton.elementwise import scale
from octavo.device.triton.launch import padded
from octavo.device.triton.plans import write_plan
from octavo.device.triton.vocabulary import allocate_argmax_scratch, argmax, logits
from octavo.device.weights import own_matrix
from octavo.executor.batch import StepShape
from octavo.kernels.recording import record_step
from octavo.model.decoder import hidden_states
from octavo.model.spec import Model
from octavo.types import StepWay
from octavo.units import blocks_for

_REPLAYED_MAX = 1024  # tokens; steps of more are worth their launches
_KEPT_SIZES = 128  # whose places and captures are kept
_ARGMAX_ROWS = 256  # at once


@dataclass(slots=True)
class _Sized:
    """Steps of one size: the place of their arrays, their launches, and how these are started."""

    place: Tensor
    step: CompiledStep
    num_steps: int = 0
    replay: Replay | None = None


class CompiledArithmetic:
    """`Arithmetic` by kernels, over weights that `DeviceWeights` has loaded."""

    def __init__(
        self,
        model: Model,
        pool: DevicePool,
        rows: DeviceRows,
        num_processors: int,
        flash: FlashAttention | None = None,
    ) -> None:
        """`num_processors`: multiprocessors of the device; `flash`: torch's attention instead of ours."""
        self.pool, self.sampler = pool, KernelSampler(rows)
        self._flash = flash
        self._rows, self._model = rows, model
        spec = model.spec
        windows = dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers))
        self._sizes = AttentionSizes(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_size,
            tuple(windows),
            blocks_for(rows.context_length, PARTITION_SIZE),
            num_processors,
        )
        self._program = record(model, pool)
        self._output = own_matrix(model.weights.output).data
        self._scratch = allocate_argmax_scratch(_ARGMAX_ROWS, spec.vocab_size, pool.data.device)
        self._sized: dict[StepSize, _Sized] = {}  # that which was used last is the last one
        self._partials = self._allocate_partials()
        self._memory = GraphMemory(pool.data.device)
        self._prepared: tuple[StepSize, _Sized, int]  # the next step; how many of its rows are wanted
        self._way = StepWay.LAUNCHED  # of the step that ran last

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows, and bring the step's arrays to their place."""
        device, state = self.pool.data.device, self._rows.state
        if not shape.starts.size:
            indices, values = carry(writes.arrays(), device)
            write_plan(state, indices, values)
            return
        size = size_of(shape, self._sizes)
        is_replayed = size.tokens <= _REPLAYED_MAX
        size = size.rounded() if is_replayed else size
        packed = pack(arrays_of(shape, size, self._sizes))
        indices, values, arrays = carry([*writes.arrays(), packed], device)
        sized = self._kept(size) if is_replayed else _Sized(arrays, self._step_in(arrays, size))
        is_there = sized.place is arrays
        write_plan(state, indices, values, None if is_there else sized.place, None if is_there else arrays)
        self._prepared = size, sized, shape.logit_rows.size

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for first, last in independent_runs(sources, targets):
            pairs = [np.array(blocks[first:last], np.int32) for blocks in (sources, targets)]
            copy_blocks(self.pool.data, *carry(pairs, self.pool.data.device))

    def hidden(self) -> Tensor:
        """(R, E): the wanted rows of the step."""
        size, sized, num_wanted = self._prepared
        if size not in self._sized:
            self._way = StepWay.LAUNCHED
            return self._program.run(sized.step)[:num_wanted]
        self._way = StepWay.FIRST
        if sized.replay is not None:
            self._way = StepWay.LAUNCHED if sized.replay.has_failed else StepWay.REPLAYED
        if sized.num_steps == 1:
            device = self.pool.data.device
            sized.replay = Replay(lambda: self._program.run(sized.step), device, self._memory, str(size))
        sized.num_steps += 1
        started = sized.replay or partial(self._program.run, sized.step)
        return started()[:num_wanted]

    def way(self) -> StepWay:
        """How its launches were started."""
        return self._way

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""
        out = hidden.new_empty((hidden.shape[0], self._output.shape[0]), dtype=torch.float32)
        logits(out, self._scaled(hidden), self._output, self._model.spec.logit_soft_cap)
        return out

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64."""
        out = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
        cap = self._model.spec.logit_soft_cap
        for part, rows in zip(out.split(_ARGMAX_ROWS), self._scaled(hidden).split(_ARGMAX_ROWS), strict=True):
            argmax(part, rows, self._output, self._scratch, cap)
        return out

    def _scaled(self, hidden: Tensor) -> Tensor:
        """The rows times what the model multiplies logits by."""
        factor = self._model.spec.logit_scale
        if factor == 1.0:
            return hidden
        out = torch.empty_like(hidden)
        scale(out, hidden, factor)
        return out

    def _allocate_partials(self) -> AttentionScratch | None:
        """For the largest list that is split: graphs hold on to it, so it never moves."""
        sizes = self._sizes
        largest = min(padded(self._rows.max_rows), sizes.split_max)
        if not largest:
            return None
        items, device = largest * sizes.partitions_max, self.pool.data.device
        return allocate_scratch(items, 1, sizes.num_heads, sizes.num_kv_heads, sizes.head_size, device)

    def _step_in(self, arrays: Tensor, size: StepSize) -> CompiledStep:
        return step_in(arrays, size, self._sizes, self._rows, self._flash, self._partials)

    def _kept(self, size: StepSize) -> _Sized:
        """What there is for the size; what was not used for longest goes."""
        sized = self._sized.pop(size, None)
        if sized is None:
            device = self.pool.data.device
            place = torch.zeros(num_ints_of(size, self._sizes), dtype=torch.int32, device=device)
            sized = _Sized(place, self._step_in(place, size))
        if len(self._sized) == _KEPT_SIZES:
            del self._sized[next(iter(self._sized))]
        self._sized[size] = sized
        return sized


def record(model: Model, pool: DevicePool) -> Program:
    """The decoder's launches for any step of the model."""
    return lower(record_step(lambda ops, batch: hidden_states(ops, model, pool, batch), pool), pool)
