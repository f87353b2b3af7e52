"""The two kernels of attention: partitions walked by one program, or split among programs and merged.

`attention_partition` has their arithmetic; `attention` launches them.
"""

from __future__ import annotations

import triton.language as tl

from octavo.device.triton.attention_partition import (
    BLOCK_N,
    PARTITION,
    add_sub_tile,
    all_finite,
    empty_part,
    fold,
    loaded_tile,
    lowest_seen,
    rows_at,
    softmax_of,
    tile_place,
    write_rows,
)
from octavo.device.triton.launch import jit, kernel

_FEW = tl.constexpr(4)  # of the last partials a merge loads so many together


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
    CODES: tl.constexpr,
    CAREFUL: tl.constexpr,
) -> None:
    """One program for each (tile, kv head): all its partitions in ascending order.

    CAREFUL: only tiles whose result, in `out`, is not finite, and those as if there were no such V.
    """
    kv_head, num_kv_heads = tl.program_id(1), tl.num_programs(1)
    tile = tl.load(num_tiles) - 1 - tl.program_id(0)  # a chunk's last tiles, which are longest, first
    if tile < 0:
        return
    table_row, begin, position, num_tokens = tile_place(
        tile, tile_chunks, tile_rows, table_rows, starts, offsets, TOKENS
    )
    row, place = tl.arange(0, ROWS), (begin, num_tokens, kv_head, num_kv_heads)
    if CAREFUL:
        at, mask = rows_at(row, place, out_stride, BLOCK_D, HEAD_SIZE, GROUP)
        if all_finite(tl.load(out + at, mask=mask, other=0.0)):
            return
    slope = slopes
    if slopes is not None:
        slope = tl.load(slopes + kv_head * GROUP + row % GROUP)
    memory = (keys, values, block_stride, scale_stride, tables + table_row.to(tl.int64) * table_stride)
    loaded = loaded_tile(
        q, q_stride, place, position, window, memory, factor, HEAD_SIZE, GROUP, ROWS, BLOCK_D, DOT
    )
    if CAREFUL or TOKENS == 1:
        span = (loaded[2][0] // PARTITION * PARTITION, loaded[2][1])
        softmax = _nothing(ROWS, BLOCK_D)
        softmax = _walked(
            softmax, span, loaded, scales, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, CODES, False, CAREFUL
        )
    else:
        softmax = _walked_by_masks(
            loaded, position, window, scales, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, CODES
        )
    write_rows(out, out_stride, log_sum_exp, row, place, softmax, sinks, HEAD_SIZE, GROUP)


@kernel()
def split_partitions(
    out: tl.tensor,
    log_sum_exp: tl.tensor,
    partial_largest: tl.tensor,
    partial_total: tl.tensor,
    partial_out: tl.tensor,
    num_written: tl.tensor,
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
    SEARCH_STEPS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
    CODES: tl.constexpr,
    MERGED: tl.constexpr,
    MANY: tl.constexpr,
) -> None:
    """A fixed number of programs for each kv head, which take (tile, partition) items in turn.

    The program that ends a tile's last item merges the tile's partials in ascending order.
    """
    kv_head, num_kv_heads = tl.program_id(1), tl.num_programs(1)
    tiles = tl.load(num_tiles)
    num_items = tl.load(tile_ends + tiles - 1, mask=tiles > 0, other=0)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        tile = _tile_of(item, tile_ends, tiles, SEARCH_STEPS)
        table_row, begin, position, num_tokens = tile_place(
            tile, tile_chunks, tile_rows, table_rows, starts, offsets, TOKENS
        )
        row, place = tl.arange(0, ROWS), (begin, num_tokens, kv_head, num_kv_heads)
        slope = slopes
        if slopes is not None:
            slope = tl.load(slopes + kv_head * GROUP + row % GROUP)
        memory = (keys, values, block_stride, scale_stride, tables + table_row.to(tl.int64) * table_stride)
        loaded = loaded_tile(
            q, q_stride, place, position, window, memory, factor, HEAD_SIZE, GROUP, ROWS, BLOCK_D, DOT
        )
        items = (_items_before(tile, tile_ends), tl.load(tile_ends + tile))
        part = _part_at(item - items[0], loaded, scales, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, CODES)
        partials = (partial_largest, partial_total, partial_out)
        _write_partials(partials, item, place, part, TOKENS * GROUP, HEAD_SIZE, GROUP)
        if _is_last(num_written + tile * num_kv_heads + kv_head, items):
            merged = tl.arange(0, MERGED)
            softmax = _merged_tile(partials, items, place, TOKENS * GROUP, HEAD_SIZE, BLOCK_D, MERGED, MANY)
            write_rows(out, out_stride, log_sum_exp, merged, place, softmax, sinks, HEAD_SIZE, GROUP)


@jit
def _part_at(
    place: tl.tensor,
    tile: tl.tensor,
    scales: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CODES: tl.constexpr,
) -> tl.tensor:
    """The partition at `place` among those that a tile sees."""
    low, stop = tile[2]
    base = (low // PARTITION + place) * PARTITION
    first = tl.maximum(base, low // BLOCK_N * BLOCK_N)
    none = _nothing(tile[0].shape[0], tile[0].shape[1])
    part = empty_part(tile[0].shape[0], tile[0].shape[1])
    for start in range(first, tl.minimum(base + PARTITION, stop), BLOCK_N):
        _, part = add_sub_tile(none, part, start, tile, scales, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, CODES)
    return part


@jit
def _is_last(counter: tl.tensor, items: tl.tensor) -> tl.tensor:
    """Count one more item of a tile as written; whether it was the last one. Then the counter is zero again.

    All threads have written before one of them counts; the count releases what they wrote, and acquires what
    other programs did.
    """
    tl.debug_barrier()
    is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == items[1] - items[0] - 1
    if is_last:
        tl.store(counter, 0)
    return is_last


@jit
def _write_partials(
    partials: tl.tensor,
    item: tl.tensor,
    place: tl.tensor,
    part: tl.tensor,
    ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """Write the real rows of a partition, of ROWS without padding, as the item's partials."""
    partial_largest, partial_total, partial_out = partials
    largest, total, out = softmax_of(part, CAREFUL=False)
    row = tl.arange(0, largest.shape[0])
    partial, real = _partial_rows(item, place[2], place[3], ROWS) + row, row // GROUP < place[1]
    tl.store(partial_largest + partial, largest, mask=real)
    tl.store(partial_total + partial, total, mask=real)
    dim = tl.arange(0, out.shape[1])
    at = partial_out + partial[:, None] * HEAD_SIZE + dim[None, :]
    tl.store(at, out, mask=real[:, None] & (dim < HEAD_SIZE)[None, :])


@jit
def _merged_tile(
    partials: tl.tensor,
    items: tl.tensor,
    place: tl.tensor,
    ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MERGED: tl.constexpr,
    MANY: tl.constexpr,
) -> tl.tensor:
    """The softmax of a tile's rows, MERGED with padding: items[0] to items[1] in order, MANY at once as long
    as there are so many."""
    first, stop = items
    heads = (place[2], place[3])
    many = first + (stop - first) // MANY * MANY
    few: tl.constexpr = _FEW if MANY > _FEW else MANY
    softmax = _merged(_nothing(MERGED, BLOCK_D), partials, first, many, heads, ROWS, HEAD_SIZE, MANY)
    return _merged(softmax, partials, many, stop, heads, ROWS, HEAD_SIZE, few)


@jit
def _merged(
    softmax: tl.tensor,
    partials: tl.tensor,
    first: tl.tensor,
    stop: tl.tensor,
    heads: tl.tensor,
    ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> tl.tensor:
    """The softmax of a tile's ROWS rows with items [first, stop) folded in, as many loaded at once, so that
    their latencies overlap. `heads`: the kv head, the number of kv heads."""
    largest, total, summed = softmax
    partial_largest, partial_total, partial_out = partials
    row, dim = tl.arange(0, summed.shape[0])[None, :], tl.arange(0, summed.shape[1])[None, None, :]
    for base in tl.range(first, stop, AT_ONCE, num_stages=1):
        item = base + tl.arange(0, AT_ONCE)
        there = (item < stop)[:, None] & (row < ROWS)  # the rest is empty: folding it changes no bit
        partial = _partial_rows(item, heads[0], heads[1], ROWS)[:, None] + row
        largest_of = tl.load(partial_largest + partial, mask=there, other=float("-inf"))
        total_of = tl.load(partial_total + partial, mask=there, other=0.0)
        at = partial_out + partial[:, :, None] * HEAD_SIZE + dim
        out_of = tl.load(at, mask=there[:, :, None] & (dim < HEAD_SIZE), other=0.0)
        for index in tl.static_range(AT_ONCE):
            part_largest, part_total = _taken(largest_of, index), _taken(total_of, index)
            part_out = _taken(out_of, index)
            largest, total, summed = fold(largest, total, summed, part_largest, part_total, part_out)
    return largest, total, summed


@jit
def _walked_by_masks(
    tile: tl.tensor,
    position: tl.tensor,
    window: tl.tensor,
    scales: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CODES: tl.constexpr,
) -> tl.tensor:
    """The softmax of a tile whose first token is at `position`.

    Partitions [first, seen_from) hold positions that are too old for some rows, those from seen_to on hold
    positions that are too new; those between go without masks.
    """
    low, stop = tile[2]
    seen_from = tl.cdiv(lowest_seen(stop - 1, window), PARTITION) * PARTITION
    seen_to = tl.maximum((position + 1) // PARTITION * PARTITION, seen_from)
    softmax = _nothing(tile[0].shape[0], tile[0].shape[1])
    if window is not None:
        span = (low // PARTITION * PARTITION, tl.minimum(seen_from, stop))
        softmax = _walked(softmax, span, tile, scales, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, CODES)
    span = (seen_from, seen_to)
    softmax = _walked(
        softmax, span, tile, scales, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, CODES, IS_WHOLE=True
    )
    span = (seen_to, stop)
    return _walked(softmax, span, tile, scales, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, CODES)


@jit
def _walked(
    softmax: tl.tensor,
    span: tl.tensor,
    tile: tl.tensor,
    scales: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CODES: tl.constexpr,
    IS_WHOLE: tl.constexpr = False,
    CAREFUL: tl.constexpr = False,
) -> tl.tensor:
    """The softmax with partitions folded in, from span[0], a border of partitions, to span[1].

    One loop over their sub-tiles, so that loads do not wait for the end of a partition.
    """
    first, stop = tl.maximum(span[0], tile[2][0] // BLOCK_N * BLOCK_N), span[1]
    part = empty_part(tile[0].shape[0], tile[0].shape[1])
    for start in tl.range(first, stop, BLOCK_N, num_stages=1 if CAREFUL else None):
        softmax, part = add_sub_tile(
            softmax,
            part,
            start,
            tile,
            scales,
            soft_cap,
            slope,
            HEAD_SIZE,
            BLOCK_SIZE,
            CODES,
            IS_WHOLE,
            CAREFUL,
            FOLDS=True,
        )
    part_largest, part_total, part_out = softmax_of(part, CAREFUL)
    return fold(softmax[0], softmax[1], softmax[2], part_largest, part_total, part_out)


@jit
def _nothing(ROWS: tl.constexpr, BLOCK_D: tl.constexpr) -> tl.tensor:
    """The softmax of rows before any position."""
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    return largest, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, BLOCK_D], tl.float32)


@jit
def _taken(numbers: tl.tensor, INDEX: tl.constexpr) -> tl.tensor:
    """One of several (M, ...), as its bits, so that the compiler drops the others."""
    bits = numbers.to(tl.int32, bitcast=True)
    is_it = tl.arange(0, numbers.shape[0]) == INDEX
    if len(numbers.shape) == 3:
        is_it = is_it[:, None, None]
    else:
        is_it = is_it[:, None]
    return tl.sum(tl.where(is_it, bits, 0), 0).to(tl.float32, bitcast=True)


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
    item: tl.tensor, kv_head: tl.tensor, num_kv_heads: tl.tensor, ROWS: tl.constexpr
) -> tl.tensor:
    """Where an item's first row lies in the partials (items, kv heads, tokens * group)."""
    return (item * num_kv_heads + kv_head).to(tl.int64) * ROWS
