"""Rows on the device: tokens, block tables, sampling parameters of running sequences. Only plans change them.

One array of int32 holds all of them, so that one kernel writes all changes of a plan:

    state   | tokens (R, context) | tables (R, W) | drawn (R, 9) | adjusted (R, 5 + 2B) |

A plan's writes and a step's arrays share one pinned buffer and one copy (`carry`). Stream order is the fence:
a step reads the writes and samples of earlier plans before the host knows the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.errors import ConfigError
from octavo.kernels.contract import Ints
from octavo.params import LOGIT_BIAS_MAX
from octavo.types import COLD_FIRST, AdmittedRow, Fork, StepPlan
from octavo.units import blocks_for

# Places in `adjusted`, for penalties: bits of float32, integers; then biases' tokens, then their values.
REPETITION, FREQUENCY, PRESENCE, NUM_PROMPT, NUM_BIASES, BIASES = range(6)
# Places in `drawn`, a row's sampling parameters: bits of float32 and float64 (two each), integers.
TEMPERATURE, TOP_P, MIN_P, TOP_K, SEED, CHOICE = 0, 1, 3, 5, 6, 8
_DRAWN = 9
_STATE_MAX = 2**31 - 1
# Kernels are compiled for the alignment of pointers: each array begins at a multiple of 16 bytes.
_UNIT = 4  # ints


class Writes:
    """A plan's writes to the state: indices and values; the last one of an index wins."""

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
        """Raises ConfigError if the rows need more indices than 31 bits have."""
        rows, blocks = max_rows, blocks_for(context_length, block_size)
        width = BIASES + 2 * LOGIT_BIAS_MAX
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
        self.cold_first = COLD_FIRST  # the entry of these tables for the first slot of a tier
        self._tables_at, self.drawn_at = sizes[0], sizes[0] + sizes[1]  # where `tables` and `drawn` begin
        self._adjusted_at = sum(sizes[:3])

    def written_by(self, plan: StepPlan) -> Writes:
        """The plan's writes before its chunks run, including drafts."""
        writes = Writes()
        for admitted in plan.admitted:
            self._admit(writes, admitted)
        for said in plan.token_writes:
            self._write_token(writes, said.row, said.index, said.token)
        for write in plan.table_writes:
            block = write.block
            if block >= COLD_FIRST:
                block += self.cold_first - COLD_FIRST
            writes.one(self._tables_at + write.row * self.tables.shape[1] + write.index, block)
        for chunk in plan.chunks:
            for place, token in enumerate(chunk.drafts, chunk.stop - len(chunk.drafts)):
                self._write_token(writes, chunk.row, place, token)
        return writes

    def _write_token(self, writes: Writes, row: int, position: int, token: int) -> None:
        """The last token of a full context has no position and is not kept."""
        if position < self.context_length:
            writes.one(row * self.context_length + position, token)

    def fork(self, fork: Fork) -> None:
        """Copy the parent's row to the child's, but for its choice. Before the step samples."""
        parent, child = fork.parent_row, fork.child_row
        self.copy_row(parent, child)
        self.drawn[child] = self.drawn[parent]
        self.drawn[child, CHOICE] = fork.choice
        self.adjusted[child] = self.adjusted[parent]

    def copy_row(self, parent: int, child: int) -> None:
        """Copy the parent's tokens and table to the child's row."""
        self.tokens[child] = self.tokens[parent]
        self.tables[child] = self.tables[parent]

    def _admit(self, writes: Writes, admitted: AdmittedRow) -> None:
        params, seed = admitted.params, admitted.seed & 0xFFFF_FFFF_FFFF_FFFF
        tokens = np.array(admitted.tokens, np.int32)
        writes.run(admitted.row * self.context_length, tokens)
        temperature = np.array([params.temperature], np.float32)
        floats = np.array([params.top_p, params.min_p], np.float64)
        whole = np.array([params.top_k, seed & 0xFFFF_FFFF, seed >> 32, admitted.choice], np.uint32)
        values = np.concatenate([part.view(np.int32) for part in (temperature, floats, whole)])
        writes.run(self.drawn_at + admitted.row * _DRAWN, values)
        at = self._adjusted_at + admitted.row * self.adjusted.shape[1]
        biases = params.logit_bias
        penalties = [params.repetition_penalty, params.frequency_penalty, params.presence_penalty]
        whole = np.array([admitted.num_prompt, len(biases), *(token for token, _ in biases)], np.int32)
        writes.run(at, np.concatenate([np.array(penalties, np.float32).view(np.int32), whole]))
        values = np.array([value for _, value in biases], np.float32).view(np.int32)
        writes.run(at + BIASES + LOGIT_BIAS_MAX, values)


def carry(arrays: Sequence[Ints], device: torch.device) -> Iterable[Tensor]:
    """Host arrays as tensors of the device: one pinned buffer, one asynchronous copy."""
    sizes = [array.size for array in arrays]
    size = sum(map(padded_size, sizes))
    host = torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
    pack(arrays, host.numpy())
    moved = host if device.type == "cpu" else host.to(device, non_blocking=True)
    return unpack(moved, sizes)


def to_device(columns: Sequence[Ints | Sequence[int]], device: torch.device) -> list[Tensor]:
    """int64, one for each column of equal length, each at a multiple of 16 bytes; copied asynchronously."""
    count = len(columns[0])
    host = torch.zeros((len(columns), count + count % 2), dtype=torch.int64, pin_memory=device.type == "cuda")
    host.numpy()[:, :count] = columns
    return [column[:count] for column in host.to(device, non_blocking=True)]


def padded_size(size: int) -> int:
    """The padded size of an array."""
    return -(-size // _UNIT) * _UNIT


def pack(arrays: Sequence[Ints], out: Ints | None = None) -> Ints:
    """The arrays, flat and concatenated, padded with zeros; into `out` if it is given."""
    if out is None:
        out = np.empty(sum(padded_size(array.size) for array in arrays), np.int32)
    first = 0
    for array in arrays:
        last, after = first + array.size, first + padded_size(array.size)
        out[first:last] = array.reshape(-1)
        out[last:after] = 0
        first = after
    return out


def unpack(packed: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """Views of the arrays of these sizes."""
    first = 0
    for size in sizes:
        yield packed[first : first + size]
        first += padded_size(size)
