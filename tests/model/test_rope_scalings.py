"""Every scaling of rope gives transformers' frequencies and logits, from both files and in both spellings."""

from __future__ import annotations

import dataclasses
import json

import gguf
import numpy as np
import pytest
import transformers
from tests.model.checkpoints import random_prompt
from tests.model.chunks import load, run_chunks
from tests.model.family_configs import FAR, FOUR, NEAR, SMALL, TOKENS, YARN
from tests.model.gguf_bench import write_model
from tests.model.model_bench import CONFIGS, expected_logits, make_model, save_model

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.fields import Fields, read_json_fields
from octavo.kernels.reference import ReferenceOps
from octavo.model.families import RopeTensors, describe_config, describe_gguf
from octavo.model.loader import load_model
from octavo.model.rope import RopeSpec, Temperature

pytestmark = pytest.mark.full

PROMPT, TOLERANCE = 41, 1e-4
PLAIN = {"rope_theta": 10000.0}
ROPES = {
    "linear": PLAIN | {"rope_type": "linear", "factor": 2.5},
    "dynamic": PLAIN | {"rope_type": "dynamic", "factor": 3.0},
    "llama3": PLAIN
    | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 32},
    "yarn": YARN,
    "yarn-attention": YARN | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-untruncated": YARN | {"truncate": False},
    "longrope": PLAIN
    | {"rope_type": "longrope", "original_max_position_embeddings": 32, "factor": 4.0}
    | {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.0 + i for i in range(8)]},
    "longrope-attention": PLAIN
    | {"rope_type": "longrope", "original_max_position_embeddings": 32, "attention_factor": 1.2}
    | {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]},
}


@pytest.fixture
def llama_with(monkeypatch):
    """A random Llama with a rope."""

    def make(rope: dict[str, object], **sizes: int) -> transformers.PreTrainedModel:
        config = transformers.LlamaConfig(**(SMALL | sizes), rope_parameters=dict(rope))
        monkeypatch.setitem(CONFIGS, "llama-scaled", lambda: config)
        return make_model("llama-scaled")

    return make


def assert_equal_logits(theirs, path, prompt=PROMPT, context_length=None):
    ops = ReferenceOps("f32")
    model = load_model(path, ops, context_length).model
    tokens = random_prompt(prompt)
    expected = expected_logits(theirs, tokens)
    ours = run_chunks(ops, model, tokens, [7, 16, prompt - 23])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ROPES)
def test_logits_equal_transformers_in_both_spellings(name, llama_with, tmp_path):
    theirs = llama_with(ROPES[name])
    path = save_model(theirs, tmp_path)
    assert_equal_logits(theirs, path)
    newer = describe_config(read_json_fields(tmp_path / "config.json"))
    values = dict(read_json_fields(tmp_path / "config.json").values)
    rope = dict(values.pop("rope_parameters"))
    older = {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope | {"type": rope.pop("rope_type")}}
    assert describe_config(Fields("older", values | older)) == newer


@pytest.mark.parametrize("name", ["linear", "yarn", "yarn-attention"])
def test_gguf_logits_equal_transformers(name, llama_with, tmp_path):
    theirs = llama_with(ROPES[name])
    assert_equal_logits(theirs, write_model(theirs, tmp_path / "tiny.gguf"))


WHOLE, TIMES = "add_rope_scaling_yarn_attn_factor", "add_rope_scaling_attn_factors"


@pytest.mark.parametrize("written", [[TIMES], [WHOLE], [WHOLE, TIMES]], ids=["older", "newer", "both"])
def test_olmo3s_attention_factor_counts_once_under_either_key(written, tmp_path, monkeypatch):
    """Its converter has written config.json's under attn_factor, yarn_attn_factor, and both."""
    far = YARN | {"factor": 8.0, "attention_factor": 1.2079441541679836}
    ropes = {NEAR: PLAIN | {"rope_type": "default"}, FAR: far}
    config = transformers.Olmo3Config(**FOUR, **TOKENS, sliding_window=8, rope_parameters=ropes)
    monkeypatch.setitem(CONFIGS, "olmo3-attention", lambda: config)
    writers = [getattr(gguf.GGUFWriter, name) for name in written]
    monkeypatch.setattr(gguf.GGUFWriter, WHOLE, lambda file, value: [write(file, value) for write in writers])
    theirs = make_model("olmo3-attention")
    path = write_model(theirs, tmp_path / "tiny.gguf")
    assert_equal_logits(theirs, path)
    ropes = load_model(path, ReferenceOps("f32")).model.spec.ropes
    assert [round(rope.attention_factor, 4) for rope in ropes] == [1.0, 1.0, 1.0, 1.2079]


@pytest.mark.parametrize(
    "told,expected",
    [
        ({}, 1.2079442),
        ({"attn_factor": 0.5}, 0.5 * 1.2079442),
        ({"yarn_attn_factor": 1.3}, 1.3),
        ({"yarn_log_multiplier": 1.0}, 1.0),
        ({"yarn_log_multiplier": 0.5}, 1.2079442 / 1.1039721),
    ],
    ids=["as published", "attn_factor multiplies", "yarn_attn_factor is whole", "cancelled", "halved"],
)
def test_other_families_attention_factor_is_yarns_times_what_the_file_says(told, expected):
    keys = {"embedding_length": 64, "block_count": 1, "attention.head_count": 4, "context_length": 64}
    keys |= {"feed_forward_length": 96, "attention.layer_norm_rms_epsilon": 1e-5}
    scaling = {"type": "yarn", "factor": 8.0, "original_context_length": 32, **told}
    values = {f"llama.{key}": value for key, value in keys.items()}
    values |= {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    metadata = Fields("file", {"general.architecture": "llama", **values})
    rope = describe_gguf(metadata, 96, RopeTensors(), has_output=True).spec.rope(0)
    assert rope.attention_factor == pytest.approx(expected, abs=1e-6)


def test_dynamic_is_fixed_by_the_configured_context(llama_with, tmp_path):
    """transformers grows with the text: at the length of the configured context both are the same."""
    theirs = llama_with(ROPES["dynamic"], max_position_embeddings=20)
    path = save_model(theirs, tmp_path)
    assert_equal_logits(theirs, path, prompt=PROMPT, context_length=PROMPT)


def test_longrope_is_short_up_to_the_original_context_and_long_beyond(tmp_path):
    theirs = make_model("phi3-longrope")  # trained with 32, extended to 128
    path = save_model(theirs, tmp_path)
    assert_equal_logits(theirs, path, prompt=32, context_length=32)
    assert_equal_logits(theirs, path, prompt=41, context_length=64)
    own = load_model(path, ReferenceOps()).model
    tokens = random_prompt(30)
    short = run_chunks(ReferenceOps("f32"), load_model(path, ReferenceOps("f32"), 32).model, tokens, [30])
    assert np.abs(short - run_chunks(ReferenceOps("f32"), own, tokens, [30])).max() > 1e-3


@pytest.mark.parametrize("context", [64, 128, 129, 500, 4096])
@pytest.mark.parametrize("name", ROPES)
def test_frequencies_equal_transformers_in_every_context(name, context):
    """For the scaling that transformers would take for a text of the whole context."""
    kind = ROPES[name]["rope_type"]
    config = transformers.LlamaConfig(**SMALL, rope_parameters=dict(ROPES[name]))
    function = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    wanted, factor = function(config, None, seq_len=context)
    rope = describe_config(Fields("config", config.to_dict())).spec.rope(0)
    np.testing.assert_allclose(rope.inverse_frequencies(context), wanted.numpy(), rtol=2e-6)
    assert abs(rope.attention_factor - factor) < 1e-9
    fixed = rope.fixed(context)
    assert fixed.table(7).cos.tobytes() == rope.table(context).cos[:7].tobytes()


def test_older_gemma3_spelling_means_the_same(tmp_path):
    CONFIGS["gemma3_text"]().save_pretrained(tmp_path)
    newer = dict(read_json_fields(tmp_path / "config.json").values)
    ropes = newer.pop("rope_parameters")
    older = {key: value for key, value in newer.items() if key != "layer_types"} | {
        "rope_theta": ropes[FAR]["rope_theta"],
        "rope_local_base_freq": ropes[NEAR]["rope_theta"],
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
        "num_hidden_layers": 4,
    }
    expected = describe_config(read_json_fields(tmp_path / "config.json")).spec
    spec = describe_config(Fields("older", older)).spec
    assert spec == expected
    assert [rope.theta for rope in spec.ropes] == [1e4, 1e4, 1e6, 1e4]
    assert [rope.scaling for rope in spec.ropes] == ["none", "none", "linear", "none"]


def test_some_layers_of_smollm3_do_not_turn(tmp_path):
    plain = load(save_model(make_model("smollm3"), tmp_path / "plain"), "reference")[1]
    listed = load(save_model(make_model("smollm3-window"), tmp_path / "listed"), "reference")[1]
    assert [rope is not None for rope in plain.spec.ropes] == [True, True, True, False]
    assert [rope is not None for rope in listed.spec.ropes] == [True, False, True, False]
    assert listed.spec.windows == (None, 8, None, 8)
    assert plain.rope_tables[3].q is None


def test_older_smollm3_configurations_say_an_interval_alone(tmp_path):
    CONFIGS["smollm3"]().save_pretrained(tmp_path)
    values = dict(read_json_fields(tmp_path / "config.json").values)
    older = {key: value for key, value in values.items() if key not in ("no_rope_layers", "layer_types")}
    spec = describe_config(Fields("older", older | {"no_rope_layer_interval": 2})).spec
    assert [rope is not None for rope in spec.ropes] == [True, False, True, False]


def test_queries_of_ministral3_are_scaled_by_their_position(tmp_path):
    spec = load(save_model(make_model("ministral3"), tmp_path), "reference")[1].spec
    assert spec.temperatures == (Temperature(0.1, 16),) * 3
    scales = Temperature(0.1, 16).scales(40)
    assert scales[15] == 1.0
    assert scales[16] == pytest.approx(1.0 + 0.1 * np.log(2.0))
    assert scales[32] == pytest.approx(1.0 + 0.1 * np.log(3.0))


def with_rope(name: str, tmp_path, rope: dict[str, object]) -> Fields:
    CONFIGS[name]().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    return Fields("config", values | {"rope_parameters": rope})


@pytest.mark.parametrize(
    "name,rope,error,message",
    [
        ("llama", YARN | {"rope_type": "ntk"}, UnsupportedModel, "rope scaling 'ntk'; allowed: default"),
        ("llama", YARN | {"llama_4_scaling_beta": 0.1}, UnsupportedModel, "llama_4_scaling_beta is not"),
        ("llama", YARN | {"mrope_section": [1, 2]}, UnsupportedModel, "mrope_section is not understood"),
        ("llama", {FAR: YARN, NEAR: YARN}, UnsupportedModel, "differ by kind of layer"),
        ("llama", YARN | {"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor is 0.5"),
        ("glm4", PLAIN | {"partial_rotary_factor": 0.2}, UnsupportedModel, "3 of 16 elements"),
        ("glm4", PLAIN | {"partial_rotary_factor": 0.0}, UnsupportedModel, "0 of 16 elements"),
        ("llama", YARN | {"factor": 0.5}, BadModelFile, "factor is 0.5; allowed: a number from 1"),
        ("llama", YARN | {"beta_fast": float("inf")}, BadModelFile, "beta_fast"),
        ("llama", YARN | {"rope_theta": 1.0}, UnsupportedModel, "yarn with rope_theta 1"),
        ("llama", ROPES["longrope"] | {"short_factor": [1.0] * 7}, BadModelFile, "a list of 8 numbers"),
        ("llama", ROPES["longrope"] | {"long_factor": [0.0] * 8}, BadModelFile, "8 numbers from"),
        ("llama", ROPES["longrope"] | {"long_factor": "all"}, BadModelFile, "long_factor is 'all'"),
    ],
)
def test_unknown_and_absurd_settings_of_rope_are_refused_by_name(name, rope, error, message, tmp_path):
    with pytest.raises(error, match=message):
        describe_config(with_rope(name, tmp_path, rope))


def test_tables_of_partial_ropes_leave_the_rest_of_a_head(tmp_path):
    spec = load(save_model(make_model("gpt_neox"), tmp_path), "reference")[1].spec
    assert (spec.rope(0), spec.head_size) == (RopeSpec(10000.0, 4), 16)
    assert dataclasses.replace(spec.rope(0), dims=16) != spec.rope(0)
