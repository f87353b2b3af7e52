"""Shapes of models, and paged contexts of random K and V on a device. No native module is needed here.

Shape       Qwen3-0.6B, Llama-3.1-8B, and one so small that the interpreter runs it
Context     a pool of random numbers, tables that name its blocks in random order, chunks over them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from measuring import Probe
from torch import Tensor

from octavo.device.layout import DevicePool, allocate_pool
from octavo.device.triton.attention import (
    AttentionForm,
    AttentionScratch,
    allocate_scratch,
    attend_splitting,
    attend_walking,
)
from octavo.device.triton.attention_work import AttentionStep, tiles_of, work_on
from octavo.kernels.contract import KvShape


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one decoder."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    has_qk_norm: bool
    is_tied: bool
    theta: float

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of a layer's products, as they are fused."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head, self.hidden),
            "o": (self.hidden, self.heads * self.head),
            "gate_up": (2 * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }

    @property
    def weights_read(self) -> int:
        """Numbers that a decoding step reads: all matrices, the embedding only as the output."""
        layer = sum(outputs * inputs for outputs, inputs in self.products.values())
        return self.layers * layer + self.vocab * self.hidden


QWEN3_06B = Shape("0.6B", 28, 1024, 3072, 16, 8, 128, 151_936, True, True, 1e6)
LLAMA_8B = Shape("8B", 32, 4096, 14336, 32, 8, 128, 128_256, False, False, 5e5)
TINY = Shape("tiny", 2, 64, 96, 2, 1, 64, 97, False, True, 1e4)


@dataclass(frozen=True, slots=True)
class Context:
    """One layer of KV memory whose rows have contexts of random numbers."""

    pool: DevicePool
    tables: Tensor  # (rows, W) int32

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.tables.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K, V and scales per token."""
        return self.pool.layout.bytes_per_layer // self.pool.shape.block_size


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks (row of tables, start, length) of one step."""

    each: Sequence[tuple[int, int, int]]

    @property
    def num_tokens(self) -> int:
        """T."""
        return sum(length for _, _, length in self.each)

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, starts and lengths, int32."""
        rows, starts, lengths = np.array(self.each, np.int32).T
        return np.ascontiguousarray(rows), np.ascontiguousarray(starts), np.ascontiguousarray(lengths)


def make_context(shape: Shape, rows: int, length: int, kind: str, device: torch.device) -> Context:
    """A pool of one layer for `rows` contexts of `length` tokens each, blocks of 16."""
    size = 16
    width = -(-length // size)
    pool = allocate_pool(KvShape(1, shape.kv_heads, shape.head, size, kind), rows * width + 1, device)
    generator = torch.Generator(device).manual_seed(7)
    for part in (pool.keys(0), pool.values(0)):
        for some in part.split(4096):  # float32 of the whole would be large
            numbers = torch.randn(some.shape, device=device, generator=generator)
            some.copy_((numbers * 40).clamp(-127, 127) if pool.layout.has_scales else numbers)
    if pool.layout.has_scales:
        pool.scales(0).copy_(torch.rand(pool.scales(0).shape, device=device, generator=generator) / 20)
    order = 1 + torch.randperm(rows * width, device=device, generator=generator)
    return Context(pool, order.reshape(rows, width).to(torch.int32))


def queries(shape: Shape, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(T, H * D)."""
    generator = torch.Generator(device).manual_seed(num_tokens)
    return torch.randn((num_tokens, shape.heads * shape.head), device=device, generator=generator).to(dtype)


class AttentionRun:
    """Attention of some chunks over a context, walked or split, with all data on the device."""

    def __init__(self, context: Context, q: Tensor, chunks: Chunks, tokens_per_tile: int) -> None:
        rows, starts, lengths = chunks.columns()
        device = q.device
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        arrays = [torch.from_numpy(array).to(device) for array in (rows, starts, offsets)]
        kv = context.pool.shape
        self._context, self._q = context, q
        self._step = AttentionStep(context.tables, *arrays)
        self._work = work_on(device, tiles_of(starts, lengths, tokens_per_tile), tokens_per_tile)
        self._form = AttentionForm(kv.head_size**-0.5)
        self._heads = q.shape[1] // kv.head_size
        self._scratch: AttentionScratch | None = None
        self.out = torch.empty_like(q)
        self.partitions = self._work.items_max

    def walk(self) -> Tensor:
        """One program for each tile and kv head."""
        attend_walking(self.out, self._q, self._context.pool, 0, self._step, self._work, self._form)
        return self.out

    def split(self, programs: int = 66) -> Tensor:
        """A fixed grid, and a merge."""
        kv = self._context.pool.shape
        if self._scratch is None:
            self._scratch = allocate_scratch(
                self._work.items_max,
                self._work.tokens_per_tile,
                self._heads,
                kv.num_kv_heads,
                kv.head_size,
                self._q.device,
            )
        attend_splitting(
            self.out,
            self._q,
            self._context.pool,
            0,
            self._step,
            self._work,
            self._form,
            self._scratch,
            programs,
        )
        return self.out


def split_programs(probe: Probe, kv_heads: int) -> int:
    """The programs that `compiled_step` chooses."""
    if not probe.is_cuda:
        return 2
    return 4 * torch.cuda.get_device_properties(probe.device).multi_processor_count // kv_heads


def random_matrix(outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """(outputs, inputs), rows of norm about one."""
    generator = torch.Generator(device).manual_seed(seed)
    made = torch.randn((outputs, inputs), device=device, generator=generator, dtype=dtype)
    return made.mul_(inputs**-0.5)
