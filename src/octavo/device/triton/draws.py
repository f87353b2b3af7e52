"""Samples tokens from logits, with the bits of `device/sampler.py`, the version in torch.

    1. parts        of each row: the largest logit, the lowest id that has it
    2. noisy parts  the same of scores = (logit - largest of the row) / temperature, plus noise
    3. rows         of their parts: the likeliest token where the temperature is 0, the noisy one elsewhere

Filters come between: scores and their chances are written to memory, `cuts.py` masks cut tokens, and noise is
added to the rest. The device's rows hold the sampling parameters (`device/rows.py`).

S rows of logits, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch
import triton.language as tl

from octavo.device.rows import CHOICE, SEED, TEMPERATURE
from octavo.device.triton.cuts import cut_scores, row_largest, temperature_of
from octavo.device.triton.launch import jit, kernel, launch, padded
from octavo.device.triton.noise import noise_of, noise_words

_COUNTERS = 256  # of a part's noise: four tokens share one
_PART = 4 * _COUNTERS  # tokens
_INFINITY = tl.constexpr(float("inf"))
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)
_TEMPERATURE, _SEED, _CHOICE = tl.constexpr(TEMPERATURE), tl.constexpr(SEED), tl.constexpr(CHOICE)

Parts = tuple[torch.Tensor, torch.Tensor]  # (S, parts) largest float32, id int32


def draw_greedily(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token (S,) int64 of each row of logits (S, V) float32, the lowest among equals; -1 for a
    row that holds NaN or +inf, or nothing but -inf."""
    return _choose(_largest(logits), None, None, None)


def draw(
    logits: torch.Tensor,
    drawn: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    *,
    is_filtered: bool,
) -> torch.Tensor:
    """One token (S,) int64 for each row of logits (S, V) float32, -1 as above.

    Rows (S,) int64 of `drawn` (R, 9) int32 have the parameters; `positions` (S,) int64: tokens before.
    """
    num_rows, size = logits.shape
    assert drawn.is_contiguous()
    assert drawn.dtype == torch.int32
    for vector in (rows, positions):
        assert vector.shape == (num_rows,)
        assert vector.dtype == torch.int64
        assert vector.is_contiguous()
    largest = _largest(logits)
    scores = cut_scores(logits, largest[0], drawn, rows) if is_filtered else logits
    noisy = _empty_parts(logits)
    num_parts = noisy[0].shape[1]
    launch(
        find_noisy_parts,
        (num_rows, num_parts),
        [*noisy, scores, largest[0], drawn, rows, positions, drawn.stride(0), size],
        {"COUNTERS": _COUNTERS, "PARTS": padded(num_parts), "IS_SCORED": is_filtered},
    )
    return _choose(largest, noisy, drawn, rows)


def _empty_parts(logits: torch.Tensor) -> Parts:
    shape = (logits.shape[0], -(-logits.shape[1] // _PART))
    return (
        torch.empty(shape, dtype=torch.float32, device=logits.device),
        torch.empty(shape, dtype=torch.int32, device=logits.device),
    )


def _largest(logits: torch.Tensor) -> Parts:
    assert logits.is_contiguous()
    assert logits.dtype == torch.float32
    found = _empty_parts(logits)
    launch(find_parts, tuple(found[0].shape), [*found, logits, logits.shape[1]], {"BLOCK": _PART})
    return found


def _choose(
    largest: Parts, noisy: Parts | None, drawn: torch.Tensor | None, rows: torch.Tensor | None
) -> torch.Tensor:
    num_rows, num_parts = largest[0].shape
    out = torch.empty(num_rows, dtype=torch.int64, device=largest[0].device)
    launch(
        choose_of_parts,
        (num_rows,),
        [
            *(out, *largest, *((None, None) if noisy is None else noisy), drawn, rows),
            *(0 if drawn is None else drawn.stride(0), num_parts),
        ],
        {"PARTS": padded(num_parts)},
    )
    return out


@kernel("size")
def find_parts(
    largest: tl.tensor, index: tl.tensor, logits: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """One program for each row and part. A part that holds NaN has the largest +inf: its row has no token."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * size + token, mask=token < size, other=-_INFINITY)
    logit = tl.where(logit != logit, _INFINITY, logit)
    top = tl.max(logit, 0)
    at = row * tl.num_programs(1) + part
    tl.store(largest + at, top)
    tl.store(index + at, tl.min(tl.where(logit == top, token, _NO_TOKEN), 0))


@kernel("size")
def find_noisy_parts(
    largest: tl.tensor,
    index: tl.tensor,
    scores: tl.tensor,
    largest_logits: tl.tensor,
    drawn: tl.tensor,
    rows: tl.tensor,
    positions: tl.tensor,
    drawn_stride: tl.tensor,
    size: tl.tensor,
    COUNTERS: tl.constexpr,
    PARTS: tl.constexpr,
    IS_SCORED: tl.constexpr,
) -> None:
    """One program for each row and part. IS_SCORED: `scores` are that; otherwise they are logits."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    asked = drawn + tl.load(rows + row) * drawn_stride
    best = row_largest(largest_logits + row * tl.num_programs(1), tl.num_programs(1), PARTS)
    temperature = temperature_of(asked)
    counter = part * COUNTERS + tl.arange(0, COUNTERS)
    words = noise_words(
        counter,
        tl.load(positions + row),
        tl.load(asked + _CHOICE),
        tl.load(asked + _SEED),
        tl.load(asked + _SEED + 1),
    )
    top = tl.full([COUNTERS], -_INFINITY, tl.float32)
    token = tl.full([COUNTERS], _NO_TOKEN, tl.int32)
    for place in tl.static_range(4):
        own = 4 * counter + place
        score = tl.load(scores + row * size + own, mask=own < size, other=-_INFINITY)
        if not IS_SCORED:
            score = tl.div_rn(score - best, temperature + tl.zeros_like(score))
        score += noise_of(words[place])
        is_above = score > top  # of equals the lower id stays
        top, token = tl.where(is_above, score, top), tl.where(is_above, own, token)
    found = tl.max(top, 0)
    at = row * tl.num_programs(1) + part
    tl.store(largest + at, found)
    tl.store(index + at, tl.min(tl.where(top == found, token, _NO_TOKEN), 0))


@kernel("drawn_stride", "num_parts")
def choose_of_parts(
    out: tl.tensor,
    largest: tl.tensor,
    index: tl.tensor,
    noisy: tl.tensor,
    noisy_index: tl.tensor,
    drawn: tl.tensor,
    rows: tl.tensor,
    drawn_stride: tl.tensor,
    num_parts: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    """One program for each row."""
    row = tl.program_id(0).to(tl.int64)
    best, token = _likeliest_of(largest + row * num_parts, index + row * num_parts, num_parts, PARTS)
    if drawn is not None:
        temperature = tl.load(drawn + tl.load(rows + row) * drawn_stride + _TEMPERATURE)
        if temperature.to(tl.float32, bitcast=True) != 0.0:
            _, token = _likeliest_of(noisy + row * num_parts, noisy_index + row * num_parts, num_parts, PARTS)
    is_number = (best > -_INFINITY) & (best < _INFINITY)
    tl.store(out + row, tl.where(is_number, token, -1))


@jit
def _likeliest_of(parts: tl.tensor, index: tl.tensor, num_parts: tl.tensor, PARTS: tl.constexpr) -> tl.tensor:
    """The largest of a row's parts, and its id: the lowest among equals."""
    part = tl.arange(0, PARTS)
    inside = part < num_parts
    numbers = tl.load(parts + part, mask=inside, other=-_INFINITY)
    top = tl.max(numbers, 0)
    ids = tl.load(index + part, mask=inside, other=_NO_TOKEN)
    return top, tl.min(tl.where(inside & (numbers == top), ids, _NO_TOKEN), 0)
