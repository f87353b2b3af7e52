"""The values of codes, of all there are."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from octavo.device.triton.arithmetic import e4m3_values, int8_values
from octavo.device.triton.launch import kernel, launch

pytestmark = pytest.mark.full


@kernel()
def write_values(out: tl.tensor, words: tl.tensor, IS_FP8: tl.constexpr) -> None:
    at = tl.arange(0, 4)[:, None] * 16 + tl.arange(0, 16)[None, :]
    held = tl.load(words + at)
    values = e4m3_values(held) if IS_FP8 else int8_values(held)
    tl.store(out + tl.arange(0, 4)[:, None] * 64 + tl.arange(0, 64)[None, :], values)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_every_code_has_its_value(dtype: torch.dtype) -> None:
    codes = torch.arange(256).to(torch.uint8).reshape(4, 64)
    out = torch.empty(4, 64)
    launch(write_values, (1,), [out, codes.view(torch.int32)], {"IS_FP8": dtype == torch.float8_e4m3fn})
    want = codes.view(dtype).float()
    is_number = ~want.isnan()  # e4m3's NaN is no code that a store makes
    assert torch.equal(out[is_number], want[is_number])
