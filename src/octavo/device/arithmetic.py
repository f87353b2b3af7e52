"""What computes a step's hidden rows and logits over a pool: op after op here, kernels in `compiled.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from octavo.device.eager import EagerOps, batch_of
from octavo.device.layout import DevicePool
from octavo.device.sampler import greedy_tokens
from octavo.device.step import DeviceStep, StepShape
from octavo.kernels.contract import Ints
from octavo.model.decoder import hidden_states, project
from octavo.model.spec import Model


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


class EagerArithmetic:
    """Op after op, exact by construction on any device."""

    def __init__(self, model: Model, ops: EagerOps, pool: DevicePool) -> None:
        self.pool = pool
        self._model, self._ops = model, ops

    def scatter(self, state: Tensor, indices: Tensor, values: Tensor, count: Tensor) -> None:
        """state[indices] = values."""
        state[indices.long()] = values

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for source, target in zip(sources, targets, strict=True):
            self.pool.data[target] = self.pool.data[source]

    def arrays_of(self, shape: StepShape) -> Sequence[Ints]:
        """Nothing."""
        return ()

    def hidden(self, step: DeviceStep) -> Tensor:
        """(R, E): the wanted rows of the step."""
        return hidden_states(self._ops, self._model, self.pool, batch_of(step, self.pool.shape.block_size))

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""
        return project(self._ops, self._model, hidden)

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64."""
        return greedy_tokens(self.logits(hidden))


def tokens_of(table_rows: Tensor, token_chunks: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """(T,) int32: the tokens of a step, read from the rows (R + 1, context)."""
    rows = table_rows.to(torch.int64)[token_chunks.to(torch.int64)]
    return tokens[rows, positions.to(torch.int64)]
