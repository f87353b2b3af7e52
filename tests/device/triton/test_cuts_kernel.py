"""Filters and logprobs without a sort are those by a sort, bit for bit."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from tests.device.triton.steps import CPU
from tests.device.triton.test_product_kernels import addresses_of, addresses_read

from octavo.device import sampler
from octavo.device.rows import DeviceRows
from octavo.device.sampler import exp, kept_by_sort, params_of
from octavo.device.triton import cuts
from octavo.device.triton.launch import kernel, launch
from octavo.device.triton.likeliest import logprobs
from octavo.params import SamplerParams
from octavo.types import AdmittedRow, StepPlan

pytestmark = pytest.mark.full

# top_k, top_p, min_p
FILTERS = [(0, 1.0, 0.0), (1, 1.0, 0.0), (50, 0.9, 0.0), (0, 0.9, 0.0), (3000, 0.5, 0.01), (7, 0.3, 0.2)]
FILTERS += [(0, 1.0, 0.05), (0, 0.999999, 0.0), (0, 1e-9, 0.0), (10**6, 1.0, 1.0), (40, 0.95, 1e-12)]


def drawn_of(filters: list[tuple[int, float, float]]) -> torch.Tensor:
    """A temperature of 0.7, and one row for each of these."""
    rows = DeviceRows(len(filters), 16, 16, CPU)
    asked = [SamplerParams(temperature=0.7, top_k=k, top_p=p, min_p=m) for k, p, m in filters]
    admitted = [AdmittedRow(row, row, (1,), 1, 2, params, 3, 0) for row, params in enumerate(asked)]
    indices, values = rows.written_by(StepPlan(1, (), tuple(admitted), (), (), (), ())).arrays()
    rows.state[torch.from_numpy(indices).long()] = torch.from_numpy(values)
    return rows.drawn


def cut(logits: torch.Tensor, filters: list[tuple[int, float, float]]) -> torch.Tensor:
    largest = torch.stack([part.amax(-1) for part in logits.split(1024, -1)], 1)
    return cuts.cut_scores(logits, largest, drawn_of(filters), torch.arange(len(filters)))


def sorted_cut(logits: torch.Tensor, filters: list[tuple[int, float, float]]) -> torch.Tensor:
    params = params_of(drawn_of(filters))
    scores = (logits - logits.amax(-1, keepdim=True)) / params.temperature[:, None]
    return torch.where(kept_by_sort(scores, params), scores, -torch.inf)


def of_kind(kind: str, rows: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn((rows, size), generator=generator)
    if kind == "ties":
        logits = torch.round(logits * 2)
    elif kind == "flat":
        logits = torch.zeros_like(logits)
    elif kind == "steep":
        logits = logits * 30
    elif kind == "masked":
        logits[:, ::3] = -torch.inf
    return logits


@pytest.mark.parametrize("kind", ["smooth", "ties", "flat", "steep", "masked"])
@pytest.mark.parametrize("size", [5, 1000, 9001])
def test_they_keep_what_a_sort_keeps(kind: str, size: int) -> None:
    logits = of_kind(kind, len(FILTERS), size)
    assert cut(logits, FILTERS).numpy().tobytes() == sorted_cut(logits, FILTERS).numpy().tobytes()


@kernel()
def write_units(out, scores, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    lower, upper = cuts.units_of(tl.load(scores + place))
    tl.store(out + place, (upper.to(tl.int64) << 20) + lower)


def test_chances_are_those_of_torch_bit_for_bit() -> None:
    scores = torch.cat([-torch.logspace(-9, 3, 4092), torch.tensor([0.0, -0.0, -110.0, -torch.inf])])
    units = torch.empty(4096, dtype=torch.int64)
    launch(write_units, (1,), [units, scores], {"BLOCK": 4096})
    assert torch.equal(units, torch.round(exp(scores.double()) * 2.0**40).to(torch.int64))


def test_a_row_of_no_numbers_ends() -> None:
    cut(torch.full((1, 3000), torch.nan), [(50, 0.9, 0.1)])


def test_the_likeliest_of_no_numbers_are_looked_for_within_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, tokens, empty = torch.full((4, 3000), torch.nan), torch.tensor([-1, -1]), torch.empty
    memory.view(torch.int32).fill_(-1)  # NaN with a sign, which no cut keeps
    logits, beyond = memory[:2], addresses_of(memory[2:])
    logits[1] = torch.randn(3000, generator=torch.Generator().manual_seed(3))
    with monkeypatch.context() as patch, addresses_read(patch) as read:
        patch.setattr(torch, "empty", lambda *size, **how: empty(*size, **how).fill_(7000))
        _, ids, _ = logprobs(logits, tokens, 5)
    assert not set(read) & beyond
    assert torch.equal(ids[1], logits[1].topk(5).indices)


@pytest.mark.parametrize("top", [0, 1, 5, 20])
@pytest.mark.parametrize("kind", ["smooth", "ties", "flat", "steep", "masked"])
def test_the_likeliest_are_those_of_a_sort(kind: str, top: int) -> None:
    logits = of_kind(kind, 3, 5003) + 7.0
    logits[2] = 0.0
    logits[2, 1::2] = -0.0
    tokens = torch.tensor([5, -1, 5002])
    for found, wanted in zip(
        logprobs(logits, tokens, top), sampler.logprobs(logits, tokens, top), strict=True
    ):
        assert found.dtype == wanted.dtype
        assert found.numpy().tobytes() == wanted.numpy().tobytes()
