"""The benchmark of embeddings: the same texts for everybody, and a row for each pooling."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from tests.engine.peek import stats_of
from tests.engine.served import serve_tiny

from octavo.bench.embeddings import fixed_texts, measure_embeddings
from octavo.cli.bench import embeddings_table, save_texts
from octavo.engine.outputs import ModelCard
from octavo.errors import ConfigError
from octavo.params import Pooling

FOLDER = Path(__file__).parents[2] / "bench/compare"


def test_the_texts_are_fixed_of_many_lengths_and_bounded(tmp_path):
    texts = fixed_texts(40, 120)
    assert texts == fixed_texts(40, 120)
    lengths = sorted(len(text.split()) for text in texts)
    assert 4 <= lengths[0] < 40 < lengths[-1] <= 120
    save_texts(tmp_path / "texts.jsonl", 40, 120)
    assert [json.loads(line)["text"] for line in (tmp_path / "texts.jsonl").open()] == texts
    with pytest.raises(ConfigError, match="allowed: 1 to"):
        fixed_texts(0, 120)
    with pytest.raises(ConfigError, match="cannot be written"):
        save_texts(tmp_path, 1, 120)


def test_a_round_is_every_text_once_for_each_pooling():
    served = serve_tiny(prefix_caching=False)
    served.llm.card = ModelCard(hidden_size=64)
    told = []
    try:
        results = measure_embeddings(served.llm, ["ab", "abcdef"], list(Pooling), 2, told.append)
    finally:
        served.llm.close()
    assert [each.pooling for each in results] == ["last", "mean"]
    assert {(each.num_texts, each.num_tokens, each.longest_tokens) for each in results} == {(2, 8, 6)}
    assert all(len(each.seconds) == 2 and each.texts_per_s > 0 for each in results)
    assert stats_of(served.llm).prompt_tokens == 3 * 2 * 8  # one round warms up
    assert len(told) == 6
    assert embeddings_table(results).row_count == 2
    with pytest.raises(ConfigError, match="rounds is 0"):
        measure_embeddings(served.llm, ["a"], list(Pooling), 0)


def test_ours_is_set_alongside_each_peer_at_its_best_size_of_batch(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("embeddings")
    speeds = {
        ("f32", "last", "octavo"): [20.0, 30.0],
        ("f32", "last", "transformers, batches of 8"): [10.0, 10.0],
        ("f32", "last", "transformers, batches of 32"): [12.0, 6.0],
        ("f32", "mean", "transformers, batches of 1"): [99.0],
        ("bf16", "last", "sentence-transformers, batches of 1"): [99.0],
    }
    script.report(speeds, "f32", "last")
    ours, theirs = sorted(capsys.readouterr().out.splitlines())
    assert "octavo" in ours
    assert "25.0 texts/s" in ours
    assert "transformers, batches of" in theirs
    assert theirs.endswith("ours / it 2.50")
    for name in ("peers", "embeddings"):
        sys.modules.pop(name, None)
