"""The interface that computes a step's hidden rows and logits over a pool on a device: by kernels in
`compiled.py`, by the reference's ops in `reference.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from octavo.device.layout import DevicePool
from octavo.device.rows import Writes
from octavo.executor.batch import StepShape
from octavo.kernels.contract import Bytes
from octavo.types import StepWay


class RowSampler(Protocol):
    """Samples tokens of rows from their logits (S, V) float32; rows and positions (S,) int64: the numbers of
    tokens before. The device's rows hold each row's sampling parameters. Nothing waits for the device."""

    def append(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Write tokens (S,) int64 to `positions` of rows, except beyond the context and except missing ones
        (-1)."""

    def penalise(self, logits: Tensor, rows: Tensor, positions: Tensor, longest: int) -> None:
        """Apply these rows' penalties to logits; `longest` is the largest position."""

    def add_biases(self, logits: Tensor, rows: Tensor, most: int) -> None:
        """Add these rows' biases to logits; no row has more than `most`."""

    def draw_greedily(self, logits: Tensor) -> Tensor:
        """(S,) int64: the likeliest tokens, -1 for a row without one (`Arithmetic.likeliest`)."""

    def draw(self, logits: Tensor, rows: Tensor, positions: Tensor, *, is_filtered: bool) -> Tensor:
        """(S,) int64: one token for each row, as above; without `is_filtered` no row has filters."""

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """The logprob (S,) of each row's token, and ids and logprobs (S, top) of the `top` likeliest,
        float32, the lowest id first among equals."""


class Arithmetic(Protocol):
    """A model over one pool, and the rows that its steps read. No call waits for the device."""

    pool: DevicePool

    @property
    def sampler(self) -> RowSampler:
        """Over the same rows."""

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Prepare what steps of up to so many tokens need, before the first one. Raises the device's error if
        it has too little memory."""

    def warm_more(self) -> bool:
        """Prepare one more piece that is needed less often; False: nothing is left."""

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows, and copy the next step's arrays to the device; a shape may have no chunks."""

    def read_cold_from(self, slots: Bytes) -> int | None:
        """From now on attention reads cold blocks from these slots (S, bytes of a slot) of host memory.
        Returns the table entry of the first slot; None: not supported."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def hidden(self) -> Tensor:
        """(R, E): the logit rows of the prepared step; K and V of its tokens are written."""

    def new_hidden(self, num_rows: int) -> Tensor:
        """(num_rows, E): memory for hidden rows of another process."""

    def way(self) -> StepWay | None:
        """How the last step was launched; None: without launches."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64: the lowest of the likeliest tokens; -1 where logits hold NaN or +inf, or
        nothing but -inf."""
