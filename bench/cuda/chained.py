"""Triton's interpreter with products as tensor cores make them: each element one chain over K, in order.

NumPy's own depend on a tile's shape, and with some BLAS on a row's place in it, so what is compared bit for
bit without a GPU needs these.
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
    """From now on, in this process."""
    from triton.runtime import interpreter

    interpreter.InterpreterBuilder.create_dot = chained_dot
