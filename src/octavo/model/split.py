"""The part of each weight that a rank has, if several ranks compute one model: outputs, never inputs.

    q, k, v                       whole heads, with the query heads of each KV head together
    o, down                       rows of the hidden size
    gate, up                      rows of the inner size, of each expert, too
    embedding, output             rows of the vocabulary
    norms, positions, routers     all of them

So each number of a product is one sum, as on one device, and the pieces are concatenated (`ops.gather`). This
module knows no weights: only counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError

RANKS_MAX = 64
_UNIT = 16  # rows are split in units of that size, if there are enough of them


@dataclass(frozen=True, slots=True)
class Split:
    """One of `num_ranks` ranks; without arguments, the only one."""

    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.num_ranks <= RANKS_MAX

    @property
    def is_whole(self) -> bool:
        """The rank has everything."""
        return self.num_ranks == 1

    def of(self, rank: int) -> Split:
        """The split of another rank."""
        return Split(rank, self.num_ranks)

    def starts(self, count: int) -> tuple[int, ...]:
        """(ranks + 1,): rank r has rows [starts[r], starts[r + 1]) of `count`, as equal as possible."""
        unit = _UNIT if count % _UNIT == 0 and count // _UNIT >= self.num_ranks else 1
        return tuple(count // unit * rank // self.num_ranks * unit for rank in range(self.num_ranks + 1))

    def rows(self, count: int) -> range:
        """The rows of this rank."""
        starts = self.starts(count)
        return range(starts[self.rank], starts[self.rank + 1])

    def widths(self, count: int) -> tuple[int, ...]:
        """(ranks,): how many rows of `count` each rank has."""
        return tuple(last - first for first, last in itertools.pairwise(self.starts(count)))

    def heads(self, num_heads: int) -> range:
        """The query heads of this rank."""
        each = num_heads // self.num_ranks
        return range(self.rank * each, (self.rank + 1) * each)

    def kv_heads(self, num_kv_heads: int) -> range:
        """The KV heads of this rank; if there are more ranks than heads, several ranks have the same one."""
        if num_kv_heads % self.num_ranks == 0:
            return self.heads(num_kv_heads)
        first = self.rank * num_kv_heads // self.num_ranks
        return range(first, first + 1)


def rows_of_heads(heads: range, head_size: int) -> range:
    """The rows of these heads in a projection."""
    return range(heads.start * head_size, heads.stop * head_size)


def allowed_ranks(num_heads: int, num_kv_heads: int) -> Sequence[int]:
    """The allowed numbers of ranks: they divide the query heads, and divide the KV heads or are a multiple of
    them."""
    return [
        ranks
        for ranks in range(1, min(num_heads, RANKS_MAX) + 1)
        if num_heads % ranks == 0 and (num_kv_heads % ranks == 0 or ranks % num_kv_heads == 0)
    ]


def check_ranks(num_ranks: int, num_heads: int, num_kv_heads: int) -> None:
    """Raise ConfigError if so many ranks cannot compute the model."""
    allowed = allowed_ranks(num_heads, num_kv_heads)
    if num_ranks not in allowed:
        raise ConfigError(
            f"tensor_parallel_size is {num_ranks}, and the model has {num_heads} query heads and "
            f"{num_kv_heads} KV heads, of which each rank must have whole ones; allowed: "
            f"{', '.join(map(str, allowed))}"
        )
