"""Tensors with a kind and a shape and no data of their own: what a file's header tells, and nothing more.

The rules that read weights move rows and slices of bytes without looking into them, so they run over meta
tensors as they do over real ones.
"""

from __future__ import annotations

import numpy as np

from octavo.kernels.contract import RawTensor
from octavo.kernels.packed import stored_bytes


def meta_tensor(name: str, kind: str, shape: tuple[int, ...]) -> RawTensor:
    """A tensor of a kind of `BLOCKS` whose bytes are all one and the same zero: it takes no memory."""
    data = np.broadcast_to(np.zeros(1, np.uint8), (stored_bytes(kind, shape),))
    return RawTensor(name, kind, shape, data)


def is_meta(raw: RawTensor) -> bool:
    """Whether all its bytes are one: then they are the same in any order."""
    return raw.data.strides == (0,)
