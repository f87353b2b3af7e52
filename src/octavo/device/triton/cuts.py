"""Top-k, top-p and min-p without a sort: the same as `device/sampler.py` with a sort, bit for bit.

    key of a token      how far its score is below the largest, then its id: filters read tokens by ascending
                        keys, and no two are equal
    a cut               the largest key v below which tokens weigh less than a target; kept are keys <= v

    top-k       each token weighs 1, the target is k
    top-p       each weighs its chance in units of 2^-40, the target is top_p times the rest after top-k
    min-p       the last score that is likely enough, found without reading the tokens

A cut is found by bisection, four parts at a time, over the whole row, until few tokens are undecided; these
are copied to a list and bisected there, eight parts at a time. Weights are integers, so no order of adding
matters. S rows, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.rows import MIN_P, TEMPERATURE, TOP_K, TOP_P
from octavo.device.triton.arithmetic import double_at, exponential, nearest_integer
from octavo.device.triton.launch import jit, kernel, launch, padded

SIZE_MAX = 1 << 20  # of a vocabulary
LISTED_MAX = 1024  # undecided tokens that a list holds
_BLOCK = 2048  # tokens that a program of a row reads at a time
_FEW = 1024  # the same where rows have many programs
_WAYS = tl.constexpr(8)
_UNROLLED = tl.constexpr(4)  # so that loads of several blocks are under way
_ID_BITS = tl.constexpr(20)
LAST_ID = tl.constexpr(SIZE_MAX - 1)
LAST_KEY = tl.constexpr((0xFF800001 << 20) - 1)  # of minus infinity and the highest id
TWO_TO_40 = tl.constexpr(float(2**40))
_INFINITY = tl.constexpr(float("inf"))
_TEMPERATURE_MIN = tl.constexpr(1e-5)  # as in sampling/sampler.py
_TEMPERATURE, _TOP_P = tl.constexpr(TEMPERATURE), tl.constexpr(TOP_P)
_MIN_P, _TOP_K = tl.constexpr(MIN_P), tl.constexpr(TOP_K)


def cut_scores(
    logits: torch.Tensor, largest: torch.Tensor, drawn: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """The scores (S, V) float32 of logits (S, V), with -inf for what top-k, then top-p, then min-p cut.

    largest (S, parts) float32: of each part of a row; rows (S,) int64 of `drawn` (R, 9) int32 say how to cut.
    """
    (num_rows, size), device = logits.shape, logits.device
    num_parts = largest.shape[1]
    assert logits.is_contiguous()
    assert size <= SIZE_MAX
    scores = torch.empty_like(logits)
    units = torch.empty((num_rows, 2, size), dtype=torch.int32, device=device)
    lists = torch.empty((num_rows, 2, LISTED_MAX), dtype=torch.int64, device=device)
    listed = torch.empty((num_rows, 2), dtype=torch.int32, device=device)
    where = (drawn, rows, drawn.stride(0), size)
    launch(
        write_scores,
        (num_rows, -(-size // _FEW)),
        [scores, units, listed, logits, largest, *where, num_parts],
        {"BLOCK": _FEW, "PARTS": padded(num_parts)},
    )
    launch(
        cut_rows,
        (num_rows,),
        [scores, units, lists, listed, *where],
        {"BLOCK": _BLOCK, "LISTED": LISTED_MAX},
        num_warps=16,
    )
    return scores


@kernel("drawn_stride", "num_parts")
def write_scores(
    scores: tl.tensor,
    units: tl.tensor,
    listed: tl.tensor,
    logits: tl.tensor,
    largest: tl.tensor,
    drawn: tl.tensor,
    rows: tl.tensor,
    drawn_stride: tl.tensor,
    size: tl.tensor,
    num_parts: tl.tensor,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """Each token's score, and its chance in units of 2^-40: the low 20 bits, then the others. One program for
    each row and block; the first of a row empties its lists."""
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < size
    if tl.program_id(1) == 0:
        tl.store(listed + 2 * row, 0)
        tl.store(listed + 2 * row + 1, 0)
    best = row_largest(largest + row * num_parts, num_parts, PARTS)
    temperature = temperature_of(drawn + tl.load(rows + row) * drawn_stride)
    logit = tl.load(logits + row * size + token, mask=inside, other=0.0)
    score = tl.div_rn(logit - best, temperature + tl.zeros_like(logit))
    tl.store(scores + row * size + token, score, mask=inside)
    lower, upper = units_of(score)
    at = units + row * 2 * size + token
    tl.store(at, lower, mask=inside)
    tl.store(at + size, upper, mask=inside)


@jit
def units_of(score: tl.tensor) -> tl.tensor:
    """Chances in units of 2^-40: the low 20 bits, then the others."""
    chance = nearest_integer(exponential(score.to(tl.float64)) * TWO_TO_40).to(tl.int64)
    return (chance & 0xFFFFF).to(tl.int32), (chance >> 20).to(tl.int32)


@kernel("drawn_stride")
def cut_rows(
    scores: tl.tensor,
    units: tl.tensor,
    lists: tl.tensor,
    listed: tl.tensor,
    drawn: tl.tensor,
    rows: tl.tensor,
    drawn_stride: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
) -> None:
    """One program for each row."""
    row = tl.program_id(0).to(tl.int64)
    memory = (scores + row * size, units + row * 2 * size, lists + row * 2 * LISTED, listed + 2 * row, size)
    asked = drawn + tl.load(rows + row) * drawn_stride
    count = tl.load(asked + _TOP_K).to(tl.int64)
    nucleus, least = double_at(asked + _TOP_P), double_at(asked + _MIN_P)
    best = nucleus.to(tl.float32) * 0.0
    cut, kept = size.to(tl.int64) * 0 + LAST_KEY, size.to(tl.int64)
    if (count > 0) & (count < size):
        cut = cut_of(memory, best, cut, kept, count.to(tl.float64), BLOCK, LISTED, BY_COUNT=True)
        kept = count
    if nucleus < 1.0:
        total = _weight_up_to(memory, cut, BLOCK)
        target = nucleus * total.to(tl.float64)
        cut = cut_of(memory, best, cut, kept, target, BLOCK, LISTED, BY_COUNT=False)
    if least > 0.0:
        cut = tl.minimum(cut, _last_likely(least))
    if cut < LAST_KEY:
        for start in range(0, size, BLOCK):
            key, _, _ = tokens_of(memory, start, BLOCK, BY_COUNT=True)
            token = start + tl.arange(0, BLOCK)
            tl.store(scores + row * size + token, float("-inf"), mask=(key > cut) & (token < size))


@jit
def temperature_of(asked: tl.tensor) -> tl.tensor:
    """The divisor of scores."""
    return tl.maximum(tl.load(asked + _TEMPERATURE).to(tl.float32, bitcast=True), _TEMPERATURE_MIN)


@jit
def row_largest(parts: tl.tensor, num_parts: tl.tensor, PARTS: tl.constexpr) -> tl.tensor:
    """The largest of a row's parts."""
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(parts + part, mask=part < num_parts, other=-_INFINITY), 0)


@jit
def tokens_of(memory: tl.tensor, start: tl.tensor, BLOCK: tl.constexpr, BY_COUNT: tl.constexpr) -> tl.tensor:
    """Keys of the tokens from `start` on, and both parts of their weights: (BLOCK,) each. Beyond the last
    token keys are above all others."""
    scores, units, _, _, size = memory
    token = start + tl.arange(0, BLOCK)
    inside = token < size
    key = _key(tl.load(scores + token, mask=inside, other=0.0)) | token
    key = tl.where(inside, key, LAST_KEY + 1)
    lower, upper = tl.full([BLOCK], 1, tl.int32), tl.zeros([BLOCK], tl.int32)
    if not BY_COUNT:
        lower = tl.load(units + token, mask=inside, other=0)
        upper = tl.load(units + size + token, mask=inside, other=0)
    return key, lower, upper


@jit
def _key(score: tl.tensor) -> tl.tensor:
    """The key of a score and id 0: floats order as integers once negative ones are inverted and the others
    are not below them; here the largest has the lowest key."""
    bits = (score + 0.0).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF  # -0 is 0
    return tl.where(bits < 0x80000000, 0x7FFFFFFF - bits, bits) << _ID_BITS


@jit
def cut_of(
    memory: tl.tensor,
    best: tl.tensor,
    high: tl.tensor,
    count: tl.tensor,
    target: tl.tensor,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
    BY_COUNT: tl.constexpr,
) -> tl.tensor:
    """The largest key v up to `high` such that the tokens below it weigh less than `target`; up to `high`
    there are `count` tokens, and `best` is the largest score."""
    low = high * 0
    # The weight and the number of the tokens below `low`; the number up to `high`.
    known = (low, low, count)
    first, second, third = _key(best - 1.0), _key(best - 4.0), _key(best - 16.0)
    while (low < high) & (known[2] - known[1] > LISTED):
        first = tl.minimum(tl.maximum(first, low + 1), high)
        second = tl.minimum(tl.maximum(second, low + 1), high)
        third = tl.minimum(tl.maximum(third, low + 1), high)
        low, high, known = _narrowed(
            memory, low, high, known, (first, second, third), target, BLOCK, BY_COUNT
        )
        width = high - low
        first, second, third = low + width // 4 + 1, low + width // 2 + 1, low + width * 3 // 4 + 1
    if low < high:
        low = _cut_of_list(memory, low, high, known[0], target, BLOCK, LISTED, BY_COUNT)
    return low


@jit
def _narrowed(
    memory: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    known: tl.tensor,
    borders: tl.tensor,
    target: tl.tensor,
    BLOCK: tl.constexpr,
    BY_COUNT: tl.constexpr,
) -> tl.tensor:
    """`low`, `high` and their counts after testing three ascending borders between them."""
    first, second, third = borders
    below, count_low, count_high = known
    lower_1 = tl.zeros([BLOCK], tl.int32)  # of a thread few enough that 32 bits hold them
    lower_2, lower_3, upper_1, upper_2, upper_3 = lower_1, lower_1, lower_1, lower_1, lower_1
    counts_1, counts_2, counts_3 = lower_1, lower_1, lower_1
    for start in tl.range(0, memory[4], BLOCK, loop_unroll_factor=_UNROLLED):
        key, lower, upper = tokens_of(memory, start, BLOCK, BY_COUNT)
        counts_1 += (key < first).to(tl.int32)
        counts_2 += (key < second).to(tl.int32)
        counts_3 += (key < third).to(tl.int32)
        if not BY_COUNT:
            lower_1 += tl.where(key < first, lower, 0)
            lower_2 += tl.where(key < second, lower, 0)
            lower_3 += tl.where(key < third, lower, 0)
            upper_1 += tl.where(key < first, upper, 0)
            upper_2 += tl.where(key < second, upper, 0)
            upper_3 += tl.where(key < third, upper, 0)
    count_1, count_2 = tl.sum(counts_1, 0).to(tl.int64), tl.sum(counts_2, 0).to(tl.int64)
    count_3 = tl.sum(counts_3, 0).to(tl.int64)
    weight_1, weight_2, weight_3 = count_1, count_2, count_3
    if not BY_COUNT:
        weight_1, weight_2 = _weight_of(lower_1, upper_1), _weight_of(lower_2, upper_2)
        weight_3 = _weight_of(lower_3, upper_3)
    is_1, is_2 = weight_1.to(tl.float64) < target, weight_2.to(tl.float64) < target
    is_3 = weight_3.to(tl.float64) < target
    high = tl.where(is_3, high, tl.where(is_2, third, tl.where(is_1, second, first)) - 1)
    count_high = tl.where(is_3, count_high, tl.where(is_2, count_3, tl.where(is_1, count_2, count_1)))
    low = tl.where(is_3, third, tl.where(is_2, second, tl.where(is_1, first, low)))
    below = tl.where(is_3, weight_3, tl.where(is_2, weight_2, tl.where(is_1, weight_1, below)))
    count_low = tl.where(is_3, count_3, tl.where(is_2, count_2, tl.where(is_1, count_1, count_low)))
    return low, high, (below, count_low, count_high)


@jit
def _cut_of_list(
    memory: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    below: tl.tensor,
    target: tl.tensor,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
    BY_COUNT: tl.constexpr,
) -> tl.tensor:
    """`cut_of` where at most LISTED tokens are between the bounds."""
    _, _, lists, listed, size = memory
    own = listed + 1 if BY_COUNT else listed
    for start in range(0, size, BLOCK):
        key, lower, upper = tokens_of(memory, start, BLOCK, BY_COUNT)
        inside = (key >= low) & (key <= high)
        weight = (upper.to(tl.int64) << 20) + lower
        place = tl.atomic_add(own + tl.zeros([BLOCK], tl.int32), 1, mask=inside)
        inside = inside & (place < LISTED)
        tl.store(lists + place, key, mask=inside)
        tl.store(lists + LISTED + place, weight, mask=inside)
    tl.debug_barrier()
    place = tl.arange(0, LISTED)
    there = place < tl.load(own, volatile=True)
    key = tl.load(lists + place, mask=there, other=LAST_KEY + 1)
    weight = tl.load(lists + LISTED + place, mask=there, other=0)
    while low < high:
        border = low + (high - low) * tl.arange(0, _WAYS) // _WAYS + 1
        weights = tl.sum(tl.where(key[:, None] < border[None, :], weight[:, None], 0), 0) + below
        is_less = weights.to(tl.float64) < target
        low, high = (
            tl.max(tl.where(is_less, border, low), 0),
            tl.min(tl.where(is_less, high, border - 1), 0),
        )
    tl.debug_barrier()  # before the list is written again
    return low


@jit
def _weight_up_to(memory: tl.tensor, cut: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The units of all keys up to the cut."""
    lowers = tl.zeros([BLOCK], tl.int32)
    uppers = lowers
    for start in tl.range(0, memory[4], BLOCK, loop_unroll_factor=_UNROLLED):
        key, lower, upper = tokens_of(memory, start, BLOCK, BY_COUNT=False)
        lowers += tl.where(key <= cut, lower, 0)
        uppers += tl.where(key <= cut, upper, 0)
    return _weight_of(lowers, uppers)


@jit
def _weight_of(lower: tl.tensor, upper: tl.tensor) -> tl.tensor:
    """The sum of weights in two parts."""
    return tl.sum(lower.to(tl.int64), 0) + (tl.sum(upper.to(tl.int64), 0) << 20)


@jit
def _last_likely(least: tl.tensor) -> tl.tensor:
    """The last key of the lowest score whose chance is at least so much."""
    low = (least * 0.0).to(tl.int32)  # bits of a score's distance from 0
    high = low + 0x7F800000
    while low < high:
        middle = low + (high - low + 1) // 2
        is_likely = exponential(-middle.to(tl.float32, bitcast=True).to(tl.float64)) >= least
        low, high = tl.where(is_likely, middle, low), tl.where(is_likely, high, middle - 1)
    return _key(-low.to(tl.float32, bitcast=True)) | LAST_ID
