"""Paged attention on a device: prefill, decoding and mixed chunks, in two partitionings with the same bits.

    attend_walking      one program for each (tile, kv head): enough of them in a prefill
    attend_splitting    a fixed grid over (tile, partition) items; the program that ends a tile's last one
                        merges them: for few rows of long contexts

If V may hold NaN or infinity, a second walk checks tiles of several tokens; it ends at once if the result is
finite, so the first walk needs no registers for that.

The work list's sizes fix the grids, and the device reads its counts, so both can be captured in a CUDA graph.
The dtype of the products is q's, or that of K and V if those are floats that q's dtype cannot represent (q
bfloat16 over fp16 memory: q is rounded to fp16; over f32 memory it is widened).

T tokens in the step, H query heads, K kv heads, D head size, B block size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.device.layout import DevicePool
from octavo.device.triton.attention_kernels import split_partitions, walk_partitions
from octavo.device.triton.attention_work import SUB_TILE_SIZE, AttentionStep, AttentionWork
from octavo.device.triton.launch import TRITON_DTYPES, Argument, Constant, launch, padded
from octavo.device.triton.linear import shared_bytes_of

_REGISTERS_OF_CODES = 168  # of a thread that decodes codes: three such programs fit a multiprocessor
_LEAST_ROWS = 16  # of a tensor core's product
_LARGEST_HEAD = 256
_MERGED_MAX, _MERGED_NUMBERS = 16, 2048  # partials, and numbers of these, that a merge loads at once
_OTHER_SHARED_BYTES = 3 * 1024  # in addition to queries and sub-tiles


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """An `AttentionSpec` with `sinks` and `slopes` (H,) float32 on the device."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionScratch:
    """Partials of (tile, partition) items, float32, not divided, and the number written of each tile."""

    largest: torch.Tensor  # (items, K, tokens per tile * H / K)
    total: torch.Tensor  # the same
    out: torch.Tensor  # (..., D)
    num_written: torch.Tensor  # (items, K) int32: zeros between launches


def allocate_scratch(
    items_max: int,
    tokens_per_tile: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    device: torch.device,
) -> AttentionScratch:
    """Memory for the partials of `items_max` items."""
    shape = (items_max, num_kv_heads, tokens_per_tile * num_heads // num_kv_heads)
    largest, total = torch.empty((2, *shape), dtype=torch.float32, device=device)
    out = torch.empty((*shape, head_size), dtype=torch.float32, device=device)
    return AttentionScratch(
        largest, total, out, torch.zeros((items_max, num_kv_heads), dtype=torch.int32, device=device)
    )


def attend_walking(
    out: torch.Tensor,
    q: torch.Tensor,
    pool: DevicePool,
    layer: int,
    step: AttentionStep,
    work: AttentionWork,
    form: AttentionForm,
    log_sum_exp: torch.Tensor | None = None,
) -> None:
    """Causal attention of q (T, H * D) into out (T, H * D), other memory; rows may be strided.

    Fills log_sum_exp (T, H) float32 where it is given: the natural logarithm of the softmax's denominator.
    """
    _walk(out, q, pool, layer, step, work, form, log_sum_exp, is_careful=False)
    if _may_spoil(work, pool):
        _walk(out, q, pool, layer, step, work, form, log_sum_exp, is_careful=True)


def attend_splitting(
    out: torch.Tensor,
    q: torch.Tensor,
    pool: DevicePool,
    layer: int,
    step: AttentionStep,
    work: AttentionWork,
    form: AttentionForm,
    scratch: AttentionScratch,
    num_programs: int,
    log_sum_exp: torch.Tensor | None = None,
) -> None:
    """As `attend_walking`, by `num_programs` programs for each kv head. Overwrites `scratch`, which no
    concurrent launch may use."""
    sizes = _check(out, q, pool, form, log_sum_exp)
    rows = work.tokens_per_tile * sizes.group
    assert scratch.largest.shape[0] >= work.items_max
    assert scratch.out.shape[1:] == (sizes.num_kv_heads, rows, sizes.head_size)
    partials = (scratch.largest, scratch.total, scratch.out, scratch.num_written)
    tiles = (work.tile_chunks, work.tile_rows, work.tile_ends, work.num_tiles)
    chunks = (step.table_rows, step.starts, step.offsets)
    tile = _tile_constants(sizes, work.tokens_per_tile)
    compiled, merged = _form_of(tile, q, pool), padded(rows)
    many = min(_MERGED_MAX, max(1, _MERGED_NUMBERS // (merged * padded(sizes.head_size, 16))))
    launch(
        split_partitions,
        (num_programs, sizes.num_kv_heads),
        [
            *(out, log_sum_exp, *partials, q, *_memory(pool, layer), step.tables, *chunks, *tiles),
            *(
                form.sinks,
                form.slopes,
                out.stride(0),
                q.stride(0),
                *_strides(pool, layer),
                step.tables.stride(0),
            ),
            *(form.scale, form.soft_cap, form.window),
        ],
        {"SEARCH_STEPS": work.tiles_max.bit_length(), "MERGED": merged, "MANY": many}
        | tile
        | _held_constants(q, pool),
        num_warps=compiled.num_warps,
        num_stages=compiled.num_stages,
        registers_max=_REGISTERS_OF_CODES if pool.layout.has_scales and work.tokens_per_tile == 1 else None,
    )
    if _may_spoil(work, pool):
        _walk(out, q, pool, layer, step, work, form, log_sum_exp, is_careful=True)


def _walk(
    out: torch.Tensor,
    q: torch.Tensor,
    pool: DevicePool,
    layer: int,
    step: AttentionStep,
    work: AttentionWork,
    form: AttentionForm,
    log_sum_exp: torch.Tensor | None,
    *,
    is_careful: bool,
) -> None:
    sizes = _check(out, q, pool, form, log_sum_exp)
    tile = _tile_constants(sizes, work.tokens_per_tile)
    compiled = _form_of(tile, q, pool, is_decoding_walk=work.tokens_per_tile == 1)
    launch(
        walk_partitions,
        (work.tiles_max, sizes.num_kv_heads),
        [
            *(out, log_sum_exp, q, *_memory(pool, layer)),
            *(step.tables, step.table_rows, step.starts, step.offsets),
            *(work.tile_chunks, work.tile_rows, work.num_tiles, form.sinks, form.slopes),
            *(out.stride(0), q.stride(0), *_strides(pool, layer), step.tables.stride(0)),
            *(form.scale, form.soft_cap, form.window),
        ],
        tile | _held_constants(q, pool) | {"CAREFUL": is_careful},
        num_warps=compiled.num_warps,
        num_stages=compiled.num_stages,
    )


def _may_spoil(work: AttentionWork, pool: DevicePool) -> bool:
    """Whether a non-finite V may have spoilt rows of a tile that do not see it."""
    return work.tokens_per_tile > 1 and not pool.layout.has_scales


@dataclass(frozen=True, slots=True)
class _Sizes:
    num_kv_heads: int
    group: int  # query heads that read one kv head
    head_size: int


def _check(
    out: torch.Tensor,
    q: torch.Tensor,
    pool: DevicePool,
    form: AttentionForm,
    log_sum_exp: torch.Tensor | None,
) -> _Sizes:
    shape = pool.shape
    size, num_heads = shape.head_size, q.shape[1] // shape.head_size
    assert size % 8 == 0
    assert size <= _LARGEST_HEAD
    assert q.shape == out.shape
    assert q.dtype == out.dtype
    assert q.dtype in TRITON_DTYPES
    assert q.stride(1) == 1
    assert out.stride(1) == 1
    assert q.shape[1] == num_heads * size
    assert num_heads % shape.num_kv_heads == 0
    assert form.window is None or form.window > 0
    assert form.scale > 0
    assert log_sum_exp is None or (
        log_sum_exp.is_contiguous() and log_sum_exp.shape == (q.shape[0], num_heads)
    )
    for vector in (form.sinks, form.slopes):
        assert vector is None or (vector.shape == (num_heads,) and vector.dtype == torch.float32)
    return _Sizes(shape.num_kv_heads, num_heads // shape.num_kv_heads, size)


def _tile_constants(sizes: _Sizes, tokens: int) -> dict[str, Constant]:
    return {
        "GROUP": sizes.group,
        "HEAD_SIZE": sizes.head_size,
        "TOKENS": tokens,
        "ROWS": padded(tokens * sizes.group, _LEAST_ROWS),
        "BLOCK_D": padded(sizes.head_size, 16),
    }


def _held_constants(q: torch.Tensor, pool: DevicePool) -> dict[str, Constant]:
    held = pool.layout.dtype
    is_exact = pool.layout.has_scales or q.dtype in (held, torch.float32)
    dot = TRITON_DTYPES[q.dtype if is_exact else held]
    codes = pool.shape.kind if pool.layout.has_scales else ""
    return {"BLOCK_SIZE": pool.shape.block_size, "DOT": dot, "CODES": codes}


def _memory(pool: DevicePool, layer: int) -> tuple[Argument, Argument, Argument]:
    """K, V and scales of a layer; codes as words of four, which the kernels decode themselves."""
    keys, values = pool.keys(layer), pool.values(layer)
    if not pool.layout.has_scales:
        return keys, values, None
    return keys.view(torch.int32), values.view(torch.int32), pool.scales(layer)


def _strides(pool: DevicePool, layer: int) -> tuple[int, int]:
    """Numbers or words from block to block of K or V, and numbers of scales."""
    stride = pool.keys(layer).stride(0)
    return (stride // 4, pool.scales(layer).stride(0)) if pool.layout.has_scales else (stride, 0)


@dataclass(frozen=True, slots=True)
class _Form:
    """The compile options of a tile's kernel."""

    num_warps: int
    num_stages: int


def _form_of(
    tile: dict[str, Constant], q: torch.Tensor, pool: DevicePool, *, is_decoding_walk: bool = False
) -> _Form:
    """As many warps as needed for the rows in registers, and as many stages as shared memory can hold.

    Block tables are loaded a stage before K and V, so three stages hold two sub-tiles, five stages three.
    Decoding walks are used for many rows: with two sub-tiles they need fewer registers, so three run at once
    on a multiprocessor, and load while others compute.
    """
    rows, size = tile["ROWS"], tile["BLOCK_D"]
    assert isinstance(rows, int)
    assert isinstance(size, int)
    num_warps = 8 if rows > 64 or (rows > 16 and size > 128) else 4
    num_bytes = max(q.element_size(), pool.layout.dtype.itemsize)
    room = shared_bytes_of(q.device) - _OTHER_SHARED_BYTES - rows * size * num_bytes
    sub_tiles = room // (2 * SUB_TILE_SIZE * size * num_bytes)
    if is_decoding_walk:
        sub_tiles = min(sub_tiles, 2)
    return _Form(num_warps, 5 if sub_tiles > 2 else 3 if sub_tiles == 2 else 1)
