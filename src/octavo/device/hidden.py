"""A step's hidden rows as the host's sampler asks for them: it waits for what it reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.device.arithmetic import Arithmetic
from octavo.kernels.contract import Floats, Ints


class HostHidden:
    """`executor.forward.Hidden` over a device's rows (R, E)."""

    def __init__(self, arithmetic: Arithmetic, hidden: Tensor) -> None:
        self._arithmetic, self._hidden = arithmetic, hidden

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): likeliest tokens of these rows."""
        tokens: Ints = self._arithmetic.likeliest(self._at(places)).to(torch.int32).cpu().numpy()
        return tokens

    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V): raw logits of these rows."""
        logits: Floats = self._arithmetic.logits(self._at(places)).cpu().numpy()
        return logits

    def rows(self, places: Sequence[int]) -> Floats:
        """(S, E): these rows."""
        rows: Floats = self._at(places).float().cpu().numpy()
        return rows

    def _at(self, places: Sequence[int]) -> Tensor:
        return self._hidden[torch.tensor(list(places), device=self._hidden.device)]
