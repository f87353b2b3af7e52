"""Norms, functions of elements, embeddings."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from octavo.device.triton.elementwise import activate, gated, scale, soft_cap
from octavo.device.triton.embedding import TokenPlaces, embed
from octavo.device.triton.norms import layer_norm, rms_norm

pytestmark = pytest.mark.full

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
SIZES = pytest.mark.parametrize("size", [64, 200, 2880])
ORACLES = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu": functional.gelu,
    "relu": functional.relu,
}


def close(out: torch.Tensor, want: torch.Tensor) -> None:
    tolerance = 2e-6 if out.dtype == torch.float32 else 2e-3
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)


@DTYPES
@SIZES
@pytest.mark.parametrize("has_branch", [False, True], ids=["alone", "with sum"])
@pytest.mark.parametrize("is_layer", [False, True], ids=["rms", "layer"])
def test_norms_are_close(
    is_layer: bool, has_branch: bool, size: int, dtype: torch.dtype, rng: torch.Generator
) -> None:
    x, branch, weight = (
        torch.randn(shape, generator=rng).to(dtype) for shape in ((3, size), (3, size), size)
    )
    bias = torch.randn(size, generator=rng)
    total = x + branch if has_branch else x.clone()
    want = total.double()
    out = torch.empty_like(x)
    other = branch if has_branch else None
    if is_layer:
        want = functional.layer_norm(want, (size,), weight.double(), bias.double(), 1e-5)
        layer_norm(out, x, weight, bias, 1e-5, other)
    else:
        want = want / torch.sqrt((want * want).mean(1, keepdim=True) + 1e-5) * weight.double()
        rms_norm(out, x, weight, 1e-5, other)
    close(out, want)
    assert torch.equal(x, total)  # the sum is written back


def test_a_row_alone_is_normalised_as_alongside_others(rng: torch.Generator) -> None:
    x, weight = torch.randn((5, 200), generator=rng), torch.randn(200, generator=rng)
    crowd, alone = torch.empty_like(x), torch.empty((1, 200))
    rms_norm(crowd, x, weight, 1e-6)
    rms_norm(alone, x[3:4], weight, 1e-6)
    assert torch.equal(alone[0], crowd[3])


@DTYPES
@pytest.mark.parametrize("activation", ORACLES)
def test_activations_are_close_and_gate(activation: str, dtype: torch.dtype, rng: torch.Generator) -> None:
    fused = (3 * torch.randn((3, 2 * 1100), generator=rng)).to(dtype)
    fused[0, :6] = torch.tensor([0.0, 1e-4, -1e-4, 90, -90, 0.25])
    gate, up = fused[:, :1100], fused[:, 1100:]
    out = torch.empty((3, 1100), dtype=dtype)
    gated(out, gate, up, activation)
    want = ORACLES[activation](gate.double())
    close(out, want * up.double())
    activate(out, gate, activation)
    close(out, want)


@DTYPES
def test_scales_and_caps_are_close(dtype: torch.dtype, rng: torch.Generator) -> None:
    x = (10 * torch.randn((2, 70), generator=rng)).to(dtype)
    x[0, :3] = torch.tensor([float("inf"), -float("inf"), 0])
    out = torch.empty_like(x)
    scale(out, x, 0.3)
    close(out, x.double() * 0.3)
    soft_cap(out, x, 5.0)
    close(out, 5 * torch.tanh(x.double() / 5))


def test_a_cap_is_as_precise_near_zero_as_elsewhere(rng: torch.Generator) -> None:
    x = torch.logspace(-20, 2, 500)[None] * torch.tensor([[1.0], [-1.0]])
    out = torch.empty_like(x)
    soft_cap(out, x, 1.0)
    torch.testing.assert_close(out.double(), torch.tanh(x.double()), rtol=5e-7, atol=0)


@DTYPES
def test_embeddings_are_rows_of_tables(dtype: torch.dtype, rng: torch.Generator) -> None:
    table, places = (torch.randn(shape, generator=rng).to(dtype) for shape in ((10, 1100), (7, 1100)))
    rows = torch.randint(0, 10, (3, 7), generator=rng, dtype=torch.int32)
    positions = torch.tensor([6, 0, 2, -1], dtype=torch.int32)
    table_rows, chunks = (torch.tensor(x, dtype=torch.int32) for x in ([2, 0], [0, 1, 1, 0]))
    out = torch.empty((4, 1100), dtype=dtype)
    step = TokenPlaces(rows, table_rows, chunks, positions)
    tokens = rows[[2, 0, 0], [6, 0, 2]].long()
    embed(out, table, step)
    assert torch.equal(out[:3], table[tokens])
    assert not out[3].any(), "padding is not zeros"
    embed(out, table, step, 33.0, places)
    close(out[:3], 33 * table[tokens].double() + places[positions[:3].long()].double())
    assert not out[3].any(), "padding is not zeros"
