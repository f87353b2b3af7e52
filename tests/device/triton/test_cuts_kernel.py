"""Filters and logprobs without a sort are those by a sort, bit for bit."""

from __future__ import annotations

import pytest
import torch

from octavo.device.sampler import DrawParams, exp, kept_by_sort, logprobs_by_sort
from octavo.device.triton import cuts
from octavo.device.triton.likeliest import logprobs

pytestmark = pytest.mark.full

# top_k, top_p, min_p
FILTERS = [(0, 1.0, 0.0), (1, 1.0, 0.0), (50, 0.9, 0.0), (0, 0.9, 0.0), (3000, 0.5, 0.01), (7, 0.3, 0.2)]
FILTERS += [(0, 1.0, 0.05), (0, 0.999999, 0.0), (0, 1e-9, 0.0), (10**6, 1.0, 1.0), (40, 0.95, 1e-12)]


def cut(scores: torch.Tensor, filters: list[tuple[int, float, float]]) -> torch.Tensor:
    top_k, top_p, min_p = (torch.tensor(column) for column in zip(*filters, strict=True))
    out = scores.clone()
    cuts.cut_scores(out, top_k, top_p.double(), min_p.double())
    return out


def sorted_cut(scores: torch.Tensor, filters: list[tuple[int, float, float]]) -> torch.Tensor:
    top_k, top_p, min_p = (torch.tensor(column) for column in zip(*filters, strict=True))
    none = torch.zeros(len(filters), dtype=torch.int64)
    params = DrawParams(none.float(), top_p.double(), min_p.double(), top_k, none, none, none)
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
    scores = logits - logits.amax(dim=-1, keepdim=True)
    return scores / 0.7


@pytest.mark.parametrize("kind", ["smooth", "ties", "flat", "steep", "masked"])
@pytest.mark.parametrize("size", [5, 1000, 9001])
def test_they_keep_what_a_sort_keeps(kind: str, size: int) -> None:
    scores = of_kind(kind, len(FILTERS), size)
    assert cut(scores, FILTERS).numpy().tobytes() == sorted_cut(scores, FILTERS).numpy().tobytes()


def test_chances_are_those_of_torch_bit_for_bit() -> None:
    scores = torch.cat([-torch.logspace(-9, 3, 4000), torch.tensor([0.0, -0.0, -110.0, -torch.inf])])[None]
    units = torch.empty((2, scores.shape[1]), dtype=torch.int32)
    cuts.launch(cuts.write_units, (1, 1), [units, scores, scores.shape[1]], {"BLOCK": 4096})
    wanted = torch.round(exp(scores[0].double()) * 2.0**40).to(torch.int64)
    assert torch.equal(units[0] + (units[1].to(torch.int64) << 20), wanted)


def test_a_row_of_no_numbers_ends() -> None:
    cut(torch.full((1, 3000), torch.nan), [(50, 0.9, 0.1)])


@pytest.mark.parametrize("top", [0, 1, 5, 20])
@pytest.mark.parametrize("kind", ["smooth", "ties", "flat", "steep", "masked"])
def test_the_likeliest_are_those_of_a_sort(kind: str, top: int) -> None:
    logits = of_kind(kind, 3, 5003) + 7.0
    logits[2] = 0.0
    logits[2, 1::2] = -0.0
    tokens = torch.tensor([5, -1, 5002])
    for found, wanted in zip(
        logprobs(logits, tokens, top), logprobs_by_sort(logits, tokens, top), strict=True
    ):
        assert found.dtype == wanted.dtype
        assert found.numpy().tobytes() == wanted.numpy().tobytes()
