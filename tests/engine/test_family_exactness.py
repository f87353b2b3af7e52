"""The exactness contract on a tiny random model of every family, and over each kind of weights by itself:
alone, in company, in chunks, preempted and from the prefix cache, a request's tokens and logprobs are
bit-identical."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.drawn import BACKENDS, crowd, plain
from tests.exactness import Subject, in_each
from tests.model.checkpoints import SHAPES, save_checkpoint
from tests.model.chunks import load
from tests.model.sizes import VOCABULARY
from tests.tiers import full
from tests.tiny import MIXTURE, request

from octavo.model.families import FAMILIES
from octavo.types import Request

LENGTHS = (5, 17, 40, 70)  # within and beyond windows of 8, blocks of 16 and a chunk
# Each row of the table of families, and shapes of layers that it has in several ways.
ROWS = ["llama", "mistral-window", "qwen2-window", "qwen3", "gemma2", "gpt2"]
ROWS += [
    "ministral",
    "ministral3",
    "smollm3",
    "smollm3-window",
    "phi3",
    "phi3-longrope",
    "gemma",
    "gemma3_text",
]
ROWS += ["granite", "olmo2", "olmo3", "starcoder2", "opt", "gpt_neox", "gpt_neox-serial", "glm", "glm4"]
ROWS += ["mixtral", "qwen3_moe-some-dense", "olmoe", "gpt_oss-window-8", "llama4_text-no-norm"]
# In NumPy, one of each kind of layer: no norm before a branch, parallel branches, two ropes, scaled queries,
# fused, experts.
IN_NUMPY = ["olmo3", "gpt_neox", "gemma3_text", "ministral3", "glm4", "mixtral"]


def requests_for(seed: int) -> list[Request]:
    """A greedy and a sampled one by turns."""
    rng = np.random.default_rng(seed)
    made = []
    for index, length in enumerate(LENGTHS):
        prompt = rng.integers(3, VOCABULARY, length).tolist()
        sampled = {"temperature": 0.9, "seed": index} if index % 2 else {}
        made.append(request(index, prompt, 8, **sampled))
    return made


@pytest.mark.parametrize("name", SHAPES)
def test_a_family_of_each_shape_is_exact(name: str, tmp_path: Path) -> None:
    ops, model = load(save_checkpoint(name, tmp_path), "native")
    in_each(Subject(ops, plain, crowd, model), requests_for(len(name)))


@pytest.mark.parametrize(
    "backend,name",
    [*(full("native", name) for name in ROWS), *(full("reference", name) for name in IN_NUMPY)],
)
def test_every_family_is_exact(backend: str, name: str, tmp_path: Path) -> None:
    from tests.model.model_bench import make_model, save_model

    ops, model = load(save_model(make_model(name), tmp_path), backend)
    in_each(Subject(ops, plain, crowd, model), requests_for(len(name)))


@pytest.mark.parametrize("kind", [MIXTURE[0], *map(full, MIXTURE[1:])])
def test_each_kind_that_is_tested_elsewhere_in_a_mixture_is_exact_by_itself(kind: str) -> None:
    subject = Subject(BACKENDS[f"cpu-{kind}"], plain, crowd)
    assert kind in subject.model.weights.bytes_by_kind
    in_each(subject, requests_for(len(kind)))


@pytest.mark.full
def test_every_row_of_the_table_is_among_the_cases() -> None:
    from tests.model.model_bench import CONFIGS, FAMILY_CONFIGS

    assert set(FAMILY_CONFIGS) <= set(ROWS)
    assert {CONFIGS[name]().model_type for name in ROWS} == set(FAMILIES)
