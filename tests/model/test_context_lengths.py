"""A model's context is its own, or less; more only as far as its configuration scales positions."""

from __future__ import annotations

import json

import pytest
from tests.model.checkpoints import save_checkpoint
from tests.model.sizes import LONGROPE, YARN

from octavo.errors import ConfigError
from octavo.kernels.reference import ReferenceOps
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model


def changed(folder, **settings) -> ModelPath:
    """The tiny Llama with other settings in its configuration."""
    path = save_checkpoint("llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return path


def context_of(path: ModelPath, context_length: int | None = None) -> int:
    return load_model(path, ReferenceOps(), context_length).model.spec.context_length


def test_context_is_the_models_own_or_less(tmp_path):
    path = changed(tmp_path)
    own, less = load_model(path, ReferenceOps()), load_model(path, ReferenceOps(), context_length=40)
    assert [loaded.model.spec.context_length for loaded in (own, less)] == [128, 40]
    assert less.model.rope_tables[0].q.cos.shape == (40, 8)
    assert own.model.fingerprint == less.model.fingerprint


def test_a_longer_context_is_refused_with_the_reason_and_what_would_allow_it(tmp_path):
    path = changed(tmp_path)
    wanted = r"context_length is 129, but .* has a context of 128 tokens; allowed: up to 128; only a scaling"
    with pytest.raises(ConfigError, match=wanted):
        load_model(path, ReferenceOps(), 129)


@pytest.mark.parametrize(
    "rope,longest",
    [
        ({"rope_type": "linear", "factor": 2.0}, 256),
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
        (YARN | {"factor": 8.0}, 256),  # of the 32 that it was trained with
        (YARN, 128),  # of which the file's 128 is the scaled one
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 128),
    ],
    ids=["linear", "dynamic", "yarn", "yarn-counted", "llama3"],
)
def test_a_scaling_extends_the_context_as_far_as_it_says(rope, longest, tmp_path):
    path = changed(tmp_path, rope_parameters=rope)
    assert context_of(path) == 128
    assert context_of(path, longest) == longest
    with pytest.raises(ConfigError, match=f"allowed: up to {longest}"):
        load_model(path, ReferenceOps(), longest + 1)


def test_gemmas_context_counts_its_linear_factor_already(tmp_path):
    path = save_checkpoint("gemma3_text", tmp_path)
    assert context_of(path) == 128
    with pytest.raises(ConfigError, match="allowed: up to 128"):
        load_model(path, ReferenceOps(), 129)


def test_learned_positions_are_as_many_as_the_table_has(tmp_path):
    path = save_checkpoint("gpt2", tmp_path)
    with pytest.raises(ConfigError, match="allowed: up to 128"):
        load_model(path, ReferenceOps(), 129)


def test_a_window_that_the_context_cannot_outgrow_is_none(tmp_path):
    path = save_checkpoint("mistral-window", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scaled = {"sliding_window": 128, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps(config | scaled))
    windows = [load_model(path, ReferenceOps(), context).model.spec.windows for context in (64, 128, 256)]
    assert windows == [(), (), (128, 128, 128)]


def test_weights_have_another_name_where_the_context_decides_how_keys_are_turned(tmp_path):
    def names(folder, rope, contexts):
        path = changed(folder, rope_parameters=rope)
        return [load_model(path, ReferenceOps(), context).model.fingerprint for context in contexts]

    pairs = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32}
    short, same, long = names(tmp_path / "longrope", LONGROPE | pairs, (16, 32, 33))
    assert short == same != long
    own, twice = names(tmp_path / "dynamic", {"rope_type": "dynamic", "factor": 4.0}, (128, 256))
    assert own != twice
    one, other = names(tmp_path / "yarn", YARN, (32, 128))
    assert one == other
