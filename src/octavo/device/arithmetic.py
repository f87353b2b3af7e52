"""What computes a step's hidden rows and logits over a pool on a device: kernels in `compiled.py`, the
reference's ops in `reference.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from octavo.device.layout import DevicePool
from octavo.device.rows import Writes
from octavo.executor.batch import StepShape


class Arithmetic(Protocol):
    """A model over one pool, and the rows that its steps read. Nothing that it does waits for the device."""

    pool: DevicePool

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows, and bring the next step's arrays to the device; a shape may have no chunks."""

    def append(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """tokens (S,) stand at `positions` (S,) of rows (S,) from now on, all int64; not those behind the
        context, nor those that are none (-1)."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def hidden(self) -> Tensor:
        """(R, E): the wanted rows of the step that was prepared last; K and V of its tokens are written."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64: the lowest of the likeliest tokens; -1 where logits hold NaN or +inf, or
        nothing but -inf."""
