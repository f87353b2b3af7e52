"""Each kernel against torch's result in float64, on the device: the largest errors by kernel and type.

    python bench/cuda/kernels_on_device.py

A failure is printed and the other kernels continue; the exit status is 1 if one failed or its error is larger
than its type's rounding. An illegal access ends the script, and the line before it names the kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from kernel_cases import ROUNDING, Case, Numbers, moves, products, rows
from measuring import Probe, begin, parser
from shapes import LLAMA_8B, TINY, AttentionRun, Chunks, Context, Shape, make_context, queries
from torch import Tensor

from octavo.device.layout import LARGEST_CODE, allocate_pool
from octavo.device.triton import store
from octavo.device.triton.attention_work import AttentionStep, prefill_tokens_per_tile
from octavo.kernels.contract import KvShape


def heads(new: Numbers, shape: Shape, kinds: tuple[str, ...]) -> Iterator[Case]:
    """The kernel that norms and rotates q and k, and stores K and V into their slots."""
    for kind in kinds:

        def run(kind: str = kind) -> tuple[Tensor, Tensor]:
            count, size, (h, k) = 40, shape.head, (shape.heads, shape.kv_heads)
            pool = allocate_pool(KvShape(1, k, size, 16, kind), 8, new.device)
            qkv, weight = new(count, (h + 2 * k) * size), new(size, dtype=torch.float32)
            angles = torch.rand((64, size // 2), device=new.device) * 6
            cos, sin = torch.cos(angles), torch.sin(angles)
            ints: dict[str, Any] = {"dtype": torch.int32, "device": new.device}
            tables, zero = torch.tensor([[3, 1, 5, 2]], **ints), torch.zeros(1, **ints)
            step = AttentionStep(tables, zero, zero + 5, torch.tensor([0, count], **ints))
            positions = 5 + torch.arange(count, **ints)
            q = new(count, h * size)
            how = store.HeadTransform(weight, weight, 1e-6, cos, sin)
            store.store_heads(q, qkv, pool, 0, step, torch.zeros(count, **ints), positions, how)
            x = qkv.double().reshape(count, h + 2 * k, size)
            turned = x / torch.sqrt((x * x).mean(2, keepdim=True) + 1e-6) * weight.double()
            c, s = (table[positions.long()].double()[:, None] for table in (cos, sin))
            low, high = turned[..., : size // 2], turned[..., size // 2 :]
            turned = torch.cat([low * c - high * s, high * c + low * s], 2)
            context = Context(pool, tables)
            got = [q.reshape(count, h, size).double(), *(part[5 : 5 + count] for part in held(context, 0))]
            want = torch.cat([turned[:, : h + k], x[:, h + k :]], 1)
            return torch.cat(got, 1), want

        bound = max(ROUNDING[new.dtype], {"int8": 8e-3, "fp8": 4e-2, "f32": 0.0}.get(kind, 1.6e-2))
        yield Case("write_heads", kind, run, bound)


def held(context: Context, row: int) -> tuple[Tensor, Tensor]:
    """K and V of a row in float64: (positions, K, D) each."""
    pool, own = context.pool, context.tables[row].long()
    parts = []
    for index, part in enumerate((pool.keys(0), pool.values(0))):
        numbers = _blocks_of(part, own).float().double()
        if pool.layout.has_scales:
            numbers = numbers * pool.scales(0)[own, index].double()[..., None]
        parts.append(numbers.permute(0, 2, 1, 3).flatten(0, 1))
    return parts[0], parts[1]


def _blocks_of(part: Tensor, own: Tensor) -> Tensor:
    """The blocks as bytes, since torch cannot index fp8 everywhere."""
    if part.dtype != torch.float8_e4m3fn:
        return part[own]
    return part.view(torch.uint8)[own].view(part.dtype)


def attention(new: Numbers, shape: Shape, kinds: tuple[str, ...], length: int) -> Iterator[Case]:
    """Attention walked and split, for decoding and prefill."""
    steps = {
        "decode": Chunks([(0, length - 1, 1), (1, length // 2, 1), (2, 0, 1)]),
        "prefill": Chunks([(0, length // 3, 40), (1, 0, 9), (2, 3, 1)]),
    }
    group = shape.heads // shape.kv_heads
    for kind, (name, chunks), way in itertools.product(kinds, steps.items(), ("walk", "split")):

        def run(
            kind: str = kind, chunks: Chunks = chunks, is_one: bool = name == "decode", way: str = way
        ) -> tuple[Tensor, Tensor]:
            context = make_context(shape, 3, length, kind, new.device)
            q = queries(shape, chunks.num_tokens, new.dtype, new.device)
            tokens = 1 if is_one else prefill_tokens_per_tile(shape.heads, shape.kv_heads, shape.head)
            attending = AttentionRun(context, q, chunks, tokens)
            got = attending.walk() if way == "walk" else attending.split(5)
            want, at = [], 0
            for row, start, count in chunks.each:
                k, v = (part.repeat_interleave(group, 1) for part in held(context, row))
                for own in range(start, start + count):
                    x = q[at].double().reshape(shape.heads, shape.head)
                    scores = torch.einsum("hd,phd->hp", x, k[: own + 1]) * shape.head**-0.5
                    want.append(torch.einsum("hp,phd->hd", scores.softmax(1), v[: own + 1]).flatten())
                    at += 1
            return got, torch.stack(want)

        yield Case("attention", f"{way}, {name}, {kind}", run, 2 * ROUNDING[new.dtype])


def check(probe: Probe, case: Case, dtype: torch.dtype) -> bool:
    """Run one case, and print its error."""
    probe.note(f"{case.kernel}: {case.about}, {dtype}")
    about = {"kernel": case.kernel, "case": case.about, "dtype": str(dtype).removeprefix("torch.")}
    try:
        got, want = case.run()
        probe.wait()
    except Exception as error:  # noqa: BLE001 - printed; the others continue
        probe.emit("kernel", **about, ok=False, error=f"{type(error).__name__}: {error}"[:600])
        return False
    far = (got.double() - want).abs().max() / want.abs().max().clamp(min=1e-30)
    ok = bool(far <= case.bound)  # NaN is not
    probe.emit("kernel", **about, ok=ok, error_of_largest=float(far), allowed=case.bound)
    return ok


def main() -> None:
    """Check all kernels, type by type."""
    probe = begin("kernels_on_device", parser(__doc__).parse_args())
    shape, length = (TINY, 300) if probe.tiny else (LLAMA_8B, 1500)
    kinds = ("f32", "int8", "fp8") if probe.tiny else ("bf16", "fp16", "int8", "fp8")
    assert set(kinds) <= {"f32", "bf16", "fp16", *LARGEST_CODE}
    num_bad = num_cases = 0
    for dtype in probe.dtypes:
        new = Numbers(probe.device, dtype)
        plain = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "f32"}[dtype]
        held_as = tuple(kind for kind in kinds if kind in (plain, *LARGEST_CODE))
        if dtype == torch.float16:  # each variant takes seconds to compile
            held_as = held_as[:1]
        for case in itertools.chain(
            moves(new),
            rows(new, probe.tiny),
            products(new, probe.tiny),
            heads(new, shape, held_as),
            attention(new, shape, held_as, length),
        ):
            if not probe.has_time(f"{case.kernel}: {case.about}, {dtype}"):
                continue
            num_cases += 1
            num_bad += not check(probe, case, dtype)
    probe.emit("summary", cases=num_cases, bad=num_bad)
    raise SystemExit(1 if num_bad else 0)


if __name__ == "__main__":
    main()
