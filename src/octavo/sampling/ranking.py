"""Orders over a vocabulary in which ties always go to the lowest id, so that a result never depends on a
sort's mood.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.kernels.contract import Floats

Ids = npt.NDArray[np.int64]


def top_ids(values: Floats, count: int) -> Ids:
    """The indices of the `count` greatest of `values` (V,), ascending by index; of equals at the border, the
    lowest.

    `values` holds no NaN. O(V), no sort.
    """
    size = values.shape[0]
    if count >= size:
        return np.arange(size, dtype=np.int64)
    border = np.partition(values, size - count)[size - count]
    above = np.flatnonzero(values > border)
    ties = np.flatnonzero(values == border)[: count - above.shape[0]]
    return np.sort(np.concatenate([above, ties]))


def descending(values: Floats) -> Ids:
    """The indices of `values` (V,), greatest value first, lowest index first among equals."""
    return np.argsort(-values, kind="stable")
