"""Meta tensors: a kind and a shape from a file's header, without data.

The rules that read weights move rows and slices of bytes without reading them, so they work on meta tensors
as on real ones.
"""

from __future__ import annotations

import numpy as np

from octavo.kernels.contract import RawTensor
from octavo.kernels.packed import stored_bytes


def meta_tensor(name: str, kind: str, shape: tuple[int, ...]) -> RawTensor:
    """A tensor of a kind of `BLOCKS` whose bytes all alias one zero byte: it takes no memory."""
    data = np.broadcast_to(np.zeros(1, np.uint8), (stored_bytes(kind, shape),))
    return RawTensor(name, kind, shape, data)


def is_meta(raw: RawTensor) -> bool:
    """Whether all its bytes alias one: then they are the same in any order."""
    return raw.data.strides == (0,)
