"""Triton's interpreter with products in the order of tensor cores: each element is one chain over K.

The bits of NumPy's products depend on a tile's shape, and with some BLAS libraries on the position of a row,
so bitwise comparisons without a GPU need these.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class _Type(Protocol):
    scalar: object


class _Handle(Protocol):
    data: npt.NDArray[np.generic]
    dtype: _Type


def chained_dot(
    self: object, a: _Handle, b: _Handle, d: _Handle, input_precision: object, max_num_imprecise_acc: object
) -> object:
    """d + a @ b, for `InterpreterBuilder.create_dot`."""
    from triton.runtime import interpreter

    left, right = (x.data.astype(d.data.dtype) for x in (a, b))
    total = d.data.copy()
    for k in range(left.shape[-1]):
        total += left[..., :, k, None] * right[..., k, None, :]
    return interpreter.TensorHandle(total, d.dtype.scalar)


def chain_products() -> None:
    """Use these products in this process."""
    from triton.runtime import interpreter

    interpreter.InterpreterBuilder.create_dot = chained_dot
