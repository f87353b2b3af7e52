"""Packs several arrays of int32 in one, each at a multiple of 16 bytes: kernels are compiled for the
alignment of pointers, so views at arbitrary offsets would need a variant for each combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from octavo.kernels.contract import Ints

_UNIT = 4  # ints


def padded_size(size: int) -> int:
    """The padded size of an array."""
    return -(-size // _UNIT) * _UNIT


def pack(arrays: Sequence[Ints], out: Ints | None = None) -> Ints:
    """The arrays, flat and concatenated, padded with zeros; into `out` if it is given."""
    if out is None:
        out = np.empty(sum(padded_size(array.size) for array in arrays), np.int32)
    first = 0
    for array in arrays:
        last, after = first + array.size, first + padded_size(array.size)
        out[first:last] = array.reshape(-1)
        out[last:after] = 0
        first = after
    return out


def unpack(packed: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """Views of the arrays of these sizes."""
    first = 0
    for size in sizes:
        yield packed[first : first + size]
        first += padded_size(size)
