"""Products with weights, logits and their argmax."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.device.triton.steps import CPU

from octavo.device.triton.elementwise import gated
from octavo.device.triton.linear import Tiling, linear, linear_gated, tiling_for
from octavo.device.triton.vocabulary import allocate_argmax_scratch, argmax, logits
from octavo.device.weights import DeviceMatrix, interleaved

pytestmark = pytest.mark.full

DTYPES = [torch.float32, torch.float16]
ROWS = [1, 16, 17, 64, 130]  # of all tilings, and beyond a tile
SHAPES = [
    (4096, 128),
    (4096, 192),
    (8192, 128),
    (8192, 192),
    (9000, 128),
    (9000, 192),
]  # all kinds of outputs and inputs
# Stages aside, which the interpreter does not have.
TILINGS = list(
    dict.fromkeys(
        dataclasses.replace(tiling_for(rows, *shape), num_stages=1)
        for rows in (1, 32, 64, 65, 256)
        for shape in SHAPES
    )
)


def name_of(tiling: Tiling) -> str:
    return f"{tiling.rows}x{tiling.outputs}x{tiling.block_k}"


def programs_of(tiling: Tiling, rows: int, outputs: int) -> int:
    return math.prod(tiling.num_tiles(rows, outputs))


@contextmanager
def addresses_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """Of all numbers that kernels load within, and how often."""
    from triton.runtime.interpreter import InterpreterBuilder

    read: Counter[int] = Counter()
    load = InterpreterBuilder.create_masked_load

    def record(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        read.update(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)].ravel().tolist())
        return load(self, pointers, mask, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", record)
        yield read


def addresses_of(x: torch.Tensor) -> set[int]:
    """Of the numbers of a matrix, whose rows may be strided."""
    rows, columns = (torch.arange(size) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return set((x.data_ptr() + (rows[:, None] + columns) * x.element_size()).flatten().tolist())


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


@pytest.mark.parametrize("inputs", [100, 128])
@pytest.mark.parametrize("tiling", TILINGS, ids=name_of)
def test_a_product_reads_its_rows_and_weights_and_nothing_beyond(
    tiling: Tiling, inputs: int, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = torch.full((tiling.rows + 5, 140), float("nan"))
    x, weight = wide[: tiling.rows + 3, :inputs], torch.randn((70, inputs), generator=rng)
    x.copy_(torch.randn(x.shape, generator=rng))
    outs = torch.full((tiling.rows + 5, 70), 7.0)
    with addresses_read(monkeypatch) as read:
        linear(outs[: x.shape[0]], x, weight, tiling=tiling)
    assert set(read) == addresses_of(x) | addresses_of(weight)
    # Once by each program, also where its tile reaches beyond the last row: reads of one line would wait.
    assert max(read.values()) <= programs_of(tiling, *outs[: x.shape[0]].shape)
    torch.testing.assert_close(outs[: x.shape[0]], x @ weight.T, atol=2e-5, rtol=2e-5)
    assert bool((outs[x.shape[0] :] == 7).all())


def test_an_argmax_reads_no_rows_beyond_the_last(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = torch.randn((3, 64), generator=rng), torch.randn((70, 64), generator=rng)
    scratch = allocate_argmax_scratch(3, 70, CPU)
    out, best = torch.empty((3, 70)), torch.empty(3, dtype=torch.int64)
    with addresses_read(monkeypatch) as read:
        logits(out, x, weight)
        argmax(best, x, weight, scratch)
    assert set(read) == set().union(*map(addresses_of, (x, weight, scratch.largest, scratch.index)))


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("inputs", [100, 128, 192])
def test_every_tiling_makes_the_same_bits(inputs: int, rng: torch.Generator) -> None:
    """As far as a chain over inputs makes them; that instructions round alike only a device can tell."""
    x, weight = torch.randn((20, inputs), generator=rng), torch.randn((70, inputs), generator=rng)
    made = [torch.empty((20, 70)) for _ in TILINGS]
    for tiling, out in zip(TILINGS, made, strict=True):
        linear(out, x, weight, tiling=tiling)
    assert all(torch.equal(out, made[0]) for out in made)


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("tiling", TILINGS, ids=name_of)
def test_a_row_alone_has_the_bits_it_has_alongside_others(tiling: Tiling, rng: torch.Generator) -> None:
    """Of one tiling. Between tilings only a device can tell."""
    x, weight = torch.randn((20, 96), generator=rng), torch.randn((70, 96), generator=rng)
    crowd, alone = torch.empty((20, 70)), torch.empty((1, 70))
    linear(crowd, x, weight, tiling=tiling)
    for row in (0, 7, 19):
        linear(alone, x[row : row + 1], weight, tiling=tiling)
        assert torch.equal(alone[0], crowd[row])


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f16"])
@pytest.mark.parametrize("tiling", TILINGS, ids=name_of)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_gated_product_has_the_bits_of_two_products_and_a_gate(
    has_bias: bool, tiling: Tiling, dtype: torch.dtype, rng: torch.Generator
) -> None:
    x = torch.randn((20, 96), generator=rng).to(dtype)
    gate, up = (torch.randn((71, 96), generator=rng).to(dtype) for _ in range(2))
    biases = [torch.randn(71, generator=rng) if has_bias else None for _ in range(2)]
    made = [torch.empty((20, 71), dtype=dtype) for _ in range(3)]
    for weight, bias, out in zip((gate, up), biases, made, strict=False):
        linear(out, x, weight, bias, tiling=tiling)
    gated(made[2], made[0], made[1], "silu")
    one, other = DeviceMatrix(gate), DeviceMatrix(up)
    both = interleaved(one, other)
    bias = torch.stack(biases, 1).flatten() if has_bias else None
    wide = torch.full((20, 80), 7, dtype=dtype)
    linear_gated(wide[:, 4:75], x, both, "silu", bias, tiling)
    assert torch.equal(wide[:, 4:75], made[2])
    assert bool((wide[:, :4] == 7).all())
    assert bool((wide[:, 75:] == 7).all())
    assert torch.equal(one.data, gate)
    assert torch.equal(other.data, up)
    assert interleaved(one, other).data_ptr() == both.data_ptr(), "the weights exist twice"


def tiles(num_outputs: int, *rows: int) -> list[tuple[int, int]]:
    chosen = [tiling_for(n, num_outputs, 4096) for n in rows]
    return [(tiling.rows, tiling.outputs) for tiling in chosen]


def test_few_programs_have_the_smallest_tile_that_they_fill_a_device_with() -> None:
    assert tiles(1024, 1, 64, 65, 128, 129, 256) == [(16, 64)] * 4 + [(32, 64)] * 2
    assert tiles(4096, 1, 32, 33, 64, 65, 128) == [(16, 64)] * 2 + [(32, 64)] * 2 + [(64, 64)] * 2
    assert tiles(4096, 129, 256) == [(64, 128)] * 2
    assert tiles(6144, 16, 32, 64, 128, 256) == [(16, 64), (32, 64), (64, 64), (64, 128), (128, 128)]
    for rows in range(1, 257):
        for outputs in (16, 1024, 2560, 3072, 5120, 8192):
            assert programs_of(tiling_for(rows, outputs, 4096), rows, outputs) <= 128


def test_many_programs_have_a_tile_by_their_rows() -> None:
    assert tiles(8193, 1, 16, 17, 32, 33, 64, 65) == [(16, 64)] * 2 + [(32, 64)] * 2 + [(64, 128)] * 2 + [
        (128, 128)
    ]
    assert tiling_for(65, 8193, 4096) == tiling_for(257, 1024, 4096) == tiling_for(5000, 1024, 4096)


def test_as_many_inputs_are_loaded_at_a_time_as_divide_them() -> None:
    assert [tiling_for(1, 4096, inputs).block_k for inputs in (4096, 960, 200)] == [128, 64, 64]


def test_a_tiling_has_the_stages_that_fit_into_shared_memory() -> None:
    chosen = tiling_for(64, 6144, 4096)
    assert [chosen.within(kib * 1024, 2).num_stages for kib in (227, 163, 99, 10)] == [6, 5, 3, 1]
    assert chosen.within(163 * 1024, 4) == dataclasses.replace(chosen, num_stages=5, block_k=64)


@pytest.mark.parametrize("tiling", TILINGS, ids=name_of)
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_logits_and_their_argmax_agree(soft_cap: float | None, tiling: Tiling, rng: torch.Generator) -> None:
    x, weight = torch.randn((18, 72), generator=rng), torch.randn((300, 72), generator=rng)
    out, best = torch.empty((18, 300)), torch.empty(18, dtype=torch.int64)
    logits(out, x, weight, soft_cap, tiling)
    want = x.double() @ weight.double().T
    if soft_cap is not None:
        want = soft_cap * torch.tanh(want / soft_cap)
    torch.testing.assert_close(out.double(), want, atol=2e-5, rtol=2e-5)
    argmax(best, x, weight, allocate_argmax_scratch(20, 300, CPU), soft_cap, tiling)
    lowest = (out == out.amax(1, keepdim=True)).int().argmax(1)  # of equals the first
    assert best.tolist() == lowest.tolist()


@pytest.mark.parametrize("tiling", TILINGS, ids=name_of)
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
    best = torch.empty(7, dtype=torch.int64)
    argmax(best, x, weight, allocate_argmax_scratch(7, 9000, CPU), None, tiling)
    assert best.tolist() == [8900, 18, -1, -1, 0, 0, -1]


def test_nothing_but_minus_infinity_has_no_argmax() -> None:
    x, weight = torch.full((1, 16), 3e38), torch.full((40, 16), -3e38)
    best = torch.empty(1, dtype=torch.int64)
    argmax(best, x, weight, allocate_argmax_scratch(1, 40, CPU))
    assert best.tolist() == [-1]
