"""What attention kernels are made of: a tile of queries, its softmax over one partition, and the fold of two.

    a tile's rows   (token, query head of the group) pairs: row r is token r // G, head r % G of its kv head
    a partition     256 positions at absolute borders, walked in sub-tiles of 64 at absolute borders

Kernels that cut the work differently call the same functions, so they give the same bits:

- a row's largest score is exact in any order, so the layout of a tile may change;
- a softmax's total is the dot of its rounded weights with ones, whose order along positions is the
  product's own, not that of a reduction over warps;
- a sub-tile or partition of which a row sees nothing multiplies by exactly one and adds zeros. That may turn
  -0 into +0, so `write_rows` does it for every row.

Positions that a row does not see get score -inf and weight zero. But zero times NaN is NaN, so a V that is
not finite, seen by one row of the tile, would spoil the others: `partition` notices that its result is not
finite and then starts again, carefully: without such positions' V, and rows that see one become NaN.
"""

from __future__ import annotations

import triton.language as tl

from octavo.device.triton.arithmetic import capped, e4m3_value
from octavo.device.triton.attention_work import PARTITION_SIZE
from octavo.device.triton.launch import jit

PARTITION = tl.constexpr(PARTITION_SIZE)
BLOCK_N = tl.constexpr(64)  # positions of a sub-tile
_ONES = tl.constexpr(16)  # columns of the ones that give a total: the least that a product takes
_INFINITY = tl.constexpr(float("inf"))


@jit
def tile_place(
    tile: tl.tensor,
    tile_chunks: tl.tensor,
    tile_rows: tl.tensor,
    table_rows: tl.tensor,
    starts: tl.tensor,
    offsets: tl.tensor,
    TOKENS: tl.constexpr,
) -> tl.tensor:
    """A tile's row of the tables, its first token in the step, that token's position, how many tokens."""
    chunk = tl.load(tile_chunks + tile)
    row = tl.load(tile_rows + tile)
    begin = tl.load(offsets + chunk) + row
    num_tokens = tl.minimum(tl.load(offsets + chunk + 1) - begin, TOKENS)
    return tl.load(table_rows + chunk), begin, tl.load(starts + chunk) + row, num_tokens


@jit
def row_positions(
    position: tl.tensor, num_tokens: tl.tensor, window: tl.tensor, GROUP: tl.constexpr, ROWS: tl.constexpr
) -> tl.tensor:
    """(ROWS,) each: a row's own position, -1 where it is padding, and the lowest that it sees."""
    token = tl.arange(0, ROWS) // GROUP
    own = tl.where(token < num_tokens, position + token, -1)
    if window is None:
        low = tl.zeros_like(own)
    else:
        low = tl.maximum(own - window + 1, 0)
    return own, low


@jit
def lowest_seen(position: tl.tensor, window: tl.tensor) -> tl.tensor:
    """The lowest position that a token at `position` sees."""
    if window is None:
        low = position * 0
    else:
        low = tl.maximum(position - window + 1, 0)
    return low


@jit
def partition(
    q: tl.tensor,
    memory: tl.tensor,
    scales: tl.tensor,
    span: tl.tensor,
    rows: tl.tensor,
    factor: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_FP8: tl.constexpr,
) -> tl.tensor:
    """Largest (M,), total (M,) and out (M, D), not divided, of queries q (M, D) over a span of positions.

    memory      keys, values, strides from block to block of these and of scales, the chunk's block table,
                the kv head, the number of kv heads
    span        first position (a border of sub-tiles), stop, the lowest position that any row sees
    rows        own position, lowest position seen: (M,) each

    Scales, the scores' soft cap and ALiBi's slopes (M,) may be None: a tuple of Triton 3.6 cannot hold that.
    """
    largest, total, out = _softmax(
        q, memory, scales, span, rows, factor, soft_cap, slope, HEAD_SIZE, BLOCK_SIZE, IS_FP8, CAREFUL=False
    )
    # Codes are finite, and a scale that is not is masked row by row. Nested, because Triton decides the outer
    # condition when it compiles.
    if scales is None:  # noqa: SIM102
        if tl.max(tl.where(tl.abs(out) < _INFINITY, 0, 1)) > 0:
            largest, total, out = _softmax(
                q,
                memory,
                scales,
                span,
                rows,
                factor,
                soft_cap,
                slope,
                HEAD_SIZE,
                BLOCK_SIZE,
                IS_FP8,
                CAREFUL=True,
            )
    return largest, total, out


@jit
def fold(
    largest: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    part_largest: tl.tensor,
    part_total: tl.tensor,
    part_out: tl.tensor,
) -> tl.tensor:
    """Both softmaxes as one; a row that sees nothing of the part stays as it is (see above for -0)."""
    new = tl.maximum(largest, part_largest)
    # exp(0) is written as one: -inf less -inf would be NaN.
    old_factor = tl.where(new == largest, 1.0, tl.exp(largest - new))
    part_factor = tl.where(new == part_largest, 1.0, tl.exp(part_largest - new))
    total = total * old_factor + part_total * part_factor
    return new, total, out * old_factor[:, None] + part_out * part_factor[:, None]


@jit
def write_rows(
    out_at: tl.tensor,
    out_stride: tl.tensor,
    log_sum_exp: tl.tensor,
    place: tl.tensor,
    softmax: tl.tensor,
    sinks: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """Fold the sinks in, divide, and write a tile's rows and, where asked, their log-sum-exp.

    `place`: the tile's first token, its number of tokens, the kv head, the number of kv heads.
    """
    begin, num_tokens, kv_head, num_kv_heads = place
    largest, total, out = softmax
    row = tl.arange(0, out.shape[0])
    dim = tl.arange(0, out.shape[1])
    token, head = begin + row // GROUP, kv_head * GROUP + row % GROUP
    real = row // GROUP < num_tokens
    if sinks is not None:  # one more partition, of one score whose value is zero
        sink = tl.load(sinks + head)
        one, nothing = tl.full([out.shape[0]], 1.0, tl.float32), tl.zeros_like(out)
        largest, total, out = fold(largest, total, out, sink, one, nothing)
    divided = out / total[:, None] + 0.0
    at = token.to(tl.int64)[:, None] * out_stride + (head * HEAD_SIZE)[:, None] + dim[None, :]
    mask = real[:, None] & (dim < HEAD_SIZE)[None, :]
    tl.store(out_at + at, divided.to(out_at.dtype.element_ty), mask=mask)
    if log_sum_exp is not None:
        at = token.to(tl.int64) * (num_kv_heads * GROUP) + head
        tl.store(log_sum_exp + at, largest + tl.log(total), mask=real)


@jit
def _softmax(
    q: tl.tensor,
    memory: tl.tensor,
    scales: tl.tensor,
    span: tl.tensor,
    rows: tl.tensor,
    factor: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_FP8: tl.constexpr,
    CAREFUL: tl.constexpr,
) -> tl.tensor:
    """`partition`, sub-tile after sub-tile."""
    keys, values, block_stride, scale_stride, table, kv_head, num_kv_heads = memory
    first, stop, tile_low = span
    own, low = rows
    ROWS: tl.constexpr = q.shape[0]
    BLOCK_D: tl.constexpr = q.shape[1]
    largest = tl.full([ROWS], -_INFINITY, tl.float32)
    total = tl.zeros([ROWS, _ONES], tl.float32)
    out = tl.zeros([ROWS, BLOCK_D], tl.float32)
    is_spoilt = tl.zeros([ROWS], tl.int32)
    ones = tl.full([BLOCK_N, _ONES], 1.0, q.dtype)
    for start in tl.range(first, stop, BLOCK_N, num_stages=1 if CAREFUL else None):
        position = start + tl.arange(0, BLOCK_N)
        inside = (position >= tile_low) & (position < stop)
        seen = (position[None, :] <= own[:, None]) & (position[None, :] >= low[:, None])
        block = tl.load(table + position // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot = kv_head * BLOCK_SIZE + position % BLOCK_SIZE
        at = block * block_stride + slot * HEAD_SIZE
        k = _numbers(keys, at, inside, q.dtype, HEAD_SIZE, BLOCK_D, IS_FP8)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if scales is not None:
            scale_at = scales + block * scale_stride + slot
            scores = scores * tl.load(scale_at, mask=inside, other=0.0)[None, :]
        scores = _transformed(scores, position, own, factor, soft_cap, slope)
        scores = tl.where(seen, scores, -_INFINITY)
        new = tl.maximum(largest, tl.max(scores, 1))
        decay = tl.where(new == largest, 1.0, tl.exp(largest - new))
        shift = tl.where(new == -_INFINITY, 0.0, new)  # a row that has seen nothing: exp(-inf) is zero
        weights = tl.exp(scores - shift[:, None])
        largest = new
        total = tl.dot(weights.to(q.dtype), ones, total * decay[:, None], input_precision="ieee")
        if scales is not None:
            v_scale = tl.load(scale_at + num_kv_heads * BLOCK_SIZE, mask=inside, other=0.0)
            weights = tl.where(seen, weights * v_scale[None, :], 0.0)
        v = _numbers(values, at, inside, q.dtype, HEAD_SIZE, BLOCK_D, IS_FP8)
        if CAREFUL:
            spoilt = tl.where(tl.sum(v.to(tl.float32) * 0.0, 1) == 0.0, 0, 1)  # NaN and inf make NaN
            v = tl.where((spoilt > 0)[:, None], tl.zeros_like(v), v)
            is_spoilt = tl.maximum(is_spoilt, tl.max(tl.where(seen, spoilt[None, :], 0), 1))
        out = tl.dot(weights.to(q.dtype), v, out * decay[:, None], input_precision="ieee")
    if CAREFUL:
        out = tl.where((is_spoilt > 0)[:, None], float("nan"), out)
    return largest, tl.max(total, 1), out


@jit
def _transformed(
    scores: tl.tensor,
    position: tl.tensor,
    own: tl.tensor,
    factor: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
) -> tl.tensor:
    """Scores (M, N) times the factor, capped, with ALiBi."""
    scores = scores * factor
    if soft_cap is not None:
        scores = capped(scores, soft_cap)
    if slope is not None:
        scores = scores + slope[:, None] * (position[None, :] - own[:, None]).to(tl.float32)
    return scores


@jit
def _numbers(
    memory: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    DOT: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_FP8: tl.constexpr,
) -> tl.tensor:
    """(N, BLOCK_D) of K or V in the dots' dtype; zeros outside."""
    dim = tl.arange(0, BLOCK_D)
    mask = inside[:, None]
    if HEAD_SIZE != BLOCK_D:
        mask = mask & (dim < HEAD_SIZE)[None, :]
    held = tl.load(memory + at[:, None] + dim[None, :], mask=mask, other=0)
    return (e4m3_value(held) if IS_FP8 else held).to(DOT)
