"""What a rank computes of a product, or of attention, has the bits of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.device.triton.steps import CPU, Context, Step, make_context
from tests.device.triton.test_paged_attention import PLAIN, split, walked

from octavo.device.layout import allocate_pool
from octavo.device.triton.linear import linear, linear_gated
from octavo.device.triton.vocabulary import logits
from octavo.device.weights import DeviceMatrix, interleaved
from octavo.model.split import Split

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("chained_dots")]

PARTS = [2, 3, 4, 8]
STEP = Step([(0, 299, 1), (1, 16, 1), (2, 250, 9)])  # both ways of attention; crosses a border of partitions
LENGTHS = [300, 17, 531]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 130])
def test_slices_of_a_products_outputs(rows: int, dtype: torch.dtype, rng: torch.Generator) -> None:
    count, inputs = 203, 128
    x = torch.randn((rows, inputs), generator=rng).to(dtype)
    weight = torch.randn((count, inputs), generator=rng).to(dtype)
    bias = torch.randn(count, generator=rng)
    whole, scores = x.new_empty((rows, count)), torch.empty((rows, count))
    linear(whole, x, weight, bias)
    logits(scores, x, weight, 3.0)
    for parts in PARTS:
        for rank in range(parts):
            own = Split(rank, parts).rows(count)
            cut = slice(own.start, own.stop)
            out, part = x.new_empty((rows, len(own))), torch.empty((rows, len(own)))
            linear(out, x, weight[cut].contiguous(), bias[cut].contiguous())
            logits(part, x, weight[cut].contiguous(), 3.0)
            assert torch.equal(out, whole[:, cut])
            assert torch.equal(part, scores[:, cut])


@pytest.mark.parametrize("rows", [1, 17, 130])
def test_slices_of_a_gated_product(rows: int, rng: torch.Generator) -> None:
    count, inputs = 96, 128
    x = torch.randn((rows, inputs), generator=rng)
    gate, up = (torch.randn((count, inputs), generator=rng) for _ in range(2))
    whole = x.new_empty((rows, count))
    linear_gated(whole, x, interleaved(DeviceMatrix(gate.clone()), DeviceMatrix(up.clone())), "silu")
    for parts in PARTS:
        for rank in range(parts):
            own = Split(rank, parts).rows(count)
            halves = [DeviceMatrix(each[own.start : own.stop].clone()) for each in (gate, up)]
            out = x.new_empty((rows, len(own)))
            linear_gated(out, x, interleaved(*halves), "silu")
            assert torch.equal(out, whole[:, own.start : own.stop])


def of_heads(context: Context, own: range) -> Context:
    """The same blocks with these KV heads alone."""
    cut, whole = slice(own.start, own.stop), context.pool
    pool = allocate_pool(replace(whole.shape, num_kv_heads=len(own)), whole.num_blocks, CPU)
    pool.data.fill_(0xFF)
    pool.keys(1)[...] = whole.keys(1)[:, cut]
    pool.values(1)[...] = whole.values(1)[:, cut]
    if whole.layout.has_scales:
        pool.scales(1)[...] = whole.scales(1)[:, :, cut]
    return Context(pool, context.tables, context.k[:, :, cut], context.v[:, :, cut])


@pytest.mark.parametrize("kind", ["f32", "bf16", "fp16", "int8", "fp8"])
@pytest.mark.parametrize("parts", PARTS)
def test_heads_of_attention(parts: int, kind: str, rng: torch.Generator) -> None:
    kv_heads, size = (3 if parts == 3 else 8 if parts == 8 else 4), 16
    context = make_context(LENGTHS, kv_heads, size, 16, kind, rng)
    q = torch.randn((STEP.num_tokens, 2 * kv_heads * size), generator=rng)
    work = STEP.work(8, None)
    whole = walked(q, context, STEP, PLAIN, work)[0], split(q, context, STEP, PLAIN, work)[0]
    for rank in range(parts):
        heads = Split(rank, parts).heads(2 * kv_heads)
        own = slice(heads.start * size, heads.stop * size)
        part = of_heads(context, Split(rank, parts).kv_heads(kv_heads))
        assert torch.equal(walked(q[:, own].contiguous(), part, STEP, PLAIN, work)[0], whole[0][:, own])
        assert torch.equal(split(q[:, own].contiguous(), part, STEP, PLAIN, work)[0], whole[1][:, own])
