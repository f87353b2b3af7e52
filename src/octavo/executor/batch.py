"""A plan's chunks as concatenated arrays: the input of a step on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.executor.rows import Rows
from octavo.kernels.contract import Batch, HostBatch, Ints
from octavo.types import Chunk


@dataclass(frozen=True, slots=True)
class StepShape:
    """C chunks of T tokens; logits are needed for R of the tokens. It holds no tokens: an earlier step may
    still be sampling them."""

    table_rows: Ints  # (C,) the row of each chunk
    starts: Ints  # (C,) position of its first token
    offsets: Ints  # (C + 1,) its tokens are [offsets[c], offsets[c + 1]) of the step
    token_chunks: Ints  # (T,)
    positions: Ints  # (T,)
    logit_rows: Ints  # (R,)

    @property
    def lengths(self) -> Ints:
        """(C,)."""
        return np.diff(self.offsets)


def shape_of(chunks: Sequence[Chunk]) -> StepShape:
    """The shape of a step of these chunks."""
    about = [(chunk.row, chunk.start, chunk.length, chunk.logits_from) for chunk in chunks]
    columns = np.ascontiguousarray(np.array(about, np.int32).reshape(-1, 4).T)  # (4, C)
    rows, starts, lengths, logits_from = columns
    offsets = np.zeros(rows.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    token_chunks = np.repeat(np.arange(rows.size, dtype=np.int32), lengths)
    positions = np.arange(offsets[-1], dtype=np.int32) + (starts - offsets[:-1])[token_chunks]
    logit_rows = np.flatnonzero(positions >= logits_from[token_chunks]).astype(np.int32)
    return StepShape(rows, starts, offsets, token_chunks, positions, logit_rows)


def batch_of(shape: StepShape, tokens: Ints, tables: Ints, block_size: int) -> HostBatch:
    """The step over host arrays: tokens (rows, context) and block tables (rows, W) by row."""
    own = tokens[shape.table_rows[shape.token_chunks], shape.positions]
    width = -(-int((shape.starts + shape.lengths).max()) // block_size)
    return Batch(
        own, shape.positions, shape.starts, shape.offsets, tables[shape.table_rows, :width], shape.logit_rows
    )


def host_batch(chunks: Sequence[Chunk], rows: Rows) -> HostBatch:
    """A step of these chunks over the host's rows; writes the chunks' drafts into the rows."""
    for chunk in chunks:
        entry, known = rows[chunk.row], chunk.stop - len(chunk.drafts)
        assert entry.seq_id == chunk.seq_id, "a chunk runs in another's row"
        assert known <= entry.length, "a chunk runs ahead of its tokens"
        if chunk.drafts:
            rows.tokens[chunk.row, known : chunk.stop] = chunk.drafts
    return batch_of(shape_of(chunks), rows.tokens, rows.tables, rows.block_size)
