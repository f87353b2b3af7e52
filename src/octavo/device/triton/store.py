"""From the fused product to memory in one kernel: norms of q and k, rope, K and V into their slots.

    qkv row     | q: H heads of D | k: K heads | v: K heads |
    q, k        x / sqrt(mean(x^2) + eps) * weight, head by head (optional), then rope (optional)
    q           to its own buffer; k and v to slot p % B of block tables[table_rows[chunk], p // B]

Nothing is rounded before it is written. K and V are written in the pool's kind: rounded, or quantised:

    int8        scale = top / 127, its two lowest bits cleared; code = round(x * (127 / top)), ties to even,
                the product in double: the CPU's arithmetic, bit for bit (`integer_reference.quantised`)
    fp8         scale = top / 448; code = the nearest e4m3 of x * (448 / top)

`top` is the largest magnitude of one token and head; below 2^-100 the scale is 0, from 2^104 on or NaN it is
NaN, and codes are 0.

One program has one head of one token, always by one warp, so the order of a norm's sum is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from octavo.device.layout import LARGEST_CODE, DevicePool
from octavo.device.triton.arithmetic import e4m3_code, nearest_integer
from octavo.device.triton.attention_work import AttentionStep
from octavo.device.triton.launch import TRITON_DTYPES, jit, kernel, launch, padded

_LEAST_MAGNITUDE = tl.constexpr(2.0**-100)  # below it, numbers count as zero
_ENDLESS_MAGNITUDE = tl.constexpr(2.0**104)  # from it on, numbers count as NaN, like infinity


@dataclass(frozen=True, slots=True)
class HeadTransform:
    """The transformation of q and k before attention. Weights (D,) of RMS norms; rope's cos and sin (context,
    dims / 2) float32, which rotate halves of the first `dims` elements. Keys may have tables of their own."""

    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    k_cos: torch.Tensor | None = None
    k_sin: torch.Tensor | None = None


def store_heads(
    q: torch.Tensor,
    qkv: torch.Tensor,
    pool: DevicePool,
    layer: int,
    step: AttentionStep,
    token_chunks: torch.Tensor,
    positions: torch.Tensor,
    transform: HeadTransform,
) -> None:
    """Fill q (T, H * D) and the slots of the step's tokens from qkv (T, (H + 2K) * D).

    token_chunks and positions (T,) int32 on the device; a token at position -1 is padding and writes nothing.
    """
    shape, size = pool.shape, pool.shape.head_size
    num_tokens, num_heads = q.shape[0], q.shape[1] // size
    half = 0 if transform.cos is None else transform.cos.shape[1]
    assert qkv.shape == (num_tokens, (num_heads + 2 * shape.num_kv_heads) * size)
    assert qkv.dtype in TRITON_DTYPES
    assert q.shape[1] == num_heads * size
    assert q.stride(1) == 1 == qkv.stride(1)
    assert token_chunks.shape == positions.shape == (num_tokens,)
    assert token_chunks.dtype == positions.dtype == torch.int32
    assert (transform.cos is None) == (transform.sin is None)
    assert 2 * half <= size
    k_cos = transform.cos if transform.k_cos is None else transform.k_cos
    k_sin = transform.sin if transform.k_sin is None else transform.k_sin
    for table in (transform.cos, transform.sin, k_cos, k_sin):
        assert table is None or (table.is_contiguous() and table.dtype == torch.float32)
        assert table is None or table.shape[1] == half
    keys, values = pool.keys(layer), pool.values(layer)
    if pool.shape.kind == "fp8":
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    scales = pool.scales(layer) if pool.layout.has_scales else None
    launch(
        write_heads,
        (num_tokens, num_heads + 2 * shape.num_kv_heads),
        [
            *(q, keys, values, scales, qkv, transform.q_norm, transform.k_norm),
            *(transform.cos, transform.sin, k_cos, k_sin),
            *(step.tables, step.table_rows, token_chunks, positions, q.stride(0), qkv.stride(0)),
            *(
                keys.stride(0),
                0 if scales is None else scales.stride(0),
                step.tables.stride(0),
                transform.eps,
            ),
        ],
        {
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": shape.num_kv_heads,
            "HEAD_SIZE": size,
            "BLOCK_SIZE": shape.block_size,
            "BLOCK_D": padded(size, 32),
            "HALF": half,
            "LARGEST_CODE": LARGEST_CODE.get(shape.kind),
            "IS_FP8": shape.kind == "fp8",
        },
        num_warps=1,
    )


@kernel()
def write_heads(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    qkv: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    k_cos: tl.tensor,
    k_sin: tl.tensor,
    tables: tl.tensor,
    table_rows: tl.tensor,
    token_chunks: tl.tensor,
    positions: tl.tensor,
    q_stride: tl.tensor,
    qkv_stride: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    table_stride: tl.tensor,
    eps: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    LARGEST_CODE: tl.constexpr,
    IS_FP8: tl.constexpr,
) -> None:
    """One program for each token and head of q, k or v."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + token)
    if position < 0:
        return
    dim = tl.arange(0, BLOCK_D)
    mask = dim < HEAD_SIZE
    x_at = qkv + token * qkv_stride + head * HEAD_SIZE
    if head < NUM_HEADS:
        x = _apply_rope(x_at, dim, q_norm, cos, sin, position, eps, HEAD_SIZE, HALF)
        at = q + token * q_stride + head * HEAD_SIZE + dim
        tl.store(at, x.to(q.dtype.element_ty), mask=mask)
        return
    chunk = tl.load(token_chunks + token)
    table = tables + tl.load(table_rows + chunk).to(tl.int64) * table_stride
    block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
    is_key = head < NUM_HEADS + NUM_KV_HEADS
    slot = (head - NUM_HEADS) % NUM_KV_HEADS * BLOCK_SIZE + position % BLOCK_SIZE
    at = block * block_stride + slot * HEAD_SIZE + dim
    scale_at = block * scale_stride + slot
    if is_key:
        x = _apply_rope(x_at, dim, k_norm, k_cos, k_sin, position, eps, HEAD_SIZE, HALF)
        _write(keys, at, scales, scale_at, x, mask, LARGEST_CODE, IS_FP8)
    else:
        x = tl.load(x_at + dim, mask=mask, other=0.0).to(tl.float32)
        scale_at += NUM_KV_HEADS * BLOCK_SIZE
        _write(values, at, scales, scale_at, x, mask, LARGEST_CODE, IS_FP8)


@jit
def _apply_rope(
    x_at: tl.tensor,
    dim: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    position: tl.tensor,
    eps: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,
) -> tl.tensor:
    """(BLOCK_D,) float32: one head of q or k, normalised and rotated; zero beyond its size."""
    mask = dim < HEAD_SIZE
    x = tl.load(x_at + dim, mask=mask, other=0.0).to(tl.float32)
    partner = tl.where(dim < HALF, dim + HALF, dim - HALF)
    has_partner = dim < 2 * HALF
    other = tl.load(x_at + partner, mask=has_partner, other=0.0).to(tl.float32)
    if weight is not None:
        factor = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / HEAD_SIZE + eps)
        x = x * factor * tl.load(weight + dim, mask=mask, other=0.0).to(tl.float32)
        other = other * factor * tl.load(weight + partner, mask=has_partner, other=0.0).to(tl.float32)
    if HALF > 0:
        angle = position.to(tl.int64) * HALF + tl.where(dim < HALF, dim, partner)
        c = tl.load(cos + angle, mask=has_partner, other=1.0)
        s = tl.load(sin + angle, mask=has_partner, other=0.0)
        x = x * c + tl.where(dim < HALF, -other, other) * s
    return x


@jit
def _write(
    to: tl.tensor,
    at: tl.tensor,
    scales: tl.tensor,
    scale_at: tl.tensor,
    x: tl.tensor,
    mask: tl.tensor,
    LARGEST_CODE: tl.constexpr,
    IS_FP8: tl.constexpr,
) -> None:
    """Write one head in the pool's form."""
    if LARGEST_CODE is None:
        tl.store(to + at, x.to(to.dtype.element_ty), mask=mask)
    else:
        has_nan = tl.max(tl.where(x == x, 0, 1), 0) > 0  # maxima ignore NaN
        top = tl.max(tl.abs(x), 0)
        is_number = (top < _ENDLESS_MAGNITUDE) & (has_nan == 0)
        has_codes = is_number & (top >= _LEAST_MAGNITUDE)
        largest = tl.where(has_codes, top, 1.0)
        x = tl.where(has_codes, x, 0.0)
        steps = tl.div_rn(largest * 0 + LARGEST_CODE, largest)
        scale = tl.div_rn(largest, largest * 0 + LARGEST_CODE)
        if IS_FP8:
            code = e4m3_code(x * steps)
        else:
            scale = (scale.to(tl.uint32, bitcast=True) & 0xFFFFFFFC).to(tl.float32, bitcast=True)
            code = nearest_integer(x.to(tl.float64) * steps.to(tl.float64)).to(tl.int8)
        scale = tl.where(has_codes, scale, tl.where(is_number, 0.0, float("nan")))
        tl.store(scales + scale_at, scale)
        tl.store(to + at, code, mask=mask)
