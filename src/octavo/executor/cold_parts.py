"""A cold chunk on a processor: its parts are the layers of one step, which other steps run between.

plan t      part 0: the step is begun, its cold blocks are read ahead   --> layers [0, n)
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
    """What became of a plan's cold chunk."""

    seq_id: int
    seconds: float
    unreadable: tuple[int, ...] = ()  # slots; then its hidden rows mean nothing


@dataclass(slots=True, eq=False)
class ColdParts:
    """Runs the parts of one chunk after the other."""

    _step: ColdStep
    _num_layers: int
    done: ColdPart | None = None  # of the plan that ran last
    _chunk: Chunk | None = None  # of the plan that is prepared
    _tables: Ints | None = None  # (1, W) of its row
    _width: int = field(default=0, init=False)  # of the tables of the step that is begun

    def prepare(self, chunk: Chunk | None, rows: Rows) -> None:
        """This is the cold chunk of the plan that runs next, if it has one. The first part's reads begin."""
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
        begun, num_layers = time.perf_counter(), self._num_layers
        first, last = (num_layers * part // chunk.num_parts for part in (chunk.part, chunk.part + 1))
        hidden = self._step.advance(self._tables, last - first)
        assert (hidden is not None) == chunk.is_last_part
        failed = () if hidden is None else tuple(self._step.failed_slots())
        self.done = ColdPart(chunk.seq_id, time.perf_counter() - begun, failed)
        return hidden

    def close(self) -> None:
        """Wait for reads in flight."""
        self._step.abandon()
