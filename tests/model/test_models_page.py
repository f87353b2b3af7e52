"""The pages about models say what the code does: tables are printed from it, the row of an example is run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import transformers
from tests.model import model_bench
from tests.model.checkpoints import random_prompt
from tests.model.chunks import load, run_chunks
from tests.model.model_bench import CONFIGS, SMALL, expected_logits, make_model
from tests.model.model_bench import save_model as save

from octavo.model.families import names, table
from octavo.model.families.row import Family
from octavo.model.families.table import FAMILIES

pytestmark = pytest.mark.full

DOCS = Path(__file__).parents[2] / "docs"
printer = SimpleNamespace(**runpy.run_path(str(DOCS / "models_page.py")))


def test_every_family_has_a_tiny_model_against_transformers():
    tested = {make().model_type for make in CONFIGS.values()}
    assert sorted(set(FAMILIES) - tested) == []


def test_a_fact_of_a_row_is_reported():
    assert printer.variations(FAMILIES["llama"]) == []
    assert "soft caps" in printer.variations(FAMILIES["gemma2"])
    assert printer.variations(Family("x", norm="layer", sinks=True)) == [
        "LayerNorm with biases",
        "attention sinks",
    ]


def test_the_row_of_the_page_runs_its_model_as_transformers_does(tmp_path, monkeypatch):
    text = (DOCS / "adding-a-family.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    known: dict[str, object] = {**vars(names), "Family": Family, "MappingProxyType": MappingProxyType}
    for block in blocks[:2]:
        exec(block, known)
    row = known["STARCODER2"]
    assert isinstance(row, Family)
    monkeypatch.setattr(table, "FAMILIES", {**FAMILIES, row.name: row})
    config = eval("{" + blocks[2] + "}", {"transformers": transformers, "SMALL": SMALL})
    monkeypatch.setattr(model_bench, "CONFIGS", config)
    theirs = make_model("starcoder2")
    ops, model = load(save(theirs, tmp_path), "native")
    assert model.spec.windows == (8, 8, 8)
    tokens = random_prompt(41)
    ours = run_chunks(ops, model, tokens, [20, 20, 1])
    np.testing.assert_allclose(ours, expected_logits(theirs, tokens), rtol=0, atol=1e-4)
