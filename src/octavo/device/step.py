"""A step on the device: where its chunks lie, as arrays that the host made of the plan.

The host knows rows, starts and lengths of all chunks, but not yet every token: those are read from the rows
on the device, where the step before may still be writing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo.kernels.contract import Ints
from octavo.types import StepPlan


@dataclass(frozen=True, slots=True)
class StepShape:
    """C chunks of T tokens on the host; R of the tokens are those whose logits are wanted."""

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

    @property
    def is_decoding(self) -> bool:
        """Every chunk is one token, whose logits are wanted."""
        return self.token_chunks.size == self.starts.size == self.logit_rows.size

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """In the order of the fields."""
        return (
            self.table_rows,
            self.starts,
            self.offsets,
            self.token_chunks,
            self.positions,
            self.logit_rows,
        )


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The same on the device, int32, beside the rows that it reads."""

    shape: StepShape
    table_rows: Tensor
    starts: Tensor
    offsets: Tensor
    token_chunks: Tensor
    positions: Tensor
    logit_rows: Tensor
    tokens: Tensor  # (T,)
    tables: Tensor  # (rows, W)
    extra: Sequence[Tensor] = ()  # what the arithmetic asked for


def shape_of(plan: StepPlan) -> StepShape:
    """The plan's chunks, one behind the other."""
    about = np.array([(c.row, c.start, c.length, c.logits_from) for c in plan.chunks], np.int32).reshape(
        -1, 4
    )
    rows, starts, lengths, logits_from = np.ascontiguousarray(about.T)
    offsets = np.zeros(rows.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    token_chunks = np.repeat(np.arange(rows.size, dtype=np.int32), lengths)
    positions = np.arange(offsets[-1], dtype=np.int32) + (starts - offsets[:-1])[token_chunks]
    logit_rows = np.flatnonzero(positions >= logits_from[token_chunks]).astype(np.int32)
    return StepShape(rows, starts, offsets, token_chunks, positions, logit_rows)
