"""What computes a step's hidden rows and logits over a pool on a device: kernels in `compiled.py`, the
reference's ops in `reference.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo.device.layout import DevicePool
from octavo.device.rows import DeviceRows
from octavo.executor.batch import StepShape
from octavo.kernels.contract import Ints


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step's shape on the host, its arrays on the device (int32), and the rows that it reads."""

    shape: StepShape
    table_rows: Tensor
    starts: Tensor
    offsets: Tensor
    token_chunks: Tensor
    positions: Tensor
    logit_rows: Tensor
    rows: DeviceRows
    extra: Sequence[Tensor] = ()  # what the arithmetic asked for

    def tokens(self) -> Tensor:
        """(T,) int32, read from the rows."""
        return tokens_of(self.table_rows, self.token_chunks, self.positions, self.rows.tokens)


class Arithmetic(Protocol):
    """A model over one pool. Nothing that it does waits for the device."""

    pool: DevicePool

    def scatter(self, state: Tensor, indices: Tensor, values: Tensor, count: Tensor) -> None:
        """state[indices[i]] = values[i] for all i < count (1,), int32; the indices differ."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def arrays_of(self, shape: StepShape) -> Sequence[Ints]:
        """What it needs on the device beside the step's own arrays; it comes back as `DeviceStep.extra`."""

    def hidden(self, step: DeviceStep) -> Tensor:
        """(R, E): the wanted rows of the step; K and V of its tokens are written."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64: the lowest of the likeliest tokens; -1 where logits hold NaN or +inf, or
        nothing but -inf."""


def tokens_of(table_rows: Tensor, token_chunks: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """(T,) int32: the tokens of a step, read from the rows (R + 1, context)."""
    rows = table_rows.to(torch.int64)[token_chunks.to(torch.int64)]
    return tokens[rows, positions.to(torch.int64)]
