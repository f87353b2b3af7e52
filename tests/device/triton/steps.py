"""Steps over a pool on the host, and attention and quantisation said plainly: what kernels are held to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from octavo.device.layout import LARGEST_CODE, DevicePool, allocate_pool
from octavo.device.triton.attention import AttentionForm
from octavo.device.triton.attention_work import AttentionStep, AttentionWork, tiles_of, work_on
from octavo.kernels.contract import KvShape

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Context:
    """K and V (rows of tables, context, kv heads, D) as numbers, and the pool that holds them."""

    pool: DevicePool
    tables: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def held(x: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x (..., D) as a pool of that kind holds it, and the scales (...) of codes."""
    if kind not in LARGEST_CODE:
        return x.to({"f32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]), torch.ones(
            ()
        )
    scale = x.abs().amax(-1) / LARGEST_CODE[kind]
    codes = x / scale[..., None]
    return (codes.round().to(torch.int8) if kind == "int8" else codes.to(torch.float8_e4m3fn)), scale


def make_context(
    lengths: list[int], heads: int, size: int, block_size: int, kind: str, rng: torch.Generator
) -> Context:
    """Random K and V of every row of the tables; what no row owns is NaN (codes: NaN scales)."""
    width = -(-max(lengths) // block_size)
    num_blocks = len(lengths) * width + 1
    pool = allocate_pool(KvShape(2, heads, size, block_size, kind), num_blocks, CPU)
    spoil(pool)
    tables = (1 + torch.randperm(num_blocks - 1, generator=rng)).reshape(len(lengths), width).to(torch.int32)
    shape = (len(lengths), width * block_size, heads, size)
    k, v = torch.randn(shape, generator=rng), torch.randn(shape, generator=rng)
    for row, length in enumerate(lengths):
        for index, x in enumerate((k, v)):
            codes, scale = held(x[row], kind)
            x[row] = codes.float() * (scale[..., None] if pool.layout.has_scales else 1)
            for p in range(length):
                block, slot = int(tables[row, p // block_size]), p % block_size
                (pool.keys, pool.values)[index](1)[block, :, slot] = codes[p]
                if pool.layout.has_scales:
                    pool.scales(1)[block, index, :, slot] = scale[p]
    return Context(pool, tables, k, v)


def spoil(pool: DevicePool) -> None:
    """Make every number of the pool NaN, and every code's scale."""
    pool.data.fill_(0xFF)


@dataclass(frozen=True)
class Step:
    """Chunks (row of tables, start, length) of a step."""

    chunks: list[tuple[int, int, int]]

    @property
    def num_tokens(self) -> int:
        return sum(length for _, _, length in self.chunks)

    def on_device(self, context: Context) -> AttentionStep:
        rows, starts, lengths = (list(column) for column in zip(*self.chunks, strict=True))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        as_ints = [torch.tensor(np.array(a), dtype=torch.int32) for a in (rows, starts, offsets)]
        return AttentionStep(context.tables, *as_ints)

    def work(self, tokens_per_tile: int, window: int | None, spare: int = 0) -> AttentionWork:
        _, starts, lengths = (np.array(column, np.int32) for column in zip(*self.chunks, strict=True))
        tiles = tiles_of(starts, lengths, tokens_per_tile, window)
        return work_on(CPU, tiles, tokens_per_tile, tiles.chunks.size + spare, int(tiles.ends[-1]) + spare)


def attended(
    q: torch.Tensor, context: Context, step: Step, form: AttentionForm
) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, H * D) and the log-sum-exp (T, H) in double: softmax over what each token sees."""
    heads, size = context.k.shape[2:]
    outs, totals = [], []
    tokens = q.double().reshape(q.shape[0], -1, size)
    group = tokens.shape[1] // heads
    at = 0
    for row, start, length in step.chunks:
        for own in range(start, start + length):
            low = 0 if form.window is None else max(0, own - form.window + 1)
            k, v = (
                x[row, low : own + 1].double().repeat_interleave(group, 1) for x in (context.k, context.v)
            )
            scores = torch.einsum("hd,phd->hp", tokens[at], k) * form.scale
            if form.soft_cap is not None:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            if form.slopes is not None:
                scores = scores + form.slopes.double()[:, None] * (torch.arange(low, own + 1) - own)
            if form.sinks is not None:
                scores = torch.cat([scores, form.sinks.double()[:, None]], 1)
                v = torch.cat([v, torch.zeros_like(v[:1])])
            outs.append(torch.einsum("hp,phd->hd", torch.softmax(scores, 1), v).reshape(-1))
            totals.append(torch.logsumexp(scores, 1))
            at += 1
    return torch.stack(outs), torch.stack(totals)
