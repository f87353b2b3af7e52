"""Blocks within a pool, to and from staging; plans."""

from __future__ import annotations

import random

import pytest
import torch

from octavo.device.triton.blocks import copy_blocks, independent_runs
from octavo.device.triton.plans import append_tokens, write_plan

pytestmark = pytest.mark.full


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.fixture(params=[4096, 12288, 20480])
def data(request: pytest.FixtureRequest, rng: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (8, request.param), generator=rng, dtype=torch.uint8)


def test_copies_move_whole_blocks(data: torch.Tensor) -> None:
    before = data.clone()
    copy_blocks(data, ints(1, 5), ints(7, 2))
    before[7], before[2] = before[1], before[5]
    assert torch.equal(data, before)


def test_runs_of_copies_give_what_their_order_gives() -> None:
    dice = random.Random(4)
    for _ in range(200):
        pairs = [(dice.randrange(5), dice.randrange(5)) for _ in range(dice.randrange(8))]
        sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
        want, got = list(range(5)), list(range(5))
        for source, target in pairs:
            want[target] = want[source]
        covered = []
        for first, last in independent_runs(sources, targets):
            read = [got[source] for source in sources[first:last]]
            for target, value in reversed(list(zip(targets[first:last], read, strict=True))):
                got[target] = value
            covered += range(first, last)
        assert got == want
        assert covered == list(range(len(pairs)))


@pytest.mark.parametrize("num_ints", [0, 40, 900])
def test_a_plan_writes_its_values_and_a_steps_arrays(num_ints: int) -> None:
    target = torch.zeros((30, 20), dtype=torch.int32)
    indices = torch.randperm(600)[:300].to(torch.int32)
    values = torch.arange(1, 301, dtype=torch.int32)
    arrays, place = torch.arange(num_ints, dtype=torch.int32), torch.full((num_ints,), -1, dtype=torch.int32)
    write_plan(target, indices, values, *([place, arrays] if num_ints else []))
    want = torch.zeros(600, dtype=torch.int32)
    want[indices.long()] = values
    assert torch.equal(target.view(-1), want)
    assert torch.equal(place, arrays)


def test_what_a_step_draws_is_appended_where_it_has_a_place() -> None:
    tokens = torch.zeros((3, 8), dtype=torch.int32)
    rows, positions, drawn = (
        torch.tensor([2, 0, 1, 1]),
        torch.tensor([7, 0, 8, 3]),
        torch.tensor([5, 6, 7, -1]),
    )
    append_tokens(tokens, rows, positions, drawn)
    want = torch.zeros((3, 8), dtype=torch.int32)
    want[2, 7], want[0, 0] = 5, 6  # 8 is behind the context, -1 is no token
    assert torch.equal(tokens, want)
