"""A cold chunk on a CPU: its parts are groups of layers of one step, and other steps run between them.

plan t      part 0: the step begins, its cold blocks are read ahead     --> layers [0, n)
plan t + 1  part 1                                                      --> layers [n, m)
plan t + k  the last part                                               --> its hidden rows
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from octavo.executor.batch import host_batch
from octavo.executor.rows import Rows
from octavo.kernels.contract import ColdStep, Floats, Ints
from octavo.types import Chunk


@dataclass(frozen=True, slots=True)
class ColdPart:
    """The outcome of a plan's cold chunk."""

    seq_id: int
    seconds: float
    unreadable: tuple[int, ...] = ()  # slots; if any, its hidden rows are invalid


@dataclass(slots=True, eq=False)
class ColdParts:
    """Runs the parts of one chunk, one after another."""

    _step: ColdStep
    _num_layers: int
    done: ColdPart | None = None  # of the plan that ran last
    _chunk: Chunk | None = None  # of the prepared plan
    _tables: Ints | None = None  # (1, W) of its row
    _width: int = field(default=0, init=False)  # of the current step's tables

    def prepare(self, chunk: Chunk | None, rows: Rows) -> None:
        """Set the cold chunk of the plan that runs next, if it has one. The first part's reads begin."""
        self._chunk, self.done = chunk, None
        if chunk is None:
            return
        if chunk.part == 0:
            batch = host_batch([chunk], rows)
            self._width = batch.tables.shape[1]
            self._step.abandon()  # one whose sequence has gone
            self._step.begin(batch)
        self._tables = rows.tables[chunk.row : chunk.row + 1, : self._width].copy()

    @property
    def is_prepared(self) -> bool:
        """True where the next plan has a cold chunk."""
        return self._chunk is not None

    def run(self) -> Floats | None:
        """The part's layers; after the last one the chunk's hidden rows (R, E)."""
        chunk = self._chunk
        assert chunk is not None
        assert self._tables is not None
        started, num_layers = time.perf_counter(), self._num_layers
        first, last = (num_layers * part // chunk.num_parts for part in (chunk.part, chunk.part + 1))
        hidden = self._step.advance(self._tables, last - first)
        assert (hidden is not None) == chunk.is_last_part
        failed = () if hidden is None else tuple(self._step.failed_slots())
        self.done = ColdPart(chunk.seq_id, time.perf_counter() - started, failed)
        return hidden

    def close(self) -> None:
        """Wait for reads in flight."""
        self._step.abandon()
