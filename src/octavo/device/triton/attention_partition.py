"""The parts of attention kernels: a tile of queries, its softmax over one partition, and the fold of two.

    a tile's rows   (token, query head of the group) pairs: row r is token r // G, head r % G of its kv head
    a partition     256 positions at absolute borders, walked in sub-tiles of 64 at absolute borders

Kernels that cut the work differently call the same functions, so they give the same bits:

- a row's largest score is exact in any order, so the layout of a tile may change;
- a softmax's total is the dot of its rounded weights with ones, whose order along positions is the
  product's own, not that of a reduction over warps;
- a weight is exp2(score * unit - largest), one fused multiply-add, written out as such everywhere;
- a sub-tile or partition of which a row sees nothing multiplies by exactly one and adds zeros. That may turn
  -0 into +0, so `write_rows` does it for every row;
- masks change nothing where a row sees all positions, so whole partitions go without (`IS_WHOLE`);
- codes are loaded as words of four, whose numbers the compiler treats like any others. (For codes loaded one
  by one it permutes positions and dimensions within a product, but only in tiles of few rows.)

Masked positions get score -inf and weight zero. But zero times NaN is NaN, so a non-finite V, seen by one row
of a tile, spoils the other rows. A row with a non-finite result is therefore NaN in all its dimensions, and
tiles of several tokens that have such a row are walked again (`CAREFUL`), without such positions' V; rows
that see one become NaN. Codes are finite, and a non-finite scale is masked.

"Largest" scores are in units of log2 of a weight.
"""

from __future__ import annotations

import triton.language as tl

from octavo.device.triton.arithmetic import capped, e4m3_values, int8_values
from octavo.device.triton.attention_work import PARTITION_SIZE, SUB_TILE_SIZE
from octavo.device.triton.launch import jit

PARTITION = tl.constexpr(PARTITION_SIZE)
BLOCK_N = tl.constexpr(SUB_TILE_SIZE)
_ONES = tl.constexpr(16)  # columns of the ones that give a total: the least that a product takes
_INFINITY = tl.constexpr(float("inf"))
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


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
def empty_part(ROWS: tl.constexpr, BLOCK_D: tl.constexpr) -> tl.tensor:
    """A partition before its first position: largest (M,), total (M, 16) with equal columns, out (M, D)
    before the division, and which rows saw a non-finite V (M,)."""
    return (
        tl.full([ROWS], -_INFINITY, tl.float32),
        tl.zeros([ROWS, _ONES], tl.float32),
        tl.zeros([ROWS, BLOCK_D], tl.float32),
        tl.zeros([ROWS], tl.int32),
    )


@jit
def loaded_tile(
    q: tl.tensor,
    q_stride: tl.tensor,
    place: tl.tensor,
    position: tl.tensor,
    window: tl.tensor,
    memory: tl.tensor,
    factor: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
) -> tl.tensor:
    """A tile, in the form that later functions take:

    queries     (M, D)
    rows        own position, lowest position seen: (M,) each
    limits      the lowest position that any row sees, a stop
    memory      keys, values, strides from block to block of these and of scales, the chunk's block table
    heads       the kv head, the number of kv heads
    factor      what scores are multiplied by
    """
    _, num_tokens, kv_head, num_kv_heads = place
    at, mask = rows_at(tl.arange(0, ROWS), place, q_stride, BLOCK_D, HEAD_SIZE, GROUP)
    queries = tl.load(q + at, mask=mask, other=0.0).to(DOT)
    rows = row_positions(position, num_tokens, window, GROUP, ROWS)
    limits = (lowest_seen(position, window), position + num_tokens)
    return queries, rows, limits, memory, (kv_head, num_kv_heads), factor


@jit
def add_sub_tile(
    softmax: tl.tensor,
    part: tl.tensor,
    start: tl.tensor,
    tile: tl.tensor,
    scales: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CODES: tl.constexpr,
    IS_WHOLE: tl.constexpr = False,
    CAREFUL: tl.constexpr = False,
    FOLDS: tl.constexpr = False,
) -> tl.tensor:
    """The softmax, and a partition (`empty_part`) with the sub-tile at `start` added, for a tile's queries.

    CODES       "int8" or "fp8", of which keys and values are words of four; "" otherwise
    IS_WHOLE    every row sees every position of the sub-tile
    FOLDS       where the sub-tile begins a partition, the one before is first folded into the softmax. That
                stands behind the scores, for which the device waits anyway: nothing else waits for the
                product before

    Scales, the scores' soft cap and ALiBi's slopes (M,) may be None: a tuple of Triton 3.6 cannot hold that.
    """
    q, rows, limits, memory, heads, factor = tile
    keys, values, block_stride, scale_stride, table = memory
    ROW_SIZE: tl.constexpr = HEAD_SIZE // 4 if CODES != "" else HEAD_SIZE
    position = start + tl.arange(0, BLOCK_N)
    inside = (position >= limits[0]) & (position < limits[1])
    seen = (position[None, :] <= rows[0][:, None]) & (position[None, :] >= rows[1][:, None])
    block = _loaded(table + position // BLOCK_SIZE, inside, IS_WHOLE).to(tl.int64)
    slot = heads[0] * BLOCK_SIZE + position % BLOCK_SIZE
    at = block * block_stride + slot * ROW_SIZE
    k = _numbers(keys, at, inside, q.dtype, HEAD_SIZE, q.shape[1], CODES, IS_WHOLE)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if scales is not None:
        scale_at = scales + block * scale_stride + slot
        scores = scores * _loaded(scale_at, inside, IS_WHOLE)[None, :]
    scores, unit = _transformed(scores, position, rows[0], factor, soft_cap, slope)
    if not IS_WHOLE:
        scores = tl.where(seen, scores, -_INFINITY)
    if FOLDS:
        softmax, part = _begun(softmax, part, start, CAREFUL)
    largest, total, out, is_spoilt = part
    new = tl.maximum(largest, tl.max(scores, 1) * unit)
    shift = _finite_shift(new)
    decay = tl.exp2(largest - shift)
    weights = tl.exp2(tl.fma(scores, unit, -shift[:, None]))
    total, out = total * decay[:, None], out * decay[:, None]
    ones = tl.full([BLOCK_N, _ONES], 1.0, q.dtype)
    total = tl.dot(weights.to(q.dtype), ones, total, input_precision="ieee")
    if scales is not None:
        weights = weights * _loaded(scale_at + heads[1] * BLOCK_SIZE, inside, IS_WHOLE)[None, :]
        if not IS_WHOLE:
            weights = tl.where(seen, weights, 0.0)
    v = _numbers(values, at, inside, q.dtype, HEAD_SIZE, q.shape[1], CODES, IS_WHOLE)
    if CAREFUL:
        spoilt = tl.where(tl.sum(v.to(tl.float32) * 0.0, 1) == 0.0, 0, 1)  # NaN and inf make NaN
        v = tl.where((spoilt > 0)[:, None], tl.zeros_like(v), v)
        is_spoilt = tl.maximum(is_spoilt, tl.max(tl.where(seen, spoilt[None, :], 0), 1))
    out = tl.dot(weights.to(q.dtype), v, out, input_precision="ieee")
    return softmax, (new, total, out, is_spoilt)


@jit
def _begun(softmax: tl.tensor, part: tl.tensor, start: tl.tensor, CAREFUL: tl.constexpr) -> tl.tensor:
    """Softmax and part, before a sub-tile is added: where it begins a partition, the one before is folded."""
    if start // PARTITION * PARTITION == start:  # constexpr has no reflected %
        part_largest, part_total, part_out = softmax_of(part, CAREFUL)
        softmax = fold(softmax[0], softmax[1], softmax[2], part_largest, part_total, part_out)
        part = empty_part(part_out.shape[0], part_out.shape[1])
    return softmax, part


@jit
def softmax_of(part: tl.tensor, CAREFUL: tl.constexpr) -> tl.tensor:
    """A partition's largest (M,), total (M,) and out (M, D)."""
    largest, total, out, is_spoilt = part
    if CAREFUL:
        out = tl.where((is_spoilt > 0)[:, None], float("nan"), out)
    return largest, tl.max(total, 1), out


@jit
def fold(
    largest: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    part_largest: tl.tensor,
    part_total: tl.tensor,
    part_out: tl.tensor,
) -> tl.tensor:
    """Both softmaxes as one; a row that sees nothing of the part keeps its bits, -0 aside."""
    new = tl.maximum(largest, part_largest)
    shift = _finite_shift(new)
    old_factor, part_factor = tl.exp2(largest - shift), tl.exp2(part_largest - shift)
    total = tl.fma(part_total, part_factor, total * old_factor)
    return new, total, tl.fma(part_out, part_factor[:, None], out * old_factor[:, None])


@jit
def write_rows(
    out_at: tl.tensor,
    out_stride: tl.tensor,
    log_sum_exp: tl.tensor,
    row: tl.tensor,
    place: tl.tensor,
    softmax: tl.tensor,
    sinks: tl.tensor,
    HEAD_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """Fold the sinks in, divide, and write rows (M,) of a tile and, if requested, their log-sum-exp.

    `place`: the tile's first token, its number of tokens, the kv head, the number of kv heads.
    """
    begin, num_tokens, kv_head, num_kv_heads = place
    largest, total, out = softmax
    head = kv_head * GROUP + row % GROUP
    if sinks is not None:  # one more partition, of one score whose value is zero
        sink = tl.load(sinks + head) * _LOG2_E
        largest, total, out = fold(largest, total, out, sink, tl.zeros_like(total) + 1.0, tl.zeros_like(out))
    divided = out / total[:, None] + 0.0
    divided = tl.where(_is_finite(divided)[:, None], divided, float("nan"))
    at, mask = rows_at(row, place, out_stride, out.shape[1], HEAD_SIZE, GROUP)
    tl.store(out_at + at, divided.to(out_at.dtype.element_ty), mask=mask)
    if log_sum_exp is not None:
        at = (begin + row // GROUP).to(tl.int64) * (num_kv_heads * GROUP) + head
        tl.store(log_sum_exp + at, (largest + tl.log2(total)) * _LN_2, mask=row // GROUP < num_tokens)


@jit
def rows_at(
    row: tl.tensor,
    place: tl.tensor,
    stride: tl.tensor,
    BLOCK_D: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """Where rows (M,) of a tile lie in an array (T, H * D), and which are there: (M, BLOCK_D) each."""
    begin, num_tokens, kv_head, _ = place
    dim = tl.arange(0, BLOCK_D)
    token, head = row // GROUP, kv_head * GROUP + row % GROUP
    at = (begin + token).to(tl.int64)[:, None] * stride + (head * HEAD_SIZE)[:, None] + dim[None, :]
    return at, (token < num_tokens)[:, None] & (dim < HEAD_SIZE)[None, :]


@jit
def all_finite(numbers: tl.tensor) -> tl.tensor:
    """Whether all of (M, D) are."""
    return tl.min(_is_finite(numbers).to(tl.int32)) > 0


@jit
def _is_finite(numbers: tl.tensor) -> tl.tensor:
    """(M,): whether all of a row (M, D) are."""
    return tl.max(tl.where(tl.abs(numbers.to(tl.float32)) < _INFINITY, 0, 1), 1) == 0


@jit
def _finite_shift(largest: tl.tensor) -> tl.tensor:
    """The number to subtract from scores: zero for an empty row, as -inf less -inf would be NaN."""
    return tl.where(largest == -_INFINITY, 0.0, largest)


@jit
def _transformed(
    scores: tl.tensor,
    position: tl.tensor,
    own: tl.tensor,
    factor: tl.tensor,
    soft_cap: tl.tensor,
    slope: tl.tensor,
) -> tl.tensor:
    """Scores (M, N), and what makes log2 of a weight of them. With a cap or ALiBi's slopes they are scaled
    first; otherwise that is left to the weights' multiply-add."""
    unit = factor * _LOG2_E
    if (soft_cap is not None) or (slope is not None):
        scores = scores * factor
        unit = tl.full([], _LOG2_E, tl.float32)
    if soft_cap is not None:
        scores = capped(scores, soft_cap)
    if slope is not None:
        scores = scores + slope[:, None] * (position[None, :] - own[:, None]).to(tl.float32)
    return scores, unit


@jit
def _loaded(at: tl.tensor, inside: tl.tensor, IS_WHOLE: tl.constexpr) -> tl.tensor:
    """The numbers there; zeros outside."""
    if IS_WHOLE:
        found = tl.load(at)
    else:
        found = tl.load(at, mask=inside, other=0)
    return found


@jit
def _numbers(
    memory: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    DOT: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CODES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
) -> tl.tensor:
    """(N, BLOCK_D) of K or V in the dots' dtype; zeros outside."""
    WIDTH: tl.constexpr = 4 if CODES != "" else 1
    dim = tl.arange(0, BLOCK_D // WIDTH)
    mask = (dim < HEAD_SIZE // WIDTH)[None, :]
    if not IS_WHOLE:
        mask = mask & inside[:, None]
    held = _loaded(memory + at[:, None] + dim[None, :], mask, IS_WHOLE and HEAD_SIZE == BLOCK_D)
    if CODES == "int8":
        held = int8_values(held)
    elif CODES == "fp8":
        held = e4m3_values(held)
    return held.to(DOT)
