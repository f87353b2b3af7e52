"""A `RowSampler` by kernels: few launches, whatever is asked of a row."""

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
        """tokens stand at `positions` of rows from now on."""
        append_tokens(self._rows.tokens, rows, positions, tokens)

    def penalise(self, logits: Tensor, rows: Tensor, positions: Tensor, longest: int) -> None:
        """Change logits as these rows' penalties do."""
        penalties.penalise(logits, self._rows.adjusted, self._rows.tokens, rows, positions, longest)

    def add_biases(self, logits: Tensor, rows: Tensor, most: int) -> None:
        """Change logits as these rows' biases do."""
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
        """Of each row's token, and the likeliest."""
        return likeliest.logprobs(logits, tokens, top)
