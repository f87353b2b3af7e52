"""Paged attention against a softmax in double, over shapes, kinds of KV and forms; and its exactness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.device.triton.steps import CPU, Context, Step, attended, make_context

from octavo.device.compiled_step import AttentionSizes, arrays_of, size_of, step_in
from octavo.device.rows import DeviceRows, pack
from octavo.device.triton.attention import (
    AttentionForm,
    allocate_scratch,
    attend_splitting,
    attend_walking,
)
from octavo.device.triton.attention_work import AttentionWork, prefill_tokens_per_tile, tiles_of
from octavo.executor.batch import shape_of
from octavo.types import Chunk

pytestmark = pytest.mark.full

PLAIN = AttentionForm(scale=0.2)
DECODE = Step([(0, 299, 1), (1, 16, 1), (2, 530, 1)])
PREFILL = Step([(1, 0, 7)])
MIXED = Step([(0, 250, 9), (2, 530, 1), (1, 0, 3)])  # crosses a border of partitions
LENGTHS = [300, 17, 531]


def walked(
    q: torch.Tensor, context: Context, step: Step, form: AttentionForm, work: AttentionWork
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.full_like(q, 7)
    log_sum_exp = torch.full((q.shape[0], q.shape[1] // context.k.shape[3]), 7.0)
    attend_walking(out, q, context.pool, 1, step.on_device(context), work, form, log_sum_exp)
    return out, log_sum_exp


def split(
    q: torch.Tensor, context: Context, step: Step, form: AttentionForm, work: AttentionWork, programs: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    heads, size = context.k.shape[2:]
    out = torch.full_like(q, 7)
    log_sum_exp = torch.full((q.shape[0], q.shape[1] // size), 7.0)
    scratch = allocate_scratch(work.items_max, work.tokens_per_tile, q.shape[1] // size, heads, size, CPU)
    attend_splitting(
        out, q, context.pool, 1, step.on_device(context), work, form, scratch, programs, log_sum_exp
    )
    return out, log_sum_exp


def check(
    q: torch.Tensor, context: Context, step: Step, form: AttentionForm, tokens: int, tolerance: float
) -> None:
    """Both ways are close to the oracle, and equal to each other."""
    work = step.work(tokens, form.window, spare=2)
    out, log_sum_exp = walked(q, context, step, form, work)
    want, want_log_sum_exp = attended(q, context, step, form)
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(log_sum_exp.double(), want_log_sum_exp, atol=tolerance, rtol=tolerance)
    for way, other in zip(split(q, context, step, form, work), (out, log_sum_exp), strict=True):
        assert torch.equal(way, other)


@pytest.mark.parametrize("step", [DECODE, PREFILL, MIXED], ids=["decode", "prefill", "mixed"])
@pytest.mark.parametrize(
    "heads, kv_heads, size, block_size", [(4, 2, 16, 16), (3, 1, 80, 32), (2, 2, 128, 64), (8, 1, 24, 16)]
)
def test_every_shape_is_close_to_the_softmax(
    step: Step, heads: int, kv_heads: int, size: int, block_size: int, rng: torch.Generator
) -> None:
    context = make_context(LENGTHS, kv_heads, size, block_size, "f32", rng)
    q = torch.randn((step.num_tokens, heads * size), generator=rng)
    check(q, context, step, PLAIN, 1 if step is DECODE else 4, 3e-6)


FORMS = {
    "window in a sub-tile": replace(PLAIN, window=5),
    "window over partitions": replace(PLAIN, window=270),
    "soft cap": replace(PLAIN, soft_cap=2.0),
    "sinks": replace(PLAIN, sinks=torch.tensor([0.5, -3.0, 4.0, 0.0])),
    "alibi": replace(PLAIN, slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625])),
    "all": AttentionForm(0.2, 100, 3.0, torch.tensor([0.5, -3, 4, 0]), torch.tensor([0.5, 0.25, 0.125, 0])),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("step", [DECODE, MIXED], ids=["decode", "mixed"])
def test_every_form_is_close_to_the_softmax(step: Step, name: str, rng: torch.Generator) -> None:
    context = make_context(LENGTHS, 2, 16, 16, "f32", rng)
    q = torch.randn((step.num_tokens, 4 * 16), generator=rng)
    check(q, context, step, FORMS[name], 8, 3e-6)


@pytest.mark.parametrize("kind", ["f32", "bf16", "fp16", "int8", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
def test_every_kind_of_memory_is_read_as_it_was_stored(
    kind: str, dtype: torch.dtype, rng: torch.Generator
) -> None:
    if kind == "bf16" and dtype == torch.float16:
        pytest.skip("products of bfloat16 are wrong in Triton's interpreter (triton #11584)")
    context = make_context(LENGTHS, 2, 32, 16, kind, rng)
    q = torch.randn((MIXED.num_tokens, 4 * 32), generator=rng).to(dtype)
    check(q, context, MIXED, PLAIN, 8, 3e-6 if dtype == torch.float32 else 4e-3)


def test_queries_may_lie_in_a_wider_buffer(rng: torch.Generator) -> None:
    context = make_context(LENGTHS, 2, 16, 16, "f32", rng)
    wide = torch.randn((MIXED.num_tokens, 8 * 16), generator=rng)
    work = MIXED.work(8, None)
    out, _ = walked(wide[:, 16 : 5 * 16], context, MIXED, PLAIN, work)
    assert torch.equal(out, walked(wide[:, 16 : 5 * 16].contiguous(), context, MIXED, PLAIN, work)[0])


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("kind", ["f32", "int8"])
def test_a_row_alone_has_the_bits_it_has_in_a_crowd(kind: str, rng: torch.Generator) -> None:
    context = make_context(LENGTHS, 2, 16, 16, kind, rng)
    q = torch.randn((DECODE.num_tokens, 4 * 16), generator=rng)
    crowd, _ = split(q, context, DECODE, PLAIN, DECODE.work(1, None), programs=2)
    for row, chunk in enumerate(DECODE.chunks):
        alone = Step([chunk])
        out, _ = walked(q[row : row + 1], context, alone, PLAIN, alone.work(1, None))
        assert torch.equal(out, crowd[row : row + 1])


@pytest.mark.usefixtures("chained_dots")
def test_a_token_has_the_same_bits_in_any_place_of_a_tile(rng: torch.Generator) -> None:
    """Sub-tiles of which a row sees nothing, partitions before its window: none may change a bit."""
    context = make_context([400], 1, 16, 16, "f32", rng)
    form = replace(PLAIN, window=70)
    whole = Step([(0, 320, 16)])
    q = torch.randn((16, 16), generator=rng)
    want, _ = walked(q, context, whole, form, whole.work(16, form.window))
    for first in (3, 9, 15):
        part = Step([(0, 320 + first, 16 - first)])
        out, _ = walked(q[first:], context, part, form, part.work(16, form.window))
        assert torch.equal(out, want[first:])


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("kind", ["f32", "int8", "fp8"])
@pytest.mark.parametrize("window", [None, 600])
def test_a_prompt_has_the_bits_of_decoding_with_masks_and_without(
    kind: str, window: int | None, rng: torch.Generator
) -> None:
    """Positions 767 to 774 see partitions as a whole, the first and the last of them in part."""
    context = make_context([775], 1, 16, 16, kind, rng)
    form = replace(PLAIN, window=window)
    whole = Step([(0, 767, 8)])
    q = torch.randn((8, 2 * 16), generator=rng)
    want, _ = walked(q, context, whole, form, whole.work(8, window))
    assert torch.equal(split(q, context, whole, form, whole.work(8, window))[0], want)
    alone = Step([(0, 767 + row, 1) for row in range(8)])
    for way in (walked, split):
        assert torch.equal(way(q, context, alone, form, alone.work(1, window))[0], want)


def test_a_split_leaves_its_scratch_as_the_next_layer_needs_it(rng: torch.Generator) -> None:
    """Counts of partials begin at zero; how many programs there are, and so which one merges, is the same."""
    context = make_context(LENGTHS, 2, 16, 16, "f32", rng)
    q, out = torch.randn((2, 3, 4 * 16), generator=rng)
    work = DECODE.work(1, None, spare=2)
    scratch = allocate_scratch(work.items_max, 1, 4, 2, 16, CPU)
    want, _ = walked(q, context, DECODE, PLAIN, work)
    for programs in (1, 2, 5, 50):
        attend_splitting(out, q, context.pool, 1, DECODE.on_device(context), work, PLAIN, scratch, programs)
        assert torch.equal(out, want)
        assert not scratch.num_written.any()
        out.zero_()


@pytest.mark.parametrize("length", [16 * 256, 16 * 256 + 1])
def test_more_partials_than_a_merge_loads_at_a_time(length: int, rng: torch.Generator) -> None:
    context = make_context([length], 1, 16, 16, "f32", rng)
    step = Step([(0, length - 1, 1)])
    q = torch.randn((1, 2 * 16), generator=rng)
    check(q, context, step, PLAIN, 1, 3e-6)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_row_that_sees_what_is_no_number_is_none_in_any_tile(number: float, rng: torch.Generator) -> None:
    context = make_context([300], 1, 16, 16, "f32", rng)
    q = torch.randn((16, 2 * 16), generator=rng)
    context.pool.values(1)[int(context.tables[0, 259 // 16]), 0, 259 % 16, 5] = number
    whole, alone = Step([(0, 252, 16)]), Step([(0, 252 + row, 1) for row in range(16)])
    for step, tokens in ((whole, 16), (whole, 3), (alone, 1)):
        for way in (walked, split):
            out, _ = way(q, context, step, PLAIN, step.work(tokens, None))
            assert bool(out[:7].isfinite().all())
            assert bool(out[7:].isnan().all())


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_value", [False, True], ids=["k", "v"])
def test_what_is_no_number_reaches_those_who_see_it_and_no_one_else(
    number: float, is_value: bool, rng: torch.Generator
) -> None:
    context = make_context([300], 1, 16, 16, "f32", rng)
    step = Step([(0, 252, 16)])
    q = torch.randn((16, 2 * 16), generator=rng).abs()
    work = step.work(16, None)
    want = [way(q, context, step, PLAIN, work)[0] for way in (walked, split)]
    block, slot = int(context.tables[0, 259 // 16]), 259 % 16
    part = context.pool.values(1) if is_value else context.pool.keys(1)
    part[block, 0, slot, 5] = number
    for way, before in zip((walked, split), want, strict=True):
        out, _ = way(q, context, step, PLAIN, work)
        assert torch.equal(out[:7], before[:7])  # positions 252 to 258
        assert bool(out[7:].isnan().reshape(9, 2, 16).any(-1).all())


def test_a_scale_that_is_no_number_reaches_those_who_see_it_and_no_one_else(rng: torch.Generator) -> None:
    context = make_context([30], 1, 16, 16, "int8", rng)
    step = Step([(0, 12, 16)])
    q = torch.randn((16, 2 * 16), generator=rng)
    want, _ = walked(q, context, step, PLAIN, step.work(16, None))
    context.pool.scales(1)[int(context.tables[0, 1]), 1, 0, 3] = float("nan")  # V at position 19
    out, _ = walked(q, context, step, PLAIN, step.work(16, None))
    assert torch.equal(out[:7], want[:7])
    assert bool(out[7:].isnan().all())


def test_padding_of_the_work_list_writes_nothing(rng: torch.Generator) -> None:
    context = make_context(LENGTHS, 2, 16, 16, "f32", rng)
    q = torch.randn((3, 4 * 16), generator=rng)
    work = DECODE.work(1, None)
    none = replace(work, num_tiles=torch.zeros(1, dtype=torch.int32))
    for way in (walked, split):
        assert bool((way(q, context, DECODE, PLAIN, none)[0] == 7).all())


@pytest.mark.parametrize("window", [None, 1, 300])
def test_tiles_cover_every_token_once_and_every_partition_it_sees(window: int | None) -> None:
    starts, lengths = np.array([510, 0, 7, 255], np.int32), np.array([5, 2, 0, 3], np.int32)
    tiles = tiles_of(starts, lengths, 2, window)
    chunks, rows, ends, total = [], [], [], 0
    for chunk, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        for row in range(0, length, 2):
            seen = {
                p // 256
                for own in range(start + row, start + min(row + 2, length))
                for p in range(0 if window is None else max(0, own - window + 1), own + 1)
            }
            total += len(seen)
            chunks, rows, ends = [*chunks, chunk], [*rows, row], [*ends, total]
    assert (tiles.chunks.tolist(), tiles.rows.tolist(), tiles.ends.tolist()) == (chunks, rows, ends)


def test_a_tile_of_a_prefill_fills_the_rows_of_a_product() -> None:
    assert prefill_tokens_per_tile(32, 8, 128) == 32
    assert prefill_tokens_per_tile(32, 8, 64) == 16
    assert prefill_tokens_per_tile(32, 8, 256) == 8
    assert prefill_tokens_per_tile(128, 1, 64) == 1


@pytest.mark.parametrize(
    "heads, kv_heads", [(4, 2), (64, 1)], ids=["tiles of 32 tokens", "tiles of one token"]
)
@pytest.mark.parametrize("step", [DECODE, PREFILL, MIXED], ids=["decode", "prefill", "mixed"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_the_lists_of_a_step_cover_every_token_whatever_a_tile_holds(
    is_padded: bool, step: Step, heads: int, kv_heads: int, rng: torch.Generator
) -> None:
    context = make_context(LENGTHS, kv_heads, 16, 16, "f32", rng)
    q = torch.randn((step.num_tokens, heads * 16), generator=rng)
    sizes = AttentionSizes(heads, kv_heads, 16, (None,), 3, num_processors=1, max_rows=len(LENGTHS))
    chunks = [Chunk(row, row, start, length, 1, start) for row, start, length in step.chunks]
    shape = shape_of(tuple(chunks))
    rows = DeviceRows(len(LENGTHS), max(LENGTHS), 16, CPU)
    rows.tables[...] = context.tables[:, : rows.tables.shape[1]]
    size = size_of(shape, sizes)
    size = size.rounded() if is_padded else size
    arrays = torch.from_numpy(pack(arrays_of(shape, size, sizes)))
    partials = allocate_scratch(3 * size.tokens, 1, heads, kv_heads, 16, CPU)
    compiled = step_in(arrays, size, sizes, rows, None, partials)
    q = torch.cat([q, torch.randn((size.tokens - step.num_tokens, heads * 16), generator=rng)])
    out = torch.full_like(q, float("nan"))
    compiled.attend(out, q, context.pool, 1, PLAIN)
    num = step.num_tokens
    want = attended(q[:num], context, step, PLAIN)[0]
    torch.testing.assert_close(out[:num].double(), want, atol=3e-6, rtol=3e-6)
    assert bool(out[num:].isnan().all()), "padding was written"
