"""Torch's FlashAttention behind the same op: what it is given, and where it is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from octavo.device import flash
from octavo.device.flash import FlashAttention, check_flash, find_flash_obstacle
from octavo.device.layout import allocate_pool
from octavo.device.triton.attention import AttentionForm, attend_walking
from octavo.device.triton.attention_work import AttentionStep, tiles_of, work_on
from octavo.errors import ConfigError
from octavo.kernels.contract import KvShape
from octavo.model.spec import ModelSpec

pytestmark = pytest.mark.full

CPU = torch.device("cpu")
HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 16


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int,
) -> Tensor:
    """What torch's documentation says of `varlen_attn`, plainly."""
    assert key.shape[1:] == value.shape[1:] == (BLOCK, KV_HEADS, SIZE)
    assert enable_gqa
    assert num_splits == 1
    assert window_size[1] == 0
    out = torch.empty_like(query)
    for c in range(cu_seq_q.numel() - 1):
        first, last, used = int(cu_seq_q[c]), int(cu_seq_q[c + 1]), int(seqused_k[c])
        assert last - first <= max_q
        assert used <= max_k
        k, v = (
            pages[block_table[c].long()].flatten(0, 1)[:used].repeat_interleave(HEADS // KV_HEADS, 1)
            for pages in (key, value)
        )
        own = torch.arange(used - (last - first), used)[:, None]
        distance = own - torch.arange(used)
        seen = (distance >= 0) & ((window_size[0] < 0) | (distance <= window_size[0]))
        scores = torch.einsum("qhd,khd->hqk", query[first:last], k) * scale
        weights = torch.where(seen, scores, -torch.inf).softmax(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, v)
    return out


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("chunks", [[(0, 20)], [(19, 1), (33, 1)], [(5, 11), (40, 1), (0, 3)]])
def test_it_is_given_what_gives_the_kernels_attention(
    chunks: Sequence[tuple[int, int]], window: int | None
) -> None:
    generator = torch.Generator().manual_seed(1)
    pool = allocate_pool(KvShape(2, KV_HEADS, SIZE, BLOCK, "f32"), 12, CPU)
    for layer in range(2):
        pool.keys(layer).normal_(generator=generator)
        pool.values(layer).normal_(generator=generator)
    starts = torch.tensor([start for start, _ in chunks], dtype=torch.int32)
    lengths = torch.tensor([length for _, length in chunks], dtype=torch.int32)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).to(torch.int32)])
    tables = torch.randperm(12, generator=generator).reshape(4, 3).to(torch.int32)
    step = AttentionStep(tables, torch.arange(len(chunks), dtype=torch.int32) + 1, starts, offsets)
    q = torch.randn((int(offsets[-1]), HEADS * SIZE), generator=generator)
    wanted, given, form = torch.empty_like(q), torch.empty_like(q), AttentionForm(0.25, window)
    work = work_on(CPU, tiles_of(starts.numpy(), lengths.numpy(), 8, window), 8)
    attend_walking(wanted, q, pool, 1, step, work, form)
    FlashAttention(48, varlen).attend(given, q, pool, 1, step, form, int(lengths.max()))
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-5)


def test_why_it_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_flash_obstacle(CPU) == "it runs on CUDA devices alone"
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "compute capability 9.0 (Hopper); this device has 8.0" in str(find_flash_obstacle(cuda))
    monkeypatch.setattr(flash, "_varlen", lambda: lambda query, key: query)
    assert "has no attention over block tables; 2.12 or newer has" in str(find_flash_obstacle(cuda))


@pytest.mark.parametrize(
    ("cap", "kv", "says"),
    [
        (50.0, "bf16", "soft cap of gemma2"),
        (None, "int8", "kv int8"),
        (None, "fp8", "kv fp8"),
        (None, "f32", "f32"),
    ],
)
def test_models_and_memory_that_it_does_not_know_are_refused(cap: float | None, kv: str, says: str) -> None:
    spec = ModelSpec("gemma2", 1, 8, 1, 1, 8, 8, 9, 64, 1.0, attention_soft_cap=cap)
    with pytest.raises(ConfigError, match=f"{says}.*give --attention triton"):
        check_flash(spec, KvShape(1, 1, 8, 16, kv))


def test_what_it_knows_is_let_through() -> None:
    check_flash(ModelSpec("llama", 1, 8, 1, 1, 8, 8, 9, 64, 1.0), KvShape(1, 1, 8, 16, "bf16"))
