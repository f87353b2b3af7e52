"""The three kernels of attention: partitions walked by one program, or split among programs, and their merge.

What they compute is in `attention_partition`, and who starts them in `attention`.
"""

from __future__ import annotations

import triton.language as tl

from octavo.device.triton.attention_partition import (
    BLOCK_N,
    PARTITION,
    fold,
    lowest_seen,
    partition,
    row_positions,
    tile_place,
    write_rows,
)
from octavo.device.triton.launch import jit, kernel


@kernel()
def walk_partitions(
    out: tl.tensor,
    log_sum_exp: tl.tensor,
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    tables: tl.tensor,
    table_rows: tl.tensor,
    starts: tl.tensor,
    offsets: tl.tensor,
    tile_chunks: tl.tensor,
    tile_rows: tl.tensor,
    num_tiles: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    out_stride: tl.tensor,
    q_stride: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    table_stride: tl.tensor,
    factor: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
    IS_FP8: tl.constexpr,
) -> None:
    """One program for each (tile, kv head): all its partitions in ascending order."""
    tile, kv_head, num_kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if tile >= tl.load(num_tiles):
        return
    table_row, begin, position, num_tokens = tile_place(
        tile, tile_chunks, tile_rows, table_rows, starts, offsets, TOKENS
    )
    own, low = row_positions(position, num_tokens, window, GROUP, ROWS)
    slope = slopes
    if slopes is not None:
        slope = tl.load(slopes + kv_head * GROUP + tl.arange(0, ROWS) % GROUP)
    rows = (own, low)
    queries = _queries(q, q_stride, begin, num_tokens, kv_head, GROUP, HEAD_SIZE, ROWS, BLOCK_D, DOT)
    table = tables + table_row.to(tl.int64) * table_stride
    memory = (keys, values, block_stride, scale_stride, table, kv_head, num_kv_heads)
    tile_low, tile_stop = lowest_seen(position, window), position + num_tokens
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for base in range(tile_low // PARTITION * PARTITION, tile_stop, PARTITION):
        span = _span(base, tile_low, tile_stop)
        part_largest, part_total, part_out = partition(
            queries, memory, scales, span, rows, factor, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, IS_FP8
        )
        largest, total, summed = fold(largest, total, summed, part_largest, part_total, part_out)
    softmax = (largest, total, summed)
    place = (begin, num_tokens, kv_head, num_kv_heads)
    write_rows(out, out_stride, log_sum_exp, place, softmax, sinks, HEAD_SIZE, GROUP)


@kernel()
def split_partitions(
    partial_largest: tl.tensor,
    partial_total: tl.tensor,
    partial_out: tl.tensor,
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    tables: tl.tensor,
    table_rows: tl.tensor,
    starts: tl.tensor,
    offsets: tl.tensor,
    tile_chunks: tl.tensor,
    tile_rows: tl.tensor,
    tile_ends: tl.tensor,
    num_tiles: tl.tensor,
    slopes: tl.tensor,
    q_stride: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    table_stride: tl.tensor,
    factor: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    SEARCH_STEPS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
    IS_FP8: tl.constexpr,
) -> None:
    """A fixed number of programs for each kv head, which take (tile, partition) items in turn."""
    kv_head, num_kv_heads = tl.program_id(1), tl.num_programs(1)
    tiles = tl.load(num_tiles)
    num_items = tl.load(tile_ends + tiles - 1, mask=tiles > 0, other=0)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        tile = _tile_of(item, tile_ends, tiles, SEARCH_STEPS)
        table_row, begin, position, num_tokens = tile_place(
            tile, tile_chunks, tile_rows, table_rows, starts, offsets, TOKENS
        )
        own, low = row_positions(position, num_tokens, window, GROUP, ROWS)
        slope = slopes
        if slopes is not None:
            slope = tl.load(slopes + kv_head * GROUP + tl.arange(0, ROWS) % GROUP)
        rows = (own, low)
        queries = _queries(q, q_stride, begin, num_tokens, kv_head, GROUP, HEAD_SIZE, ROWS, BLOCK_D, DOT)
        table = tables + table_row.to(tl.int64) * table_stride
        memory = (keys, values, block_stride, scale_stride, table, kv_head, num_kv_heads)
        tile_low = lowest_seen(position, window)
        base = (tile_low // PARTITION + item - _items_before(tile, tile_ends)) * PARTITION
        span = _span(base, tile_low, position + num_tokens)
        largest, total, summed = partition(
            queries, memory, scales, span, rows, factor, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, IS_FP8
        )
        row, real = _partial_rows(item, kv_head, num_kv_heads, num_tokens, TOKENS, GROUP, ROWS)
        tl.store(partial_largest + row, largest, mask=real)
        tl.store(partial_total + row, total, mask=real)
        dim = tl.arange(0, BLOCK_D)
        at = partial_out + row[:, None] * HEAD_SIZE + dim[None, :]
        tl.store(at, summed, mask=real[:, None] & (dim < HEAD_SIZE)[None, :])


@kernel()
def merge_partitions(
    out: tl.tensor,
    log_sum_exp: tl.tensor,
    partial_largest: tl.tensor,
    partial_total: tl.tensor,
    partial_out: tl.tensor,
    table_rows: tl.tensor,
    starts: tl.tensor,
    offsets: tl.tensor,
    tile_chunks: tl.tensor,
    tile_rows: tl.tensor,
    tile_ends: tl.tensor,
    num_tiles: tl.tensor,
    sinks: tl.tensor,
    out_stride: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """One program for each (tile, kv head): the partials of its partitions in ascending order."""
    tile, kv_head, num_kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if tile >= tl.load(num_tiles):
        return
    _, begin, _, num_tokens = tile_place(tile, tile_chunks, tile_rows, table_rows, starts, offsets, TOKENS)
    dim = tl.arange(0, BLOCK_D)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for item in range(_items_before(tile, tile_ends), tl.load(tile_ends + tile)):
        row, real = _partial_rows(item, kv_head, num_kv_heads, num_tokens, TOKENS, GROUP, ROWS)
        part_largest = tl.load(partial_largest + row, mask=real, other=float("-inf"))
        part_total = tl.load(partial_total + row, mask=real, other=0.0)
        at = partial_out + row[:, None] * HEAD_SIZE + dim[None, :]
        part_out = tl.load(at, mask=real[:, None] & (dim < HEAD_SIZE)[None, :], other=0.0)
        largest, total, summed = fold(largest, total, summed, part_largest, part_total, part_out)
    softmax = (largest, total, summed)
    place = (begin, num_tokens, kv_head, num_kv_heads)
    write_rows(out, out_stride, log_sum_exp, place, softmax, sinks, HEAD_SIZE, GROUP)


@jit
def _queries(
    q: tl.tensor,
    q_stride: tl.tensor,
    begin: tl.tensor,
    num_tokens: tl.tensor,
    kv_head: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
) -> tl.tensor:
    """(ROWS, BLOCK_D) of a tile; padding is zero."""
    row, dim = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    token, head = row // GROUP, kv_head * GROUP + row % GROUP
    at = (begin + token).to(tl.int64)[:, None] * q_stride + (head * HEAD_SIZE)[:, None] + dim[None, :]
    mask = (token < num_tokens)[:, None] & (dim < HEAD_SIZE)[None, :]
    return tl.load(q + at, mask=mask, other=0.0).to(DOT)


@jit
def _span(base: tl.tensor, tile_low: tl.tensor, tile_stop: tl.tensor) -> tl.tensor:
    """What a tile reads of the partition at `base`."""
    first = tl.maximum(base, tile_low // BLOCK_N * BLOCK_N)
    return first, tl.minimum(base + PARTITION, tile_stop), tile_low


@jit
def _tile_of(item: tl.tensor, tile_ends: tl.tensor, num_tiles: tl.tensor, STEPS: tl.constexpr) -> tl.tensor:
    """The first tile that ends beyond the item, by binary search."""
    low, high = num_tiles * 0, num_tiles
    for _ in range(STEPS):
        middle = (low + high) // 2
        is_open = low < high
        goes_up = is_open & (tl.load(tile_ends + middle, mask=is_open, other=0) <= item)
        low = tl.where(goes_up, middle + 1, low)
        high = tl.where(is_open & (goes_up == 0), middle, high)
    return low


@jit
def _items_before(tile: tl.tensor, tile_ends: tl.tensor) -> tl.tensor:
    """The tile's first item."""
    return tl.load(tile_ends + tile - 1, mask=tile > 0, other=0)


@jit
def _partial_rows(
    item: tl.tensor,
    kv_head: tl.tensor,
    num_kv_heads: tl.tensor,
    num_tokens: tl.tensor,
    TOKENS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """(ROWS,) each: a tile's rows in the partials (items, kv heads, tokens * group), and which are real."""
    row = tl.arange(0, ROWS).to(tl.int64)
    place = (item * num_kv_heads + kv_head) * (TOKENS * GROUP) + row
    return place, row // GROUP < num_tokens
