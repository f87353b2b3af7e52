"""An embedding table whose rows are split over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.device.ranks.collectives import RankGroup
from octavo.device.triton.embedding import TokenPlaces


class SplitTable:
    """An embedding table over ranks: token ids in, whole rows out."""

    def __init__(self, table: Tensor, starts: Sequence[int], group: RankGroup) -> None:
        """`table`: this rank's rows, [starts[rank], starts[rank + 1]) of the whole one."""
        self._table, self._group = table, group
        self._first, self._last = starts[group.rank], starts[group.rank + 1]
        self._bounds = torch.tensor(starts[1:-1], dtype=torch.int32, device=table.device)

    def rows(self, step: TokenPlaces, factor: float, positions_table: Tensor | None) -> Tensor:
        """(T, E), with the bits of `embed`: each rank looks up its own rows, all pieces are gathered, and
        each token uses its owner's."""
        positions = step.positions.clamp(min=0)
        tokens = step.tokens[step.table_rows[step.chunks], positions]
        own = self._table[tokens.clamp(self._first, self._last - 1) - self._first]
        owners = (tokens[:, None] >= self._bounds).sum(1)
        rows = self._group.gather_pieces(own)[owners, torch.arange(tokens.shape[0], device=tokens.device)]
        numbers = rows.float() * factor
        if positions_table is not None:
            numbers += positions_table[positions].float()
        return torch.where(step.positions[:, None] < 0, 0.0, numbers).to(rows.dtype)
