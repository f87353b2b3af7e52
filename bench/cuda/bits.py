"""Checks that a row has the same bits alone and in any batch, in any tiling, with any split.

    python bench/cuda/bits.py

    products     every tiling and row count against one row alone; a gated product against two; cuBLASLt's
                 bits too, by shape
    attention    split against walk, many times, since the merging program is random; alone against batch, a
                 prefill's rows against decoding
    norms        alone against batch
    vocabulary   the argmax against the logits

Each line has the number of differing values; the summary lists the differences, and the exit status is 1 if
there are any.
"""

from __future__ import annotations

import torch
from measuring import Probe, begin, parser
from shapes import (
    LLAMA_8B,
    QWEN3_06B,
    TINY,
    AttentionRun,
    Chunks,
    Shape,
    make_context,
    queries,
    random_matrix,
)
from torch import Tensor

from octavo.device.triton.attention_work import prefill_tokens_per_tile
from octavo.device.triton.elementwise import gated
from octavo.device.triton.linear import Tiling, linear, linear_gated, multiply, tiling_of
from octavo.device.triton.norms import rms_norm
from octavo.device.triton.vocabulary import allocate_argmax_scratch, argmax, logits

ROWS = (1, 2, 8, 16, 17, 32, 63, 64, 65, 128, 256, 1024, 4096)
TILINGS = {
    "16x16 swapped": Tiling(16, 16, weights_first=True, num_warps=2, num_stages=6),
    "16x32 swapped": Tiling(16, 32, weights_first=True, num_warps=4, num_stages=6),
    "16x64 swapped": Tiling(16, 64, weights_first=True, num_warps=4, num_stages=4),  # wgmma
    "16x64 swapped, 128 inputs": Tiling(16, 64, weights_first=True, num_warps=4, num_stages=6, block_k=128),
    "16x32 swapped, 128 inputs": Tiling(16, 32, weights_first=True, num_warps=4, num_stages=4, block_k=128),
    "32x64 swapped, 128 inputs": Tiling(32, 64, weights_first=True, num_warps=4, num_stages=4, block_k=128),
    "64x64 swapped": Tiling(64, 64, weights_first=True, num_warps=4, num_stages=4),
    "64x128 swapped": Tiling(64, 128, weights_first=True, num_warps=8, num_stages=4),
    "64x64": Tiling(64, 64, weights_first=False, num_warps=4, num_stages=4),
    "32x64": Tiling(32, 64, weights_first=False, num_warps=4, num_stages=4),  # mma.sync
    "128x128": Tiling(128, 128, weights_first=False, num_warps=8, num_stages=3),
}


class Bits:
    """Compares results, and collects differences."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.unequal: list[str] = []
        self.count = 0

    def compare(self, what: str, about: str, got: Tensor, want: Tensor, *, counts: bool = True) -> None:
        """`counts`: a difference fails; for other libraries it is only printed."""
        assert got.shape == want.shape
        differ = got != want
        num_differ = int(differ.sum())
        rows = int(differ.reshape(differ.shape[0], -1).any(1).sum()) if got.dim() else num_differ
        far = float((got.double() - want.double()).abs().max())
        self.probe.emit(
            what, case=about, equal=num_differ == 0, differ=num_differ, of=got.numel(), rows=rows, by=far
        )
        if counts:
            self.count += 1
            if num_differ:
                self.unequal.append(f"{what}: {about}")


def instructions(seen: set[int]) -> dict[str, int]:
    """Counts of each product instruction in the newest variant of `multiply`, from Triton's caches."""
    try:
        made = [k for cache in multiply.device_caches.values() for k in cache[0].values()]  # type: ignore[attr-defined]
        new = [kernel for kernel in made if id(kernel) not in seen]
        seen.update(id(kernel) for kernel in made)
        text = new[-1].asm["ptx"] if new else ""
    except Exception:  # noqa: BLE001 - not the same in every Triton
        return {}
    return {name: text.count(name) for name in ("wgmma.mma_async", "mma.sync", "fma.rn.f32")} if text else {}


def products(bits: Bits, shape: Shape, dtype: torch.dtype, rows: tuple[int, ...], names: list[str]) -> None:
    """All tilings must have the bits of the first."""
    probe, seen = bits.probe, set[int]()
    for name in names:
        outputs, inputs = shape.products[name]
        about = f"{shape.name} {name} {outputs}x{inputs} {str(dtype).removeprefix('torch.')}"
        if not probe.has_time(about):
            return
        probe.note(about)
        weight = random_matrix(outputs, inputs, dtype, probe.device, 1)
        x = random_matrix(max(rows), inputs, dtype, probe.device, 2) * inputs**0.5
        out = torch.empty((max(rows), outputs), dtype=dtype, device=probe.device)
        base: Tensor | None = None
        for label, tiling in TILINGS.items():
            out.zero_()
            try:
                linear(out, x, weight, tiling=tiling)
                probe.wait()
            except Exception as error:  # noqa: BLE001 - for example too much shared memory
                probe.emit("product tiling", case=f"{about} {label}", error=str(error)[:300])
                continue
            base = out.clone() if base is None else base
            counts_of_kinds = instructions(seen) if probe.is_cuda else {}
            bits.compare("product tiling", f"{about} {label} {counts_of_kinds or ''}".strip(), out, base)
        assert base is not None, "no tiling works"
        alone = torch.empty((1, outputs), dtype=dtype, device=probe.device)
        for row in (0, max(rows) // 2, max(rows) - 1):
            linear(alone, x[row : row + 1], weight)
            bits.compare("product alone", f"{about} row {row}", alone[0], base[row])
        for count in rows:
            out[:count].zero_()
            linear(out[:count], x[:count], weight)
            chosen = tiling_of(x[:count], weight)
            label = f"{count} rows ({chosen.rows}x{chosen.outputs})"
            bits.compare("product crowd", f"{about} {label}", out[:count], base[:count])
            want, got = out.new_empty((2, count, outputs // 2))
            gated(want, base[:count, 0::2].contiguous(), base[:count, 1::2].contiguous(), "silu")
            linear_gated(got, x[:count], weight, "silu")
            bits.compare("product gated", f"{about} {label}", got, want)
            made = torch.matmul(x[:count], weight.T)
            bits.compare("matmul", f"{about} {count} rows", made, base[:count], counts=False)


def vocabulary(bits: Bits, shape: Shape, dtype: torch.dtype, rows: tuple[int, ...]) -> None:
    """Logits alone and in a batch, and the argmax of the same rows."""
    probe = bits.probe
    about = f"{shape.name} {str(dtype).removeprefix('torch.')}"
    weight = random_matrix(shape.vocab, shape.hidden, dtype, probe.device, 3)
    x = random_matrix(max(rows), shape.hidden, dtype, probe.device, 4) * shape.hidden**0.5
    scratch = allocate_argmax_scratch(max(rows), shape.vocab, probe.device)
    base: Tensor | None = None
    for count in rows:
        out = torch.empty((count, shape.vocab), device=probe.device)
        logits(out, x[:count], weight)
        base = out if base is None else base
        bits.compare("logits", f"{about} row 0 of {count}", out[0], base[0])
        best = torch.empty(count, dtype=torch.int64, device=probe.device)
        argmax(best, x[:count], weight, scratch)
        lowest = (out == out.amax(1, keepdim=True)).int().argmax(1)
        bits.compare("argmax", f"{about} {count} rows", best, lowest)


def norms(bits: Bits, size: int, dtype: torch.dtype, rows: tuple[int, ...]) -> None:
    """With and without the sum before it; rows of a wider buffer too."""
    probe = bits.probe
    x, branch = (random_matrix(max(rows), size, dtype, probe.device, 5 + i) * size**0.5 for i in (0, 1))
    weight = torch.rand(size, device=probe.device)

    def normed(first: int, stop: int, has_branch: bool) -> Tensor:
        own = x[first:stop].clone()
        out = torch.empty_like(own)
        rms_norm(out, own, weight, 1e-6, branch[first:stop] if has_branch else None)
        return torch.cat([out, own])

    for has_branch in (False, True):
        whole = normed(0, max(rows), has_branch)
        for row in sorted({0, 1, max(rows) // 2, max(rows) - 1}):
            about = (
                f"{size} {str(dtype).removeprefix('torch.')} row {row}{' with a sum' if has_branch else ''}"
            )
            alone = normed(row, row + 1, has_branch)
            bits.compare("norm", about, alone, whole[[row, max(rows) + row]])


def attention(bits: Bits, shape: Shape, dtype: torch.dtype, kind: str, length: int) -> None:
    """Decoding rows alone, in a batch, walked and split; and the same positions within a prefill."""
    probe = bits.probe
    about = f"{shape.name} {str(dtype).removeprefix('torch.')} {kind}"
    probe.note(f"attention {about}")
    context = make_context(shape, 4, length, kind, probe.device)
    ends = [0, 256] if probe.tiny else [0, 1, 15, 63, 64, 255, 256, 257, 511, length // 2, length - 2]
    crowd = Chunks([(index % 4, at, 1) for index, at in enumerate((*ends, length - 1))])
    q = queries(shape, crowd.num_tokens, dtype, probe.device)
    whole = AttentionRun(context, q, crowd, 1)
    walked = whole.walk().clone()
    for programs in (3,) if probe.tiny else (1, 3, 66):
        whole.out.zero_()
        bits.compare("attention split", f"{about} {programs} programs", whole.split(programs), walked)
    again = 2 if probe.tiny else 200
    differ = [int((whole.split() != walked).any()) for _ in range(again)]
    probe.emit("attention again", case=about, times=again, differ=sum(differ))
    bits.unequal += [f"attention again: {about}"] * (sum(differ) > 0)
    for index, chunk in enumerate(crowd.each):
        alone = AttentionRun(context, q[index : index + 1], Chunks([chunk]), 1)
        bits.compare("attention alone", f"{about} walk {chunk}", alone.walk()[0], walked[index])
        bits.compare("attention alone", f"{about} split {chunk}", alone.split()[0], walked[index])
    per_tile = prefill_tokens_per_tile(shape.heads, shape.kv_heads, shape.head)
    first, count = (length // 2, 70) if length > 400 else (length // 2, 20)
    q = queries(shape, count, dtype, probe.device)
    prefill = AttentionRun(context, q, Chunks([(1, first, count)]), per_tile).walk()
    steps = Chunks([(1, first + i, 1) for i in range(count)])  # K and V of all are stored already
    bits.compare(
        "attention prefill", f"{about} against decoding", prefill, AttentionRun(context, q, steps, 1).walk()
    )
    cut = AttentionRun(context, q, Chunks([(1, first, 7), (1, first + 7, count - 7)]), per_tile)
    bits.compare("attention prefill", f"{about} in two chunks", cut.walk(), prefill)
    bits.compare("attention prefill", f"{about} split", cut.split(), prefill)


def main() -> None:
    """Run the checks, those with fast compilation first: each variant of a kernel takes seconds the first
    time."""
    probe = begin("bits", parser(__doc__).parse_args())
    bits = Bits(probe)
    rows = (1, 17, 65) if probe.tiny else ROWS
    few = tuple(count for count in rows if count <= 256)
    bf16, fp16 = torch.bfloat16, torch.float16
    attended = [(LLAMA_8B, bf16, "bf16"), (LLAMA_8B, bf16, "int8"), (LLAMA_8B, fp16, "fp16")]
    attended += [(QWEN3_06B, bf16, "bf16"), (LLAMA_8B, bf16, "fp8")]
    multiplied = [(LLAMA_8B, bf16, 4), (QWEN3_06B, bf16, 4), (LLAMA_8B, fp16, 1)]
    if probe.tiny:
        attended = [(TINY, torch.float32, "f32"), (TINY, torch.float32, "int8")]
        multiplied = [(TINY, torch.float32, 4)]
    for shape, dtype, count in multiplied:
        norms(bits, shape.hidden, dtype, rows)
        products(bits, shape, dtype, rows, list(shape.products)[:count])
        if probe.has_time(f"vocabulary of {shape.name}"):
            probe.note(f"vocabulary of {shape.name}")
            vocabulary(bits, shape, dtype, few)
        probe.free()
    for shape, dtype, kind in attended:
        if probe.has_time(f"attention {shape.name} {kind}"):
            attention(bits, shape, dtype, kind, 300 if probe.tiny else 4100)
            probe.free()
    probe.emit("summary", comparisons=bits.count, unequal=len(bits.unequal), first=bits.unequal[:40])
    raise SystemExit(1 if bits.unequal else 0)


if __name__ == "__main__":
    main()
