"""Paged attention and KV stores in torch, on any device, exact by construction (`exact.py`).

What `kernels/attention_reference.py` says in NumPy: the context in partitions of 256 positions at absolute
borders, merged in ascending order; K and V read back as stored. Here products are sums of integers, and what
is not a product is spelled out in float64, so a row's bits do not depend on how rows are batched:

    chunks of one token    all of them together
    longer chunks          one after the other, `ROWS_MAX` rows at a time
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.exact import Codes, coded, multiply, sliced
from octavo.device.functions import exp, tanh
from octavo.device.layout import LARGEST_CODE, DevicePool
from octavo.kernels.contract import AttentionSpec, Batch, Ints, Vector

PARTITION = 256
ROWS_MAX = 64
_WEIGHT_BITS = 40  # of a softmax's weights, so that 256 of them add up exactly


@dataclass(frozen=True, slots=True)
class Group:
    """G pieces of chunks, n rows each: their rows in the step, first positions, and block tables."""

    rows: Tensor  # (G, n)
    starts: Tensor  # (G,)
    tables: Tensor  # (G, W)
    stop: int  # no row of the group sees this position or any behind it
    least: int  # the first row's position


@dataclass(frozen=True, slots=True)
class _RunningSoftmax:
    """A softmax not yet divided, float64: largest score and total (G, n, H), out (G, n, H, D)."""

    largest: Tensor
    total: Tensor
    out: Tensor


def groups_of(starts: Ints, offsets: Ints, batch: Batch[Tensor]) -> Iterator[Group]:
    """A step's chunks, as they are computed; `starts` and `offsets` are the batch's own, on the host."""
    lengths = offsets[1:] - offsets[:-1]
    singles = (lengths == 1).nonzero()[0]
    device = batch.tables.device
    if singles.size:
        chosen = torch.from_numpy(singles).to(device)
        least, most = int(starts[singles].min()), int(starts[singles].max())
        rows = batch.offsets[chosen].long()[:, None]
        yield Group(rows, batch.starts[chosen].long(), batch.tables[chosen].long(), most + 1, least)
    for c in (lengths > 1).nonzero()[0].tolist():
        for first in range(0, int(lengths[c]), ROWS_MAX):
            last = min(first + ROWS_MAX, int(lengths[c]))
            rows = torch.arange(first, last, device=device)[None, :] + int(offsets[c])
            begin = torch.tensor([int(starts[c]) + first], device=device)
            yield Group(
                rows, begin, batch.tables[c : c + 1].long(), int(starts[c]) + last, int(starts[c]) + first
            )


def store(pool: DevicePool, layer: int, k: Tensor, v: Tensor, blocks: Tensor, slots: Tensor) -> None:
    """Write K and V (T, K * D) of tokens into slot `slots[t]` of block `blocks[t]`."""
    shape = pool.shape
    for index, (x, held) in enumerate(((k, pool.keys(layer)), (v, pool.values(layer)))):
        heads = x.unflatten(1, (shape.num_kv_heads, shape.head_size))
        if not pool.layout.has_scales:
            held[blocks, :, slots] = heads.to(held.dtype)
            continue
        scale = heads.abs().amax(dim=-1, keepdim=True) / LARGEST_CODE[shape.kind]
        codes = heads / scale
        codes = torch.where(torch.isfinite(codes), codes, 0.0)  # a row of zeros; or its scale is no number
        held[blocks, :, slots] = (torch.round(codes) if shape.kind == "int8" else codes).to(held.dtype)
        pool.scales(layer)[blocks, index, :, slots] = scale[..., 0]


def attend(
    pool: DevicePool,
    layer: int,
    q: Tensor,
    groups: list[Group],
    spec: AttentionSpec,
    log_sum_exp: Tensor | None = None,
) -> Tensor:
    """(T, H * D) -> (T, H * D); fills `log_sum_exp` (T, H) where it is given."""
    out = torch.empty_like(q)
    heads = q.unflatten(1, (-1, pool.shape.head_size))
    for group in groups:
        walk = _attend_group(pool, layer, heads[group.rows], group, spec)
        out[group.rows] = (walk.out / walk.total[..., None]).flatten(2).to(q.dtype)
        if log_sum_exp is not None:
            log_sum_exp[group.rows] = (walk.largest + torch.log(walk.total)).to(log_sum_exp.dtype)
    return out


def _attend_group(
    pool: DevicePool, layer: int, q: Tensor, group: Group, spec: AttentionSpec
) -> _RunningSoftmax:
    """q (G, n, H, D) over partitions in ascending order."""
    count, length, num_heads, size = q.shape
    kv_heads = pool.shape.num_kv_heads
    packed = q.unflatten(2, (kv_heads, -1)).permute(0, 2, 1, 3, 4).flatten(2, 3)  # (G, K, n * group, D)
    queries = sliced(packed)
    own = group.starts[:, None] + torch.arange(length, device=q.device)  # (G, n)
    walk = _nothing(count, length, num_heads, size, q.device)
    low = 0 if spec.window is None else max(0, group.least - spec.window + 1)
    for base in range(low // PARTITION * PARTITION, group.stop, PARTITION):
        positions = torch.arange(base, base + PARTITION, device=q.device)
        distance = own[..., None] - positions  # (G, n, P)
        seen = distance >= 0 if spec.window is None else (distance >= 0) & (distance < spec.window)
        is_used = (positions < group.starts[:, None] + length) & (positions >= low)  # (G, P)
        keys, values, is_bad = _read(pool, layer, group.tables, positions, is_used)
        scores = multiply(queries, keys) * spec.scale  # (G, K, n * group, P)
        scores = _by_row(scores.to(torch.float32).to(torch.float64), length)
        scores = _adjusted(scores, distance, spec)
        scores = torch.where(_by_head(is_bad, num_heads), torch.nan, scores)
        scores = torch.where(seen[:, :, None], scores, -torch.inf)
        part = _partition(scores, values, length)
        walk = _merged(walk, part, seen.any(dim=-1)[..., None])
    if spec.sinks is None:
        return walk
    one = _nothing(count, length, num_heads, size, q.device)  # of one score, whose value is zero
    sinks = _tensor(spec.sinks).to(torch.float64).expand_as(one.largest)
    everywhere = torch.ones((count, length, 1), dtype=torch.bool, device=q.device)
    return _merged(walk, _RunningSoftmax(sinks, torch.ones_like(one.total), one.out), everywhere)


def _read(
    pool: DevicePool, layer: int, tables: Tensor, positions: Tensor, is_used: Tensor
) -> tuple[Codes, Codes, Tensor]:
    """K and V (G, K, P, D) of positions (P,), zeros where not `is_used` (G, P); and which of them (G, K, P)
    are no numbers."""
    block = pool.shape.block_size
    index = (positions // block).clamp(max=tables.shape[1] - 1)
    blocks = torch.where(is_used, tables[:, index], 0)  # (G, P)
    slots = (positions % block).expand_as(blocks)
    held, is_bad = [], torch.zeros((), dtype=torch.bool, device=tables.device)
    for number, x in enumerate((pool.keys(layer), pool.values(layer))):
        rows = x[blocks, :, slots].to(torch.float64).transpose(1, 2)  # (G, K, P, D)
        rows = torch.where(is_used[:, None, :, None], rows, 0.0)
        wrong = ~torch.isfinite(rows).all(dim=-1)
        if pool.layout.has_scales:
            scales = pool.scales(layer)[blocks, number, :, slots].to(torch.float64).transpose(1, 2)
            scales = torch.where(is_used[:, None], scales, 0.0)
            wrong = wrong | ~torch.isfinite(scales)
            codes = Codes(rows * 2.0**9 if pool.shape.kind == "fp8" else rows, scales[..., None])
            if pool.shape.kind == "fp8":  # e4m3 has nothing below 2^-9: integers, of 18 bits
                codes = Codes(codes.codes, codes.scales * 2.0**-9)
        else:
            codes = coded(torch.where(wrong[..., None], 0.0, rows))
        finite = torch.where(wrong[..., None], 0.0, codes.codes)
        held.append(Codes(finite, torch.where(wrong[..., None], 0.0, codes.scales)))
        is_bad = is_bad | wrong
    return held[0], held[1], is_bad


def _adjusted(scores: Tensor, distance: Tensor, spec: AttentionSpec) -> Tensor:
    """Scores (G, n, H, P) capped and biased, each rounded to float32."""
    if spec.soft_cap is not None:
        scores = (spec.soft_cap * tanh(scores / spec.soft_cap)).to(torch.float32).to(torch.float64)
    if spec.slopes is not None:
        slopes = _tensor(spec.slopes).to(torch.float64)
        scores = scores - slopes[:, None] * distance[:, :, None, :].to(torch.float64)
        scores = scores.to(torch.float32).to(torch.float64)
    return scores


def _partition(scores: Tensor, values: Codes, length: int) -> _RunningSoftmax:
    """The softmax of scores (G, n, H, P) over one partition, with values (G, K, P, D)."""
    kv_heads = values.codes.shape[1]
    largest = scores.amax(dim=-1)
    weights = exp(scores - torch.where(torch.isinf(largest), 0.0, largest)[..., None])
    weights = torch.round(weights * 2.0**_WEIGHT_BITS) * 2.0**-_WEIGHT_BITS
    total = weights.sum(dim=-1)  # of integers, in effect: no order matters
    packed = weights.unflatten(2, (kv_heads, -1)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    packed = packed * values.scales.mT  # each position's scale goes into its weight
    columns = Codes(values.codes.mT, torch.ones_like(values.codes[..., :1, :].mT))
    return _RunningSoftmax(largest, total, _by_row(multiply(sliced(packed), columns), length))


def _merged(walk: _RunningSoftmax, part: _RunningSoftmax, seen: Tensor) -> _RunningSoftmax:
    """Both; a row that sees nothing of the part stays as it is, to the bit."""
    largest = torch.maximum(walk.largest, part.largest)
    old, new = exp(walk.largest - largest), exp(part.largest - largest)
    out = walk.out * old[..., None] + part.out * new[..., None]
    return _RunningSoftmax(
        torch.where(seen, largest, walk.largest),
        torch.where(seen, walk.total * old + part.total * new, walk.total),
        torch.where(seen[..., None], out, walk.out),
    )


def _nothing(count: int, length: int, num_heads: int, size: int, device: torch.device) -> _RunningSoftmax:
    shape = (count, length, num_heads)
    zeros = torch.zeros(shape, dtype=torch.float64, device=device)
    out = torch.zeros((*shape, size), dtype=torch.float64, device=device)
    return _RunningSoftmax(torch.full_like(zeros, -torch.inf), zeros, out)


def _by_row(x: Tensor, length: int) -> Tensor:
    """(G, K, n * group, X) -> (G, n, H, X)."""
    return x.unflatten(2, (length, -1)).permute(0, 2, 1, 3, 4).flatten(2, 3)


def _by_head(is_bad: Tensor, num_heads: int) -> Tensor:
    """(G, K, P) -> (G, 1, H, P)."""
    return is_bad.repeat_interleave(num_heads // is_bad.shape[1], dim=1)[:, None]


def _tensor(vector: Vector) -> Tensor:
    assert isinstance(vector, Tensor)
    return vector
