"""Steps by Octavo's own kernels: the decoder is recorded once, its launches are fused, and common step sizes
are replayed (`sized_steps.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.device.compiled_step import AttentionSizes
from octavo.device.devices import sees_host_memory
from octavo.device.flash import FlashAttention
from octavo.device.layout import DevicePool
from octavo.device.lowering import Program, lower
from octavo.device.ranks.collectives import RankGroup
from octavo.device.rows import DeviceRows, Writes, carry
from octavo.device.sized_steps import SizedSteps
from octavo.device.triton import draws, likeliest, penalties
from octavo.device.triton.attention_work import PARTITION_SIZE
from octavo.device.triton.blocks import copy_blocks, independent_runs
from octavo.device.triton.elementwise import scale
from octavo.device.triton.plans import append_tokens
from octavo.device.triton.vocabulary import allocate_argmax_scratch, argmax, logits
from octavo.device.weights import own_matrix
from octavo.executor.batch import StepShape
from octavo.kernels.contract import Bytes
from octavo.kernels.recording import record_step
from octavo.model.decoder import hidden_states
from octavo.model.spec import Model
from octavo.types import StepWay
from octavo.units import blocks_for

_ARGMAX_ROWS = 256  # at once
_TOPS = (1, 3, 5, 9, 17)  # numbers of likeliest tokens: a kernel is compiled for each
_WARM_SIZES = 8  # before the first request; the others while the engine is idle
_FILTERED_ROWS = 64  # at once: each takes 12 bytes for every token of the vocabulary


class CompiledArithmetic:
    """`Arithmetic` by kernels, over weights that `DeviceWeights` has loaded."""

    def __init__(
        self,
        model: Model,
        pool: DevicePool,
        rows: DeviceRows,
        num_processors: int,
        flash: FlashAttention | None = None,
        group: RankGroup | None = None,
    ) -> None:
        """`num_processors`: multiprocessors of the device; `flash`: torch's attention instead of ours;
        `group`: the ranks that compute the model."""
        self.pool, self.sampler = pool, KernelSampler(rows)
        self._has_flash = flash is not None
        self._model, self._context_length = model, rows.context_length
        spec = model.spec
        windows = dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers))
        sizes = AttentionSizes(
            len(model.split.heads(spec.num_heads)),
            len(model.split.kv_heads(spec.num_kv_heads)),
            spec.head_size,
            tuple(windows),
            blocks_for(rows.context_length, PARTITION_SIZE),
            num_processors,
            rows.max_rows,
        )
        self._group = group
        self._steps = SizedSteps(record(model, pool, group), sizes, rows, flash)
        self._output = own_matrix(model.weights.output).data
        self._scratch = allocate_argmax_scratch(_ARGMAX_ROWS, self._output.shape[0], pool.data.device)

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Capture the likeliest sizes of decoding, compile the sampling kernels, and then try the largest
        step while the captures hold their memory."""
        sizes = list(self._steps.decoding_sizes())[:_WARM_SIZES]
        for number, size in enumerate(sizes, 1):
            progress(f"capturing decoding of {size.tokens:,} ({number} of {len(sizes)})")
            hidden = self._steps.warm(size)
            self.likeliest(hidden)
            logits = self.logits(hidden)
            if number in (1, len(sizes)):
                self._try_sampling(logits)
        progress(f"trying a step of {step_tokens:,} tokens")
        self._steps.try_largest(step_tokens)
        # Allocate the memory of sampling before the free memory is measured: captures had released it.
        self._try_sampling(self.logits(self._steps.warm(sizes[0])))

    def warm_more(self) -> bool:
        """Capture one more size of decoding; False: none is left."""
        size = next((size for size in self._steps.decoding_sizes() if not self._steps.is_warm(size)), None)
        if size is not None:
            self._steps.warm(size)
        return size is not None

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows, and copy the step's arrays to their place."""
        self._steps.prepare(shape, writes)

    def read_cold_from(self, slots: Bytes) -> int | None:
        """Slots are addressed by their distance from the pool, in blocks, like any other block. So one kernel
        reads both memories, if the device sees host memory at the host's addresses."""
        data = self.pool.data
        first, rest = divmod(slots.ctypes.data - data.data_ptr(), slots.shape[1])
        is_named = not rest and -(2**31) <= first < 2**31 - len(slots)
        if self._has_flash or not is_named or (data.is_cuda and not sees_host_memory(slots, data.device)):
            return None
        return first

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for first, last in independent_runs(sources, targets):
            pairs = [np.array(blocks[first:last], np.int32) for blocks in (sources, targets)]
            copy_blocks(self.pool.data, *carry(pairs, self.pool.data.device))

    def hidden(self) -> Tensor:
        """(R, E): the logit rows of the step."""
        return self._steps.run()

    def new_hidden(self, num_rows: int) -> Tensor:
        """(num_rows, E): memory for hidden rows."""
        return self._output.new_empty((num_rows, self._model.spec.hidden_size))

    def way(self) -> StepWay:
        """How the last step was launched."""
        return self._steps.way

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""
        out = hidden.new_empty((hidden.shape[0], self._output.shape[0]), dtype=torch.float32)
        logits(out, self._scaled(hidden), self._output, self._model.spec.logit_soft_cap)
        if self._group is None:
            return out
        return self._group.gather_columns(out, self._model.split.widths(self._model.spec.vocab_size))

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64; with several ranks, of the rank's own rows of the vocabulary."""
        out = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
        cap = self._model.spec.logit_soft_cap
        for part, rows in zip(out.split(_ARGMAX_ROWS), self._scaled(hidden).split(_ARGMAX_ROWS), strict=True):
            argmax(part, rows, self._output, self._scratch, cap)
        return out

    def _scaled(self, hidden: Tensor) -> Tensor:
        """The rows times the model's factor of logits."""
        factor = self._model.spec.logit_scale
        if factor == 1.0:
            return hidden
        out = torch.empty_like(hidden)
        scale(out, hidden, factor)
        return out

    def _try_sampling(self, logits: Tensor) -> None:
        """Compile every sampling kernel, by calls that change no row."""
        count, device = logits.shape[0], logits.device
        rows = torch.zeros(count, dtype=torch.int64, device=device)
        positions = torch.full_like(rows, self._context_length)
        self.sampler.penalise(logits, rows, torch.zeros_like(rows), 1)
        self.sampler.add_biases(logits, rows, 1)
        tokens = self.sampler.draw_greedily(logits)
        for is_filtered in (False, True):
            tokens = self.sampler.draw(logits, rows, positions, is_filtered=is_filtered)
        for top in _TOPS:
            self.sampler.logprobs(logits, tokens, top)
        self.sampler.append(rows, positions, tokens)


def record(model: Model, pool: DevicePool, group: RankGroup | None = None) -> Program:
    """The decoder's launches for any step of the model."""
    return lower(record_step(lambda ops, batch: hidden_states(ops, model, pool, batch), pool), pool, group)


class KernelSampler:
    """Over the device's rows. Its bits are those of `TorchSampler`."""

    def __init__(self, rows: DeviceRows) -> None:
        self._rows = rows

    def append(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Write tokens to `positions` of rows."""
        append_tokens(self._rows.tokens, rows, positions, tokens)

    def penalise(self, logits: Tensor, rows: Tensor, positions: Tensor, longest: int) -> None:
        """Apply these rows' penalties to logits."""
        penalties.penalise(logits, self._rows.adjusted, self._rows.tokens, rows, positions, longest)

    def add_biases(self, logits: Tensor, rows: Tensor, most: int) -> None:
        """Add these rows' biases to logits."""
        penalties.add_biases(logits, self._rows.adjusted, rows, most)

    def draw_greedily(self, logits: Tensor) -> Tensor:
        """The likeliest tokens."""
        return draws.draw_greedily(logits)

    def draw(self, logits: Tensor, rows: Tensor, positions: Tensor, *, is_filtered: bool) -> Tensor:
        """Draw one token for each row."""
        at_once = _FILTERED_ROWS if is_filtered else logits.shape[0]
        parts = [
            draws.draw(own, self._rows.drawn, of_row, before, is_filtered=is_filtered)
            for own, of_row, before in zip(
                logits.split(at_once), rows.split(at_once), positions.split(at_once), strict=True
            )
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Logprobs of each row's token, and of the likeliest."""
        return likeliest.logprobs(logits, tokens, top)
