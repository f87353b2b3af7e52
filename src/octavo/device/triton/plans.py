"""A plan's changes written into the device's arrays: values at indices, as many as the device is told."""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.triton.launch import kernel, launch

_BLOCK = 256


def scatter(target: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, count: torch.Tensor) -> None:
    """target.view(-1)[indices[i]] = values[i] for i < count (1,) int32, which lies on the device.

    indices (n,) int32 must differ from one another: programs have no order. values (n,) of target's dtype.
    """
    assert target.is_contiguous()
    assert indices.shape == values.shape
    assert indices.dim() == 1
    assert indices.dtype == count.dtype == torch.int32
    assert values.dtype == target.dtype
    assert indices.is_contiguous()
    assert values.is_contiguous()
    launch(
        scatter_values,
        (-(-indices.shape[0] // _BLOCK),),
        [target, indices, values, count],
        {"BLOCK": _BLOCK},
    )


@kernel()
def scatter_values(
    target: tl.tensor, indices: tl.tensor, values: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """One program for each block of values."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entry < tl.load(count)
    index = tl.load(indices + entry, mask=mask, other=0)
    tl.store(target + index, tl.load(values + entry, mask=mask, other=0), mask=mask)
