"""A `RowSampler` by kernels: few launches for any sampling parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.rows import DeviceRows
from octavo.device.triton import draws, likeliest, penalties
from octavo.device.triton.plans import append_tokens

_FILTERED_ROWS = 64  # at once: each takes 12 bytes for every token of the vocabulary


class KernelSampler:
    """Over the device's rows. Its bits are those of `TorchSampler`."""

    def __init__(self, rows: DeviceRows) -> None:
        self._rows = rows

    def append(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Write tokens to `positions` of rows."""
        append_tokens(self._rows.tokens, rows, positions, tokens)

    def penalise(self, logits: Tensor, rows: Tensor, positions: Tensor, longest: int) -> None:
        """Apply these rows' penalties to logits."""
        penalties.penalise(logits, self._rows.adjusted, self._rows.tokens, rows, positions, longest)

    def add_biases(self, logits: Tensor, rows: Tensor, most: int) -> None:
        """Add these rows' biases to logits."""
        penalties.add_biases(logits, self._rows.adjusted, rows, most)

    def draw_greedily(self, logits: Tensor) -> Tensor:
        """The likeliest tokens."""
        return draws.draw_greedily(logits)

    def draw(self, logits: Tensor, rows: Tensor, positions: Tensor, *, is_filtered: bool) -> Tensor:
        """One token for each row."""
        at_once = _FILTERED_ROWS if is_filtered else logits.shape[0]
        parts = [
            draws.draw(own, self._rows.drawn, of_row, before, is_filtered=is_filtered)
            for own, of_row, before in zip(
                logits.split(at_once), rows.split(at_once), positions.split(at_once), strict=True
            )
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Logprobs of each row's token, and of the likeliest."""
        return likeliest.logprobs(logits, tokens, top)
