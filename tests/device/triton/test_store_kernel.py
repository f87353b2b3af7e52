"""The store kernel: norms, rope, and what lies in the pool afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.device.triton.steps import CPU

from octavo.device.layout import LARGEST_CODE, DevicePool, allocate_pool
from octavo.device.triton.attention_work import AttentionStep
from octavo.device.triton.store import HeadTransform, store_heads
from octavo.kernels.contract import KvShape
from octavo.kernels.integer_reference import quantised

pytestmark = pytest.mark.full

HEADS, KV_HEADS = 4, 2
CHUNKS = torch.tensor([0, 0, 0, 1, 1, 0], dtype=torch.int32)
POSITIONS = torch.tensor([14, 15, 16, 0, 1, -1], dtype=torch.int32)  # the last is padding
STEP = AttentionStep(
    tables=torch.tensor([[9, 9], [3, 1], [2, 9]], dtype=torch.int32),
    table_rows=torch.tensor([1, 2], dtype=torch.int32),
    starts=torch.tensor([14, 0], dtype=torch.int32),
    offsets=torch.tensor([0, 3, 5], dtype=torch.int32),
)
SLOTS = [(3, 14), (3, 15), (1, 0), (2, 0), (2, 1)]


def stored(
    qkv: torch.Tensor, size: int, kind: str, transform: HeadTransform
) -> tuple[torch.Tensor, DevicePool]:
    pool = allocate_pool(KvShape(2, KV_HEADS, size, 16, kind), 5, CPU)
    q = torch.full((6, HEADS * size), 7.0, dtype=qkv.dtype)
    store_heads(q, qkv, pool, 1, STEP, CHUNKS, POSITIONS, transform)
    return q, pool


def turned(x: torch.Tensor, weight: torch.Tensor | None, transform: HeadTransform) -> torch.Tensor:
    """(5, heads, D) in double."""
    x = x.double()
    if weight is not None:
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + transform.eps) * weight.double()
    if transform.cos is None or transform.sin is None:
        return x
    half = transform.cos.shape[1]
    cos, sin = (table[POSITIONS[:5].long()][:, None].double() for table in (transform.cos, transform.sin))
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def a_transform(size: int, half: int, has_norm: bool, rng: torch.Generator) -> HeadTransform:
    norms = torch.randn((2, size), generator=rng) if has_norm else (None, None)
    tables = torch.randn((2, 20, half), generator=rng).unbind() if half else (None, None)
    return HeadTransform(norms[0], norms[1], 1e-5, *tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("has_norm", [False, True], ids=["", "norm"])
@pytest.mark.parametrize("size, half", [(16, 0), (16, 8), (80, 16), (80, 40), (128, 64)])
def test_q_and_k_are_normalised_and_rotated(
    size: int, half: int, has_norm: bool, dtype: torch.dtype, rng: torch.Generator
) -> None:
    transform = a_transform(size, half, has_norm, rng)
    qkv = torch.randn((6, (HEADS + 2 * KV_HEADS) * size), generator=rng).to(dtype)
    q, pool = stored(qkv, size, "f32" if dtype == torch.float32 else "fp16", transform)
    heads = qkv[:5].reshape(5, -1, size)
    tolerance = 3e-6 if dtype == torch.float32 else 4e-3
    want = turned(heads[:, :HEADS], transform.q_norm, transform)
    torch.testing.assert_close(q[:5].double().reshape(want.shape), want, atol=tolerance, rtol=tolerance)
    keys = turned(heads[:, HEADS : HEADS + KV_HEADS], transform.k_norm, transform)
    for token, (block, slot) in enumerate(SLOTS):
        held = pool.keys(1)[block, :, slot].double()
        torch.testing.assert_close(held, keys[token], atol=tolerance, rtol=tolerance)
        assert torch.equal(pool.values(1)[block, :, slot], heads[token, HEADS + KV_HEADS :])


def test_padding_and_other_slots_are_left_alone(rng: torch.Generator) -> None:
    qkv = torch.randn((6, (HEADS + 2 * KV_HEADS) * 16), generator=rng)
    q, pool = stored(qkv, 16, "f32", HeadTransform())
    assert bool((q[5] == 7).all())
    for part in (pool.keys(1), pool.values(1)):
        for block, slot in SLOTS:
            part[block, :, slot] = 0
    assert not bool(pool.data.any())


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_codes_are_the_nearest(kind: str, rng: torch.Generator) -> None:
    qkv = torch.randn((6, (HEADS + 2 * KV_HEADS) * 80), generator=rng)
    heads = qkv[:5].reshape(5, -1, 80)
    heads[0, HEADS] = 0  # its scale is zero
    heads[1, HEADS] *= torch.logspace(-6, 0, 80)  # subnormal codes
    heads[2, HEADS, 3] = float("nan")
    heads[3, HEADS + KV_HEADS, 3] = float("inf")
    _, pool = stored(qkv, 80, kind, HeadTransform())
    for index, part in enumerate((pool.keys(1), pool.values(1))):
        for token, (block, slot) in enumerate(SLOTS):
            x = heads[token, HEADS + index * KV_HEADS :][:KV_HEADS]
            codes, scale = part[block, :, slot], pool.scales(1)[block, index, :, slot]
            if kind == "int8":
                want_scale, want = (torch.from_numpy(a) for a in quantised(x.numpy()))
                assert torch.equal(codes.float(), want)
                np.testing.assert_array_equal(scale.numpy(), want_scale[:, 0].numpy())
                continue
            top = x.abs().amax(-1, keepdim=True)
            is_number = top < 2.0**104
            want = torch.where(is_number & (top > 0), x * (LARGEST_CODE[kind] / top), 0).to(
                torch.float8_e4m3fn
            )
            assert torch.equal(codes.float(), want.float())
            want_scale = torch.where(is_number, top / LARGEST_CODE[kind], float("nan"))
            np.testing.assert_array_equal(scale.numpy(), want_scale[:, 0].numpy())
