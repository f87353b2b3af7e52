"""Logprobs and the likeliest tokens without a sort: the bits of `device/sampler.py`.

logprob     logit - (largest + log(sum of chances)), the sum in units of 2^-40
likeliest   `cuts.py` finds the last of them; there are few, and each counts those before it
"""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.triton.arithmetic import exponential, nearest_integer
from octavo.device.triton.cuts import LAST_ID, LAST_KEY, LISTED_MAX, TWO_TO_40, cut_of, tokens_of
from octavo.device.triton.launch import kernel, launch, padded
from octavo.device.triton.noise import logarithm

_BLOCK = 2048
_TWO_TO_MINUS_40 = tl.constexpr(2.0**-40)


def logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of logits (S, V) float32 each token's (S,) int64 logprob (S,) float32, and ids (S, top) int64 and
    logprobs (S, top) of the likeliest, the lowest id first among equals."""
    num_rows, size = logits.shape
    top, device = min(top, size), logits.device
    assert logits.is_contiguous()
    assert logits.dtype == torch.float32
    assert tokens.shape == (num_rows,)
    assert tokens.dtype == torch.int64
    assert top <= LISTED_MAX
    parts = -(-size // _BLOCK)
    best = logits.amax(dim=-1)
    totals = torch.empty((num_rows, parts), dtype=torch.int64, device=device)
    own = torch.empty(num_rows, dtype=torch.float32, device=device)
    values = torch.empty((num_rows, top), dtype=torch.float32, device=device)
    ids = torch.empty((num_rows, top), dtype=torch.int64, device=device)
    lists = torch.empty((num_rows, 2, LISTED_MAX), dtype=torch.int64, device=device)
    listed = torch.empty((num_rows, 2), dtype=torch.int32, device=device)
    launch(add_chances, (num_rows, parts), [totals, listed, logits, best, size], {"BLOCK": _BLOCK})
    launch(
        find_likeliest,
        (num_rows,),
        [own, ids, values, logits, best, tokens.contiguous(), totals, lists, listed, size, parts, top],
        {"PARTS": padded(parts), "TOP": padded(top, 2), "BLOCK": _BLOCK, "LISTED": LISTED_MAX},
        num_warps=16,
    )
    return own, ids, values


@kernel()
def add_chances(
    totals: tl.tensor,
    listed: tl.tensor,
    logits: tl.tensor,
    best: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The sum of each block's chances in units of 2^-40. One program for each row and block; the first of a
    row empties its lists."""
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * size + token, mask=token < size, other=float("-inf"))
    if tl.program_id(1) == 0:
        tl.store(listed + 2 * row, 0)
        tl.store(listed + 2 * row + 1, 0)
    chance = exponential((logit - tl.load(best + row)).to(tl.float64))
    units = nearest_integer(chance * TWO_TO_40).to(tl.int64)
    tl.store(totals + row * tl.num_programs(1) + tl.program_id(1), tl.sum(units, 0))


@kernel("num_parts", "top")
def find_likeliest(
    own: tl.tensor,
    ids: tl.tensor,
    values: tl.tensor,
    logits: tl.tensor,
    best: tl.tensor,
    tokens: tl.tensor,
    totals: tl.tensor,
    lists: tl.tensor,
    listed: tl.tensor,
    size: tl.tensor,
    num_parts: tl.tensor,
    top: tl.tensor,
    PARTS: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
) -> None:
    """One program for each row."""
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    largest, logits = tl.load(best + row), logits + row * size
    total = tl.sum(tl.load(totals + row * num_parts + part, mask=part < num_parts, other=0), 0)
    log_total = logarithm(total.to(tl.float64) * _TWO_TO_MINUS_40)
    normaliser = (largest.to(tl.float64) + log_total).to(tl.float32)
    tl.store(own + row, tl.load(logits + tl.maximum(tl.load(tokens + row), 0)) - normaliser)
    if top > 0:
        lists, listed = lists + row * 2 * LISTED, listed + 2 * row
        memory = (logits, logits, lists, listed, size)
        all_of_them = size.to(tl.int64)
        last = all_of_them * 0 + LAST_KEY
        cut = cut_of(memory, largest, last, all_of_them, top.to(tl.float64), BLOCK, LISTED, BY_COUNT=True)
        for start in range(0, size, BLOCK):
            key, _, _ = tokens_of(memory, start, BLOCK, BY_COUNT=True)
            place = tl.atomic_add(listed + tl.zeros([BLOCK], tl.int32), 1, mask=key <= cut)
            tl.store(lists + place, key, mask=(key <= cut) & (place < top))
        tl.debug_barrier()
        place = tl.arange(0, TOP)
        there = place < tl.minimum(tl.load(listed, volatile=True), top)  # of NaN none is listed
        key = tl.load(lists + place, mask=there, other=LAST_KEY + 1, volatile=True)
        rank = tl.sum((key[None, :] < key[:, None]).to(tl.int32), 1)
        token = key & LAST_ID
        value = tl.load(logits + token, mask=there, other=0.0) - normaliser
        tl.store(ids + row * top + rank, token, mask=there)
        tl.store(values + row * top + rank, value, mask=there)
