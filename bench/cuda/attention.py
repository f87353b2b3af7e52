"""Paged attention's speed: decoding as GB/s of KV over the copy rate, prefill as TFLOP/s; 8B's shape.

    python bench/cuda/attention.py

Decoding reads at least 256 MB of K and V, so that nothing comes from a cache: walked, split, and the engine's
choice. Target: 0.9 of the copy rate. Launches are captured, so the host's time does not count.
"""

from __future__ import annotations

import torch
from measuring import Probe, begin, copy_rate, medians, parser
from shapes import LLAMA_8B, TINY, AttentionRun, Chunks, Shape, make_context, queries, split_programs
from torch.nn.functional import scaled_dot_product_attention

from octavo.device.triton.attention_work import prefill_tokens_per_tile

READ = 256e6  # bytes of KV that a launch reads at least


def decoding(probe: Probe, shape: Shape, kind: str, batch: int, rate: float) -> None:
    """One token of each of `batch` rows."""
    per_token = 2 * shape.kv_heads * shape.head * {"f32": 4, "bf16": 2}.get(kind, 1)
    length = 40 if probe.tiny else -(-int(READ / batch / per_token) // 256) * 256
    context = make_context(shape, batch, length, kind, probe.device)
    chunks = Chunks([(row, length - 1, 1) for row in range(batch)])
    q = queries(shape, batch, probe.dtypes[0], probe.device)
    attending = AttentionRun(context, q, chunks, 1)
    programs = split_programs(probe, shape.kv_heads)
    bodies = {"walk": attending.walk, "split": lambda: attending.split(programs)}
    if probe.is_cuda:
        bodies |= {f"split x{n}": lambda n=n: attending.split(programs * n // 2) for n in (1, 4)}
    times = medians(probe, bodies)
    num_bytes = batch * length * context.bytes_per_token
    for way, seconds in times.items():
        probe.emit(
            "decoding",
            shape=shape.name,
            kv=kind,
            batch=batch,
            context=length,
            way=way,
            microseconds=seconds * 1e6,
            kv_mb=num_bytes / 1e6,
            kv_gb_per_s=num_bytes / seconds / 1e9,
            of_copy_rate=num_bytes / seconds / rate,
            is_engines=way == ("split" if batch * shape.kv_heads < 264 else "walk"),
        )


def prefill(probe: Probe, shape: Shape, kind: str, tokens: int) -> None:
    """One chunk of `tokens` from position 0, and torch's attention over contiguous K and V."""
    context = make_context(shape, 1, tokens, kind, probe.device)
    q = queries(shape, tokens, probe.dtypes[0], probe.device)
    per_tile = prefill_tokens_per_tile(shape.heads, shape.kv_heads, shape.head)
    attending = AttentionRun(context, q, Chunks([(0, 0, tokens)]), per_tile)
    heads = q.reshape(1, tokens, shape.heads, shape.head).transpose(1, 2)
    k, v = (torch.randn_like(heads[:, : shape.kv_heads]).contiguous() for _ in range(2))
    times = medians(
        probe,
        {
            "octavo": attending.walk,
            "torch": lambda: scaled_dot_product_attention(heads, k, v, is_causal=True, enable_gqa=True),
        },
        rounds=5,
    )
    operations = 4 * shape.heads * shape.head * tokens * (tokens + 1) / 2  # half of the square
    for name, seconds in times.items():
        probe.emit(
            "prefill",
            shape=shape.name,
            kv=kind,
            tokens=tokens,
            by=name,
            milliseconds=seconds * 1e3,
            tflop_per_s=operations / seconds / 1e12,
            ratio_to_torch=times["torch"] / seconds,
        )


def main() -> None:
    """Decoding first."""
    probe = begin("attention", parser(__doc__).parse_args())
    shape = TINY if probe.tiny else LLAMA_8B
    kinds = (probe.kv, "int8") if probe.tiny else ("bf16", "int8", "fp8")
    rate = copy_rate(probe)
    for kind in kinds:
        for batch in (1,) if probe.tiny else (1, 8, 64):
            if probe.has_time(f"decoding {kind} {batch}"):
                probe.note(f"decoding {kind}, batch {batch}")
                decoding(probe, shape, kind, batch, rate)
                probe.free()
    for kind in kinds[:1] if probe.tiny else kinds:
        for tokens in (20,) if probe.tiny else (2048, 8192):
            if probe.has_time(f"prefill {kind} {tokens}"):
                probe.note(f"prefill {kind}, {tokens} tokens")
                prefill(probe, shape, kind, tokens)
                probe.free()


if __name__ == "__main__":
    main()
