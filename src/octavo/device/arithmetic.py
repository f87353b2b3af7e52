"""What computes a step's hidden rows and logits over a pool on a device: kernels in `compiled.py`, the
reference's ops in `reference.py`."""

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
    """Tokens of rows from their logits (S, V) float32; rows and positions (S,) int64: how many tokens stand
    before. How each row is drawn from stands in the device's rows. Nothing waits for the device."""

    def append(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """tokens (S,) int64 stand at `positions` of rows from now on; not those behind the context, nor those
        that are none (-1)."""

    def penalise(self, logits: Tensor, rows: Tensor, positions: Tensor, longest: int) -> None:
        """Change logits as these rows' penalties do; `longest` is the largest position."""

    def add_biases(self, logits: Tensor, rows: Tensor, most: int) -> None:
        """Change logits as these rows' biases do, of which no row has more than `most`."""

    def draw_greedily(self, logits: Tensor) -> Tensor:
        """(S,) int64: the likeliest tokens, -1 where a row has none (`Arithmetic.likeliest`)."""

    def draw(self, logits: Tensor, rows: Tensor, positions: Tensor, *, is_filtered: bool) -> Tensor:
        """(S,) int64: one token for each row, as above; without `is_filtered` no row has filters."""

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of each row's token its logprob (S,), and the `top` likeliest: their ids and logprobs (S, top),
        float32, the lowest id first among equals."""


class Arithmetic(Protocol):
    """A model over one pool, and the rows that its steps read. Nothing that it does waits for the device."""

    pool: DevicePool

    @property
    def sampler(self) -> RowSampler:
        """Over the same rows."""

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Make ready what steps of up to so many tokens will need, before the first. Raises what a device
        raises where it has too little memory."""

    def warm_more(self) -> bool:
        """One more piece of it, that is needed less often; False: nothing is left."""

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows, and bring the next step's arrays to the device; a shape may have no chunks."""

    def read_cold_from(self, slots: Bytes) -> int | None:
        """Attention reads cold blocks in these slots (S, bytes of a slot) of host memory from now on. What
        stands in a table for the first of them; None: it cannot."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def hidden(self) -> Tensor:
        """(R, E): the wanted rows of the step that was prepared last; K and V of its tokens are written."""

    def new_hidden(self, num_rows: int) -> Tensor:
        """(num_rows, E): room for hidden rows of another process."""

    def way(self) -> StepWay | None:
        """How the launches of the step that ran last were started; None where there are none."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64: the lowest of the likeliest tokens; -1 where logits hold NaN or +inf, or
        nothing but -inf."""
