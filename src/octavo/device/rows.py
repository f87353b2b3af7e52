"""Rows on the device: tokens, block tables, drawing parameters of running sequences. Plans alone change them.

One array of int32 holds all of it, so that whatever a plan changes is one scatter into one array:

    state   | tokens (R, context) | tables (R, W) | drawn (R, 9) | adjusted (R, 5 + 2B) |

A plan's writes and a step's arrays travel in one pinned buffer and one copy (`carry`). Stream order is the
fence: a step reads what the plans before it wrote, and what they sampled, without the host knowing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.device.packing import pack, padded_size, unpack
from octavo.device.penalties import Adjusting
from octavo.device.sampler import DrawParams
from octavo.errors import ConfigError
from octavo.kernels.contract import Ints
from octavo.params import LOGIT_BIAS_MAX
from octavo.types import AdmittedRow, Fork, StepPlan
from octavo.units import blocks_for

_ADJUSTED = 5  # bits of repetition, frequency, presence; tokens of the prompt; number of biases; then these
_DRAWN = 9  # bits of temperature (1), top_p, min_p (2 each); top_k; seed, low and high; choice
_STATE_MAX = 2**31 - 1


class Writes:
    """What a plan changes in the state: indices and values, the last one of an index counts."""

    def __init__(self) -> None:
        self._singles: dict[int, int] = {}
        self._runs: list[tuple[int, Ints]] = []

    def one(self, index: int, value: int) -> None:
        """state[index] = value."""
        self._singles[index] = value

    def run(self, index: int, values: Ints) -> None:
        """state[index : index + n] = values; no other write may touch these."""
        self._runs.append((index, values))

    def arrays(self) -> tuple[Ints, Ints]:
        """Indices and values (n,)."""
        singles = np.fromiter(self._singles.keys(), np.int32, len(self._singles))
        values = np.fromiter(self._singles.values(), np.int32, len(self._singles))
        indices = [np.arange(index, index + run.size, dtype=np.int32) for index, run in self._runs]
        runs = [run for _, run in self._runs]
        return np.concatenate([singles, *indices]), np.concatenate([values, *runs])


class DeviceRows:
    """At most R rows of at most `context_length` tokens."""

    def __init__(self, max_rows: int, context_length: int, block_size: int, device: torch.device) -> None:
        """Raises ConfigError where the rows need more indices than 31 bits have."""
        rows, blocks = max_rows, blocks_for(context_length, block_size)
        width = _ADJUSTED + 2 * LOGIT_BIAS_MAX
        sizes = [rows * context_length, rows * blocks, rows * _DRAWN, rows * width]
        if sum(sizes) > _STATE_MAX:
            raise ConfigError(
                f"{max_rows:,} sequences (max_seqs) of {context_length:,} tokens are more than a device's "
                f"rows can name; allowed together: {_STATE_MAX:,} tokens; give a smaller --context-length or "
                "--max-seqs"
            )
        self.max_rows, self.context_length, self.block_size = max_rows, context_length, block_size
        self.state = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        tokens, tables, drawn, adjusted = self.state.split(sizes)
        self.tokens = tokens.view(rows, context_length)
        self.tables = tables.view(rows, blocks)
        self.drawn = drawn.view(rows, _DRAWN)
        self.adjusted = adjusted.view(rows, width)
        self._tables_at, self._drawn_at = sizes[0], sizes[0] + sizes[1]
        self._adjusted_at = sum(sizes[:3])

    def written_by(self, plan: StepPlan) -> Writes:
        """What the plan changes before its chunks run, guesses included."""
        writes = Writes()
        for admitted in plan.admitted:
            self._admit(writes, admitted)
        for said in plan.token_writes:
            self._write_token(writes, said.row, said.index, said.token)
        for write in plan.table_writes:
            writes.one(self._tables_at + write.row * self.tables.shape[1] + write.index, write.block)
        for chunk in plan.chunks:
            for place, token in enumerate(chunk.drafts, chunk.stop - len(chunk.drafts)):
                self._write_token(writes, chunk.row, place, token)
        return writes

    def _write_token(self, writes: Writes, row: int, position: int, token: int) -> None:
        """The last token of a full context has no position and is not kept."""
        if position < self.context_length:
            writes.one(row * self.context_length + position, token)

    def fork(self, fork: Fork) -> None:
        """The child's row becomes the parent's, but for its choice. Before the step samples."""
        parent, child = fork.parent_row, fork.child_row
        self.tokens[child] = self.tokens[parent]
        self.tables[child] = self.tables[parent]
        self.drawn[child] = self.drawn[parent]
        self.drawn[child, _DRAWN - 1] = fork.choice
        self.adjusted[child] = self.adjusted[parent]

    def draw_params(self, rows: Tensor) -> DrawParams:
        """Of these rows (S,) int64."""
        drawn = self.drawn[rows]
        bits = drawn[:, 1:5].clone(memory_format=torch.contiguous_format)  # aligned, as float64 must be
        floats, wide = bits.view(torch.float64), drawn[:, 5:].to(torch.int64)
        temperature = drawn[:, 0].clone().view(torch.float32)
        return DrawParams(
            temperature,
            floats[:, 0],
            floats[:, 1],
            wide[:, 0],
            wide[:, 1] & 0xFFFF_FFFF,
            wide[:, 2] & 0xFFFF_FFFF,
            wide[:, 3],
        )

    def adjusting(self, rows: Tensor, num_biases: int) -> Adjusting:
        """Of these rows (S,) int64, with so many biases at most."""
        biases_at = _ADJUSTED + LOGIT_BIAS_MAX
        own = self.adjusted[rows]
        floats = own.view(torch.float32)
        whole = own[:, 3 : _ADJUSTED + num_biases].to(torch.int64)
        return Adjusting(
            floats[:, 0],
            floats[:, 1],
            floats[:, 2],
            whole[:, 0],
            whole[:, 1],
            whole[:, 2:],
            floats[:, biases_at : biases_at + num_biases],
        )

    def _admit(self, writes: Writes, admitted: AdmittedRow) -> None:
        params, seed = admitted.params, admitted.seed & 0xFFFF_FFFF_FFFF_FFFF
        tokens = np.array(admitted.tokens, np.int32)
        writes.run(admitted.row * self.context_length, tokens)
        temperature = np.array([params.temperature], np.float32)
        floats = np.array([params.top_p, params.min_p], np.float64)
        whole = np.array([params.top_k, seed & 0xFFFF_FFFF, seed >> 32, admitted.choice], np.uint32)
        values = np.concatenate([part.view(np.int32) for part in (temperature, floats, whole)])
        writes.run(self._drawn_at + admitted.row * _DRAWN, values)
        at = self._adjusted_at + admitted.row * self.adjusted.shape[1]
        biases = params.logit_bias
        penalties = [params.repetition_penalty, params.frequency_penalty, params.presence_penalty]
        whole = np.array([admitted.num_prompt, len(biases), *(token for token, _ in biases)], np.int32)
        writes.run(at, np.concatenate([np.array(penalties, np.float32).view(np.int32), whole]))
        values = np.array([value for _, value in biases], np.float32).view(np.int32)
        writes.run(at + _ADJUSTED + LOGIT_BIAS_MAX, values)


def carry(arrays: Sequence[Ints], device: torch.device) -> Iterable[Tensor]:
    """Host arrays as tensors of the device: one pinned buffer, one copy, which does not wait."""
    sizes = [array.size for array in arrays]
    size = sum(map(padded_size, sizes))
    host = torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
    pack(arrays, host.numpy())
    moved = host if device.type == "cpu" else host.to(device, non_blocking=True)
    return unpack(moved, sizes)


def to_device(columns: list[list[int]], device: torch.device) -> Tensor:
    """int64, a row for each column; the copy does not wait."""
    host = torch.tensor(columns, dtype=torch.int64, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)
