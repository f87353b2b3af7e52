"""Products with weights, logits and their argmax."""

from __future__ import annotations

import pytest
import torch
from tests.device.triton.steps import CPU

from octavo.device.triton.linear import Tiling, linear, tiling_for
from octavo.device.triton.vocabulary import allocate_argmax_scratch, argmax, logits

pytestmark = pytest.mark.full

DTYPES = [torch.float32, torch.float16]
ROWS = [1, 16, 17, 64, 130]  # of all tilings, and beyond a tile
TILINGS = [tiling_for(rows, 96) for rows in (1, 64, 65)] + [tiling_for(1, 8192)]


@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f16"])
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("inputs, outputs", [(64, 48), (200, 150)])
def test_a_product_is_close_in_every_tiling(
    inputs: int, outputs: int, num_rows: int, dtype: torch.dtype, rng: torch.Generator
) -> None:
    wide = torch.randn((num_rows, inputs + 16), generator=rng).to(dtype)
    x = wide[:, 16:]
    weight = torch.randn((outputs, inputs), generator=rng).to(dtype)
    bias = torch.randn(outputs, generator=rng).to(dtype)
    residual = torch.randn((num_rows, outputs), generator=rng).to(dtype)
    want = x.double() @ weight.double().T
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    out = torch.full_like(residual, 7)
    linear(out, x, weight)
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    want = want + bias.double() + residual.double()
    linear(residual, x, weight, bias, residual)
    torch.testing.assert_close(residual.double(), want, atol=tolerance, rtol=tolerance)


def test_rows_are_written_where_they_stand_in_a_wider_buffer(rng: torch.Generator) -> None:
    x, weight = torch.randn((3, 64), generator=rng), torch.randn((20, 64), generator=rng)
    wide = torch.full((3, 50), 7.0)
    linear(wide[:, 5:25], x, weight)
    alone = torch.empty((3, 20))
    linear(alone, x, weight)
    assert torch.equal(wide[:, 5:25], alone)
    assert bool((wide[:, :5] == 7).all())
    assert bool((wide[:, 25:] == 7).all())


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"{tiling.rows}x{tiling.outputs}")
def test_a_row_alone_has_the_bits_it_has_beside_others(tiling: Tiling, rng: torch.Generator) -> None:
    """Of one tiling. Between tilings only a device can tell."""
    x, weight = torch.randn((20, 96), generator=rng), torch.randn((70, 96), generator=rng)
    crowd, alone = torch.empty((20, 70)), torch.empty((1, 70))
    linear(crowd, x, weight, tiling=tiling)
    for row in (0, 7, 19):
        linear(alone, x[row : row + 1], weight, tiling=tiling)
        assert torch.equal(alone[0], crowd[row])


def test_a_tile_is_a_function_of_shapes_alone() -> None:
    assert [tiling_for(rows, 4096).rows for rows in (1, 16, 17, 64, 65, 5000)] == [16, 16, 64, 64, 128, 128]


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"{tiling.rows}x{tiling.outputs}")
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_logits_and_their_argmax_agree(soft_cap: float | None, tiling: Tiling, rng: torch.Generator) -> None:
    x, weight = torch.randn((18, 72), generator=rng), torch.randn((300, 72), generator=rng)
    out, best = torch.empty((18, 300)), torch.empty(18, dtype=torch.int32)
    logits(out, x, weight, soft_cap, tiling)
    want = x.double() @ weight.double().T
    if soft_cap is not None:
        want = soft_cap * torch.tanh(want / soft_cap)
    torch.testing.assert_close(out.double(), want, atol=2e-5, rtol=2e-5)
    argmax(best, x, weight, allocate_argmax_scratch(20, 300, CPU), soft_cap, tiling)
    lowest = (out == out.amax(1, keepdim=True)).int().argmax(1)  # of equals the first
    assert best.tolist() == lowest.tolist()


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"{tiling.rows}x{tiling.outputs}")
def test_the_lowest_of_equals_is_found_and_no_number_has_no_argmax(tiling: Tiling) -> None:
    weight = torch.zeros((9000, 16))
    weight[[17, 300, 8900], 0] = 1
    weight[[18, 8990], 1] = 1
    x = torch.zeros((7, 16))
    x[0, 0] = x[1, 1] = 2
    x[2, 0] = float("inf")  # inf * 0 is NaN
    x[3, 2] = float("nan")
    x[5, 0] = -1  # all zeros but three: the first zero
    x[6, 0] = 3e38
    weight[8900, 0] = 1e30  # overflows for row 6, and is largest for row 0
    best = torch.empty(7, dtype=torch.int32)
    argmax(best, x, weight, allocate_argmax_scratch(7, 9000, CPU), None, tiling)
    assert best.tolist() == [8900, 18, -1, -1, 0, 0, -1]


def test_nothing_but_minus_infinity_has_no_argmax() -> None:
    x, weight = torch.full((1, 16), 3e38), torch.full((40, 16), -3e38)
    best = torch.empty(1, dtype=torch.int32)
    argmax(best, x, weight, allocate_argmax_scratch(1, 40, CPU))
    assert best.tolist() == [-1]
