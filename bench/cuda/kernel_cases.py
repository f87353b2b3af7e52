"""Launches of kernels with torch's float64 results: products, rows, moves. See `kernels_on_device.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import measuring  # noqa: F401 - before Triton
import torch
from torch import Tensor

from octavo.device.triton import blocks, elementwise, embedding, linear, norms, plans, vocabulary
from octavo.device.weights import DeviceMatrix, interleaved

ROUNDING = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of the largest number


@dataclass(frozen=True, slots=True)
class Case:
    """One launch and its expected result; `bound` is the allowed error, relative to the largest number."""

    kernel: str
    about: str
    run: Callable[[], tuple[Tensor, Tensor]]  # got, want in float64
    bound: float


class Numbers:
    """Random tensors of one type on the device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator(device).manual_seed(11)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of normally distributed numbers."""
        made = torch.randn(shape, device=self.device, generator=self._generator)
        return made.to(dtype or self.dtype)


def products(new: Numbers, tiny: bool) -> Iterator[Case]:
    """Products in every tiling, with bias and residual, and with inputs that are no whole block."""
    bound = ROUNDING[new.dtype]
    sizes = [(96, 64), (70, 72)] if tiny else [(6144, 4096), (1000, 72)]
    rows = (1, 17, 65) if tiny else (1, 2, 16, 17, 63, 64, 65, 130, 1030)
    for (outputs, inputs), count in itertools.product(sizes, rows):

        def run(outputs: int = outputs, inputs: int = inputs, count: int = count) -> tuple[Tensor, Tensor]:
            x, weight, bias = new(count, inputs), new(outputs, inputs) / inputs**0.5, new(outputs)
            out = new(count, outputs)
            want = x.double() @ weight.double().T + bias.double() + out.double()
            linear.linear(out, x, weight, bias, out)
            return out, want

        yield Case("linear", f"{count} rows, {outputs}x{inputs}", run, bound)

    for count in (1, 17, 65):

        def run_logits(count: int = count) -> tuple[Tensor, Tensor]:
            size, width = (300, 72) if tiny else (50_000, 1024)
            x, weight = new(count, width), new(size, width)
            out = torch.empty((count, size), device=new.device)
            vocabulary.logits(out, x, weight, 30.0)
            want = 30 * torch.tanh(x.double() @ weight.double().T / 30)
            return out, want

        def run_argmax(count: int = count) -> tuple[Tensor, Tensor]:
            size, width = (300, 72) if tiny else (50_000, 1024)
            x, weight = new(count, width), new(size, width)
            out = torch.empty((count, size), device=new.device)
            vocabulary.logits(out, x, weight)
            best = torch.empty(count, dtype=torch.int64, device=new.device)
            scratch = vocabulary.allocate_argmax_scratch(count, size, new.device)
            vocabulary.argmax(best, x, weight, scratch)
            return best, (out == out.amax(1, keepdim=True)).int().argmax(1).double()

        yield Case("logits", f"{count} rows", run_logits, 3e-5)
        yield Case("argmax", f"{count} rows", run_argmax, 0.0)


def rows(new: Numbers, tiny: bool) -> Iterator[Case]:
    """Norms, functions of elements, embedding."""
    bound = ROUNDING[new.dtype]
    for size, has_branch in itertools.product((64, 200) if tiny else (128, 1024, 4096, 14336), (False, True)):

        def run_rms(size: int = size, has_branch: bool = has_branch) -> tuple[Tensor, Tensor]:
            x, weight, out = new(37, size), new(size, dtype=torch.float32), new(37, size)
            branch = new(37, size) if has_branch else None
            added = x if branch is None else (x.float() + branch.float()).to(x.dtype)
            wide = added.double()
            want = wide / torch.sqrt((wide * wide).mean(1, keepdim=True) + 1e-6) * weight.double()
            norms.rms_norm(out, x, weight, 1e-6, branch)
            assert torch.equal(x, added)
            return out, want

        def run_layer(size: int = size, has_branch: bool = has_branch) -> tuple[Tensor, Tensor]:
            x, weight, bias = (new(37, size), *(new(size, dtype=torch.float32) for _ in range(2)))
            branch = new(37, size) if has_branch else None
            added = x if branch is None else (x.float() + branch.float()).to(x.dtype)
            want = torch.nn.functional.layer_norm(
                added.double(), (size,), weight.double(), bias.double(), 1e-6
            )
            norms.layer_norm(x, x, weight, bias, 1e-6, branch)
            return x, want

        about = f"{size}{' with a sum' if has_branch else ''}"
        yield Case("rms_norm", about, run_rms, bound)
        yield Case("layer_norm", about, run_layer, bound)
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }
    for name, function in functions.items():

        def run_gated(
            name: str = name, function: Callable[[Tensor], Tensor] = function
        ) -> tuple[Tensor, Tensor]:
            both = new(19, 2 * 1100)
            out = new(19, 1100)
            elementwise.gated(out, both[:, :1100], both[:, 1100:], name)
            return out, function(both[:, :1100].double()) * both[:, 1100:].double()

        def run_product(
            name: str = name, function: Callable[[Tensor], Tensor] = function
        ) -> tuple[Tensor, Tensor]:
            x, out = new(19, 200), new(19, 550)
            gate, up = (DeviceMatrix(new(550, 200)) for _ in range(2))
            linear.linear_gated(out, x, interleaved(gate, up), name)
            halves = [(x.double() @ each.data.double().T).to(out.dtype).double() for each in (gate, up)]
            return out, function(halves[0]) * halves[1]

        yield Case("gated", name, run_gated, bound)
        yield Case("linear_gated", name, run_product, 4 * bound)

    def run_embed() -> tuple[Tensor, Tensor]:
        table, places = new(500, 200), new(64, 200)
        tokens = torch.randint(0, 500, (1, 33), device=new.device, dtype=torch.int32)
        at, row = (torch.arange(size, device=new.device, dtype=torch.int32) for size in (33, 1))
        out = new(33, 200)
        embedding.embed(out, table, embedding.TokenPlaces(tokens, row, torch.zeros_like(at), at), 1.5, places)
        return out, table[tokens[0].long()].double() * 1.5 + places[at.long()].double()

    yield Case("embed", "with positions", run_embed, bound)


def moves(new: Numbers) -> Iterator[Case]:
    """Copies of blocks, and plans: exact results."""

    def run_blocks() -> tuple[Tensor, Tensor]:
        data = torch.randint(0, 255, (9, 12288), dtype=torch.uint8, device=new.device)
        want = data.double()
        want[[1, 8]] = want[[0, 3]]
        ints: dict[str, Any] = {"dtype": torch.int32, "device": new.device}
        blocks.copy_blocks(data, torch.tensor([0, 3], **ints), torch.tensor([1, 8], **ints))
        return data, want

    def run_plans() -> tuple[Tensor, Tensor]:
        target = torch.zeros(3000, dtype=torch.int32, device=new.device)
        indices = torch.randperm(3000, device=new.device).to(torch.int32)[:900]
        values = torch.arange(900, dtype=torch.int32, device=new.device)
        plans.write_plan(target, indices, values)
        want = torch.zeros(3000, dtype=torch.float64, device=new.device)
        want[indices.long()] = values.double()
        return target, want

    yield Case("move_blocks", "copy, gather, scatter", run_blocks, 0.0)
    yield Case("write_changes", "900 of 3,000", run_plans, 0.0)
