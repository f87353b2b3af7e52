"""A program: compiles every kernel for one kind of device as bfloat16 models launch it, and prints JSON.

python -m tests.device.triton.compile_all 90   # for sm_90: JSON, a list of `Compiled`

With another Triton, as GPU machines have it: pip install --no-deps --target FOLDER triton==3.6.0, and
PYTHONPATH=FOLDER:. before the command.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from unittest import mock

import torch
from tests.device.triton.compiling import compiled
from tests.device.triton.steps import CPU

from octavo.device.layout import DevicePool, allocate_pool
from octavo.device.triton import attention as launching
from octavo.device.triton import (
    blocks,
    draws,
    elementwise,
    embedding,
    likeliest,
    linear,
    norms,
    penalties,
    plans,
    store,
    vocabulary,
)
from octavo.device.triton.attention import AttentionForm, allocate_scratch, attend_splitting, attend_walking
from octavo.device.triton.attention_work import AttentionStep, AttentionWork, prefill_tokens_per_tile
from octavo.kernels.contract import KvShape

BF16 = torch.bfloat16
SHARED_BYTES_MAX = {80: 163 * 1024, 90: 227 * 1024}
LITTLE_SHARED_BYTES = 99 * 1024  # of capabilities 8.6 and 8.9
# Rows, outputs, inputs: every form of tile, and inputs that no block divides.
PRODUCTS = [(1, 4096, 4096), (16, 9216, 1024), (1, 4096, 192), (32, 6144, 4096), (32, 9216, 1024)]
PRODUCTS += [(64, 6144, 4096), (64, 9216, 1024), (64, 4100, 200), (65, 9216, 4096)]
PRODUCTS += [(256, 4096, 4096), (256, 6144, 4096), (300, 4100, 200)]
STEP = AttentionStep(
    torch.zeros((2, 64), dtype=torch.int32), *(torch.zeros(3, dtype=torch.int32) for _ in range(3))
)


def halves(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=BF16)


def ints(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32)


def pool_of(kv_heads: int, size: int, kind: str) -> DevicePool:
    return allocate_pool(KvShape(2, kv_heads, size, 16, kind), 2, CPU)


def attention(heads: int, kv_heads: int, size: int, kind: str, is_decode: bool, form: AttentionForm) -> None:
    """Both ways."""
    tokens = 1 if is_decode else prefill_tokens_per_tile(heads, kv_heads, size)
    work = AttentionWork(ints(16), ints(16), ints(16), ints(1), tokens, 64)
    q, pool = halves(32, heads * size), pool_of(kv_heads, size, kind)
    attend_walking(q, q, pool, 1, STEP, work, form)
    scratch = allocate_scratch(64, tokens, heads, kv_heads, size, CPU)
    attend_splitting(q, q, pool, 1, STEP, work, form, scratch, 32)


def stored(kind: str) -> None:
    table = torch.zeros((64, 64))
    transform = store.HeadTransform(halves(128), halves(128), 1e-6, table, table)
    qkv, q = halves(32, 12 * 128), halves(32, 8 * 128)
    store.store_heads(q, qkv, pool_of(2, 128, kind), 1, STEP, ints(32), ints(32), transform)


def multiplied(rows: int, outputs: int, inputs: int) -> None:
    x, y = halves(rows, inputs), halves(rows, outputs)
    linear.linear(y, x, halves(outputs, inputs), halves(outputs), y)


def gated(rows: int, outputs: int, inputs: int) -> None:
    linear.linear_gated(halves(rows, outputs // 2), halves(rows, inputs), halves(outputs, inputs), "silu")


def multiplied_in_little_memory(rows: int) -> None:
    with mock.patch.object(linear, "shared_bytes_of", return_value=LITTLE_SHARED_BYTES):
        multiplied(rows, 6144, 4096)


def of_vocabulary(rows: int) -> None:
    x, weight = halves(rows, 1024), halves(9000, 1024)
    vocabulary.logits(torch.zeros(rows, 9000), x, weight, 30.0)
    scratch = vocabulary.allocate_argmax_scratch(rows, 9000, CPU)
    vocabulary.argmax(torch.zeros(rows, dtype=torch.int64), x, weight, scratch)


def of_rows() -> None:
    x, wide = halves(4, 4096), halves(4, 8192)
    norms.rms_norm(x, x, halves(4096), 1e-6, x)
    norms.layer_norm(x, x, halves(4096), halves(4096), 1e-5)
    elementwise.gated(x, wide[:, :4096], wide[:, 4096:], "silu")
    elementwise.gated(x, wide[:, :4096], wide[:, 4096:], "gelu_tanh")
    elementwise.soft_cap(x, x, 30.0)
    step = embedding.TokenPlaces(torch.zeros((2, 64), dtype=torch.int32), ints(2), ints(4), ints(4))
    embedding.embed(x, halves(100, 4096), step, 2.0, x)


def of_draws() -> None:
    drawn, whole = torch.zeros((4, 9), dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    draws.draw_greedily(torch.zeros(4, 9008))
    draws.draw(torch.zeros(4, 9008), drawn, whole, whole, is_filtered=False)


def of_cuts() -> None:
    drawn, whole = torch.zeros((4, 9), dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    draws.draw(torch.zeros(4, 9008), drawn, whole, whole, is_filtered=True)
    likeliest.logprobs(torch.zeros(4, 9008), whole, 20)


def of_penalties() -> None:
    adjusted, tokens = torch.zeros((4, 605), dtype=torch.int32), torch.zeros((4, 64), dtype=torch.int32)
    whole = torch.zeros(4, dtype=torch.int64)
    penalties.penalise(torch.zeros(4, 9008), adjusted, tokens, whole, whole, 64)
    penalties.add_biases(torch.zeros(4, 9008), adjusted, whole, 3)


def of_moves() -> None:
    data = torch.zeros((2, 8192), dtype=torch.uint8)
    blocks.copy_blocks(data, ints(2), ints(2))
    plans.write_plan(ints(64), ints(16), ints(16), ints(32), ints(32))
    plans.append_tokens(torch.zeros((2, 64), dtype=torch.int32), *(torch.zeros(4, dtype=torch.int64),) * 3)


def cases() -> dict[str, Callable[[], None]]:
    """By label. A label that ends in "product" promises tensor cores."""
    plain = AttentionForm(0.1)
    vector = torch.zeros(8)
    full = AttentionForm(0.1, 4096, 30.0, vector, vector)
    found: dict[str, Callable[[], None]] = {}
    for name, is_decode in (("decode", True), ("prefill", False)):
        found[f"attention {name} 128 product"] = lambda d=is_decode: attention(8, 2, 128, "bf16", d, plain)
        found[f"attention {name} int8 product"] = lambda d=is_decode: attention(8, 2, 128, "int8", d, plain)
    found["attention prefill 64 product"] = lambda: attention(8, 8, 64, "bf16", False, plain)
    found["attention prefill fp8 product"] = lambda: attention(8, 2, 128, "fp8", False, plain)
    found["attention decode fp8 product"] = lambda: attention(8, 2, 128, "fp8", True, plain)
    found["attention prefill full product"] = lambda: attention(8, 2, 128, "bf16", False, full)
    found["attention decode 80 product"] = lambda: attention(8, 2, 80, "bf16", True, plain)
    found["attention prefill 256 product"] = lambda: attention(8, 4, 256, "bf16", False, plain)
    for rows, outputs, inputs in PRODUCTS:
        label = f"linear {rows} {outputs} {inputs} product"
        found[label] = lambda r=rows, o=outputs, i=inputs: multiplied(r, o, i)
    for rows, outputs in ((1, 6144), (16, 28672), (32, 28672), (64, 28672), (256, 6144), (300, 28672)):
        found[f"linear gated {rows} {outputs} product"] = lambda r=rows, o=outputs: gated(r, o, 4096)
    for rows in (1, 64, 128, 256):
        found[f"linear {rows} little product"] = lambda r=rows: multiplied_in_little_memory(r)
    for rows in (1, 32, 64, 65):
        found[f"vocabulary {rows} product"] = lambda r=rows: of_vocabulary(r)
    for kind in ("bf16", "int8", "fp8"):
        found[f"store {kind}"] = lambda k=kind: stored(k)
    return found | {
        "rows": of_rows,
        "erf": lambda: elementwise.activate(halves(4, 64), halves(4, 64), "gelu"),
        "moves": of_moves,
        "draws": of_draws,
        "penalties": of_penalties,
        "cuts": of_cuts,
    }


# Once is enough: they differ from others by their sizes.
ONLY_ON_90 = ("full", "fp8", "attention decode 80", "attention prefill 64", "vocabulary 65", "vocabulary 1 ")


def main() -> None:
    capability = int(sys.argv[1])
    shared_bytes = {"shared_bytes_of": lambda _: SHARED_BYTES_MAX[capability]}
    with mock.patch.multiple(linear, **shared_bytes), mock.patch.multiple(launching, **shared_bytes):
        results = [
            dataclasses.asdict(result)
            for label, start in cases().items()
            if capability == 90 or not any(part in label for part in ONLY_ON_90)
            for result in compiled(label, start, capability)
        ]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
