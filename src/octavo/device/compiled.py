"""A step by Octavo's own kernels: the decoder recorded once, its launches fused, and for decoding replayed.

    any step            launches, one after the other
    decoding            padded to 1, 2, 4, 8, 16, 24, ... chunks and captured once for each size; padding
                        reads and writes the dummy row, and nothing else

The arrays of a captured step have fixed places; a step of decoding is one small copy into them and a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.device.arithmetic import DeviceStep, tokens_of
from octavo.device.compiled_step import (
    AttentionSizes,
    CompiledStep,
    forms_of,
    list_of,
    work_in,
)
from octavo.device.flash import FlashAttention
from octavo.device.graphs import GraphMemory, Replay
from octavo.device.layout import DevicePool
from octavo.device.lowering import Program, lower
from octavo.device.packing import pack, unpack
from octavo.device.rows import DeviceRows, carry
from octavo.device.triton.attention import AttentionScratch, allocate_scratch
from octavo.device.triton.attention_work import PARTITION_SIZE, AttentionStep
from octavo.device.triton.blocks import copy_blocks, independent_runs
from octavo.device.triton.elementwise import scale
from octavo.device.triton.plans import scatter
from octavo.device.triton.vocabulary import allocate_argmax_scratch, argmax, logits
from octavo.device.weights import own_matrix
from octavo.executor.batch import StepShape
from octavo.kernels.contract import Ints
from octavo.kernels.recording import record_step
from octavo.model.decoder import hidden_states
from octavo.model.spec import Model
from octavo.units import blocks_for

_CAPTURED_MAX = 256  # chunks; steps of more are worth their launches


@dataclass(frozen=True, slots=True)
class _Captured:
    """A step of decoding of fixed size: its arrays, and the replay that reads them."""

    arrays: Tensor  # (ints,) table_rows, starts, then attention's lists
    replay: Replay


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
        self.pool = pool
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
        self._scratch = allocate_argmax_scratch(_CAPTURED_MAX, spec.vocab_size, pool.data.device)
        self._captured: dict[int, _Captured] = {}
        self._partials = self._allocate_partials()
        self._memory = GraphMemory(pool.data.device)

    def scatter(self, state: Tensor, indices: Tensor, values: Tensor, count: Tensor) -> None:
        """One kernel."""
        scatter(state, indices, values, count)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for first, last in independent_runs(sources, targets):
            pairs = [np.array(blocks[first:last], np.int32) for blocks in (sources, targets)]
            copy_blocks(self.pool.data, *carry(pairs, self.pool.data.device))

    def arrays_of(self, shape: StepShape) -> Sequence[Ints]:
        """Attention's work lists; for decoding all that a captured step reads."""
        size, count = self._captured_size(shape), shape.starts.size
        lengths = shape.lengths
        forms = forms_of(lengths if size is None else np.ones(size, np.int32), self._sizes)
        lists = [list_of(form, shape.starts, lengths) for form in forms]
        if size is None:
            return lists
        rows, starts = np.full(size, self._rows.max_rows, np.int32), np.zeros(size, np.int32)
        rows[:count], starts[:count] = shape.table_rows, shape.starts
        return [pack([rows, starts, *lists])]

    def hidden(self, step: DeviceStep) -> Tensor:
        """(R, E): the wanted rows of the step."""
        size = self._captured_size(step.shape)
        if size is None:
            return self._program.run(self._any_step(step))
        captured = self._captured.get(size)
        if captured is None:
            captured = self._captured[size] = self._capture(size, step.extra[0])
        captured.arrays.copy_(step.extra[0])
        return captured.replay()[: step.shape.starts.size]

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""
        out = hidden.new_empty((hidden.shape[0], self._output.shape[0]), dtype=torch.float32)
        logits(out, self._scaled(hidden), self._output, self._model.spec.logit_soft_cap)
        return out

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64."""
        parts = []
        for rows in self._scaled(hidden).split(_CAPTURED_MAX):
            out = rows.new_empty(rows.shape[0], dtype=torch.int32)
            argmax(out, rows, self._output, self._scratch, self._model.spec.logit_soft_cap)
            parts.append(out)
        return torch.cat(parts).to(torch.int64)

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
        counts = range(1, self._rows.max_rows + 1)
        largest = max((count for count in counts if self._sizes.is_split(count)), default=0)
        if not largest:
            return None
        sizes = self._sizes
        items = _padded(largest) * sizes.partitions_max
        return allocate_scratch(
            items, 1, sizes.num_heads, sizes.num_kv_heads, sizes.head_size, self.pool.data.device
        )

    def _any_step(self, step: DeviceStep) -> CompiledStep:
        forms = forms_of(step.shape.lengths, self._sizes)
        return CompiledStep(
            step.tokens(),
            step.positions,
            step.token_chunks,
            step.logit_rows.to(torch.int64),
            AttentionStep(step.rows.tables, step.table_rows, step.starts, step.offsets),
            [(form, work_in(form, arrays)) for form, arrays in zip(forms, step.extra, strict=True)],
            self._sizes,
            int(step.shape.lengths.max()),
            self._flash,
            self._partials,
        )

    def _captured_size(self, shape: StepShape) -> int | None:
        """Chunks of the captured step that a step of decoding is padded to; None: it is launched."""
        count = shape.starts.size
        if not shape.is_decoding or count > _CAPTURED_MAX:
            return None
        return _padded(count)

    def _capture(self, size: int, arrays: Tensor) -> _Captured:
        place, device = arrays.clone(), arrays.device
        forms = forms_of(np.ones(size, np.int32), self._sizes)
        table_rows, starts, *lists = unpack(place, [size, size, *(form.num_ints for form in forms)])
        each = torch.arange(size + 1, dtype=torch.int32, device=device)
        attention = AttentionStep(self._rows.tables, table_rows, starts, each)
        works = [(form, work_in(form, ints)) for form, ints in zip(forms, lists, strict=True)]
        own = each[:-1]  # chunk c is token c, and its logits are wanted
        tokens = torch.empty_like(starts)
        step = CompiledStep(
            tokens,
            starts,
            own,
            own.to(torch.int64),
            attention,
            works,
            self._sizes,
            1,
            self._flash,
            self._partials,
        )

        def body() -> Tensor:
            tokens.copy_(tokens_of(table_rows, own, starts, self._rows.tokens))
            return self._program.run(step)

        return _Captured(place, Replay(body, device, self._memory, f"decoding of {size}"))


def _padded(count: int) -> int:
    """1, 2, 4, 8, 16, 24, ...: the next of these."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8


def record(model: Model, pool: DevicePool) -> Program:
    """The decoder's launches for any step of the model."""
    return lower(record_step(lambda ops, batch: hidden_states(ops, model, pool, batch), pool), pool)
