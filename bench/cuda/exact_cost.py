"""The cost of exactness: the engine with Octavo's products, and with cuBLAS in their place.

    python bench/cuda/exact_cost.py --shape 8B

    exact          Octavo's kernels
    layers         products of layers by torch.mm, the vocabulary by Octavo's kernels
    everything     the vocabulary by torch.mm too, and torch's argmax

There is no `--exact off` yet: names in `octavo.device` are patched while an engine is created and runs.
Target: at most 10 % of tokens per second. The engines are measured one after another, in rounds, since each
needs its own graphs; the best round counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from engines import new_backend, open_llm, random_model
from measuring import begin, parser
from shapes import LLAMA_8B, QWEN3_06B, TINY
from torch import Tensor

from octavo.bench.offline import measure, w1, warm_up
from octavo.config import StartOptions
from octavo.device import compiled, lowering
from octavo.device.triton.vocabulary import ArgmaxScratch

MODES = ("exact", "layers", "everything")
SHAPES = {shape.name: shape for shape in (QWEN3_06B, LLAMA_8B)}


def fast_linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """`octavo.device.triton.linear.linear` by cuBLAS."""
    if bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias.to(x.dtype), x, weight.T, out=out)


def fast_gated(out: Tensor, x: Tensor, weight: Tensor, activation: str, bias: Tensor | None = None) -> None:
    """`octavo.device.triton.linear.linear_gated` by torch's product and silu."""
    assert activation == "silu"
    both = x.new_empty((x.shape[0], weight.shape[0]))
    fast_linear(both, x, weight, bias)
    torch.mul(torch.nn.functional.silu(both[:, 0::2]), both[:, 1::2], out=out)


def fast_argmax(
    out: Tensor, x: Tensor, weight: Tensor, scratch: ArgmaxScratch, soft_cap: float | None = None
) -> None:
    """`octavo.device.triton.vocabulary.argmax` through logits in the activations' type."""
    assert soft_cap is None
    out.copy_(torch.mm(x, weight.T).argmax(1))


@contextmanager
def products_of(mode: str) -> Iterator[None]:
    """Engines in this block use the products of this mode."""
    with ExitStack() as stack:
        if mode != "exact":
            stack.enter_context(mock.patch.object(lowering, "linear", fast_linear))
            stack.enter_context(mock.patch.object(lowering, "linear_gated", fast_gated))
        if mode == "everything":
            stack.enter_context(mock.patch.object(compiled, "argmax", fast_argmax))
        yield


def main() -> None:
    """Measure each mode, twice."""
    made = parser(__doc__)
    made.add_argument("--shape", choices=list(SHAPES), default="8B")
    made.add_argument("--rounds", type=int, default=2)
    given = made.parse_args()
    probe = begin("exact_cost", given)
    shape = TINY if probe.tiny else SHAPES[given.shape]
    backend = new_backend(probe)
    probe.note(f"weights of {shape.name}")
    loaded = random_model(shape, backend, 64 if probe.tiny else 2048)
    options = StartOptions(
        kv=probe.kv,
        kv_memory_bytes=2**22 if probe.tiny else 20 * 2**30,
        max_seqs=128,
        step_tokens=64 if probe.tiny else 2048,
        overlap=1,
        speculate="off",
        prefix_caching=False,
    )
    loads = [w1(1, 3, 2, 1)] if probe.tiny else [w1(max(3, n), 128, 128, n) for n in (1, 32, 128)]
    best: dict[tuple[str, int], float] = {}
    for round_ in range(1 if probe.tiny else given.rounds):
        for mode in MODES:
            if not probe.has_time(f"{mode}, round {round_}", 0 if probe.tiny else 60):
                continue
            probe.note(f"{mode}, round {round_}")
            with products_of(mode), open_llm(loaded, backend, options) as llm:
                if not probe.tiny:
                    warm_up(llm)
                for load in loads:
                    if not probe.tiny:
                        measure(llm, load)  # captures
                    report = measure(llm, load)
                    key = mode, load.concurrency
                    best[key] = max(best.get(key, 0.0), report.decode_tokens_per_s)
                    probe.emit(
                        "run",
                        shape=shape.name,
                        mode=mode,
                        round=round_,
                        in_flight=load.concurrency,
                        decode_tokens_per_s=report.decode_tokens_per_s,
                        output_tokens_per_s=report.output_tokens_per_s,
                        prefill_tokens_per_s=report.prefill_tokens_per_s,
                    )
            del llm
            probe.free()
    for (mode, count), speed in best.items():
        exact = best.get(("exact", count))
        if mode != "exact" and exact:
            cost = 1 - exact / speed if speed else None
            probe.emit("cost", shape=shape.name, against=mode, in_flight=count, cost_of_exactness=cost)


if __name__ == "__main__":
    main()
