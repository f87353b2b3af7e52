"""Every family gives transformers' logits: whole prompts, prompts in chunks, and one token at a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from tests.model.checkpoints import NAMES, add_tokenizer, checkpoint, random_prompt, record
from tests.model.chunks import BACKENDS, load, run_chunks
from tests.model.model_bench import CONFIGS, expected_logits, make_model, save_model

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.fields import Fields, read_json_fields
from octavo.kernels.reference import ReferenceOps
from octavo.model.families import describe_config
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model

pytestmark = pytest.mark.full

TOLERANCE = 1e-4
PROMPT = 41  # crosses two block borders, and is longer than every window


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name, backend, tmp_path):
    theirs = make_model(name)
    ops, model = load(save_model(theirs, tmp_path), backend)
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    assert np.abs(expected).max() > 0.5, "logits too small for a mistake to show"
    whole = run_chunks(ops, model, tokens, [PROMPT])
    chunks = run_chunks(ops, model, tokens, [7, 16, 1, 17])
    decode = run_chunks(ops, model, tokens, [20] + [1] * (PROMPT - 20))
    for ours in (whole, chunks, decode):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)
    assert whole.tobytes() == chunks.tobytes() == decode.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_recorded_of_transformers_is_what_it_says(name, tmp_path):
    now, recorded = record(name, tmp_path), checkpoint(name)
    shapes = {key: list(array.shape) for key, array in recorded.arrays.items()}
    assert {key: list(shape) for key, shape in now["shapes"].items()} == shapes
    assert {**now["config"], "transformers_version": ""} == {**recorded.values, "transformers_version": ""}
    np.testing.assert_allclose(now["logits"], recorded.logits, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_recorded_step_gives_the_bits_of_its_ops_one_by_one(name, tmp_path):
    ops, model = load(save_model(make_model(name), tmp_path), "native")
    tokens = random_prompt(PROMPT)
    lengths = [7, 16, 1, PROMPT - 24]
    recorded = run_chunks(ops, model, tokens, lengths, prepared=True)
    assert recorded.tobytes() == run_chunks(ops, model, tokens, lengths).tobytes()


def test_window_is_smaller_than_the_prompt_and_matters(tmp_path):
    theirs = make_model("mistral-window")
    ops, model = load(save_model(theirs, tmp_path), "reference")
    assert model.spec.windows == (8, 8, 8)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": None}))
    _, unlimited = load(ModelPath("tiny", tmp_path, "safetensors"), "reference")
    tokens = random_prompt(PROMPT)
    seen = run_chunks(ops, model, tokens, [PROMPT])
    unseen = run_chunks(ops, unlimited, tokens, [PROMPT])
    assert np.abs(seen[:8] - unseen[:8]).max() == 0.0
    assert np.abs(seen[8:] - unseen[8:]).max() > 1e-3


def test_gemma_windows_alternate_and_qwen_windows_begin_late(tmp_path):
    gemma = load(save_model(make_model("gemma2"), tmp_path / "gemma"), "reference")[1]
    qwen = load(save_model(make_model("qwen2-window"), tmp_path / "qwen"), "reference")[1]
    assert gemma.spec.windows == (8, None, 8)
    assert qwen.spec.windows == (None, 8, 8)


@pytest.mark.parametrize(
    "name,windows", [("gemma2", (8, None, 8)), ("qwen2-window", (None, 8, 8)), ("mistral-window", (8, 8, 8))]
)
def test_older_configurations_without_layer_types_have_the_same_windows(name, windows, tmp_path):
    CONFIGS[name]().save_pretrained(tmp_path)
    fields = read_json_fields(tmp_path / "config.json")
    older = {key: value for key, value in fields.values.items() if key != "layer_types"}
    assert describe_config(Fields("older", older)).spec.windows == windows


def test_older_rope_spelling_means_the_same(tmp_path):
    CONFIGS["llama-rope-llama3"]().save_pretrained(tmp_path)
    newer = dict(read_json_fields(tmp_path / "config.json").values)
    rope = dict(newer.pop("rope_parameters"))
    older = newer | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    assert (
        describe_config(Fields("older", older)).spec
        == describe_config(read_json_fields(tmp_path / "config.json")).spec
    )


def test_half_precision_files_are_read_exactly(tmp_path):
    check_half_precision(torch.float16, tmp_path)


def check_half_precision(dtype, tmp_path):
    """Weights of this type give what transformers in float32 computes of them."""
    ops, model = load(save_model(make_model("llama").to(dtype), tmp_path), "reference")
    theirs = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2"])
def test_bf16_files_answer_as_transformers_does_in_bf16(name, tmp_path):
    """Nearer to float32 than it is, with its tokens where the first two are further apart than it rounds."""
    ops, model = load(save_model(make_model(name).bfloat16(), tmp_path), "native")
    exact, rounded = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, attn_implementation="eager")
        for dtype in (torch.float32, torch.bfloat16)
    )
    tokens = random_prompt(PROMPT)
    expected, theirs = expected_logits(exact, tokens), expected_logits(rounded, tokens)
    ours = run_chunks(ops, model, tokens, [PROMPT])
    error = np.abs(theirs - expected).max()
    assert 0 < np.abs(ours - expected).max() < error
    second, first = np.sort(expected)[:, -2:].T
    apart = first - second > 2 * error
    assert apart.sum() >= PROMPT // 4
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1))[apart].all()


def test_sharded_files_load_as_one(tmp_path):
    theirs = make_model("gemma2")
    path = save_model(theirs, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ops, model = load(path, "reference")
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=TOLERANCE)


def test_a_bare_decoder_without_prefix_loads(tmp_path):
    theirs = make_model("gpt2")
    theirs.transformer.save_pretrained(
        tmp_path
    )  # tensors are then "h.0...", as in the first GPT-2 repository
    add_tokenizer(tmp_path)
    ops, model = load(ModelPath("tiny", tmp_path, "safetensors"), "reference")
    tokens = random_prompt(20)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [20]), expected, rtol=0, atol=TOLERANCE)


def test_tied_output_is_the_very_embedding(tmp_path):
    tied = load(save_model(make_model("llama-tied"), tmp_path / "tied"), "reference")[1].weights
    apart = load(save_model(make_model("llama"), tmp_path / "apart"), "reference")[1].weights
    assert tied.output is tied.embedding
    assert apart.output is not apart.embedding


def test_fingerprint_distinguishes_weights_and_settings(tmp_path):
    def print_of(seed, **changed):
        folder = tmp_path / f"{seed}-{len(changed)}"
        path = save_model(make_model("llama", seed), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changed))
        return load_model(path, ReferenceOps()).model.fingerprint

    first, other, changed = print_of(0), print_of(1), print_of(0, rms_norm_eps=1e-3)
    assert print_of(0) == first
    assert len({first, other, changed}) == 3
    assert len(first) == 32


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"model_type": "mamba"}, "family 'mamba'"),
        ({"hidden_act": "quick_gelu"}, "activation 'quick_gelu'"),
        ({"rope_parameters": {"rope_type": "ntk", "rope_theta": 1e4, "factor": 4.0}}, "rope scaling 'ntk'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"head_dim": 15}, "heads of 15"),
    ],
)
def test_unknown_variations_are_refused_by_name(changed, message, tmp_path):
    CONFIGS["llama"]().save_pretrained(tmp_path)
    values = dict(read_json_fields(tmp_path / "config.json").values) | changed
    with pytest.raises(UnsupportedModel, match=message):
        describe_config(Fields("config", values))


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"hidden_size": 10**9}, "hidden_size is 1000000000; allowed"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 3.5}, "num_attention_heads is 3.5"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; allowed: a divisor"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_absurd_settings_are_refused_by_name(changed, message, tmp_path):
    CONFIGS["llama"]().save_pretrained(tmp_path)
    values = dict(read_json_fields(tmp_path / "config.json").values) | changed
    with pytest.raises(BadModelFile, match=message):
        describe_config(Fields("config", values))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    path = save_model(make_model("llama"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(BadModelFile, match=r"gate_proj.weight' has shape \(96, 64\); expected \(80, 64\)"):
        load_model(path, ReferenceOps())


def test_a_missing_tensor_is_named(tmp_path):
    path = save_model(make_model("llama"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(BadModelFile, match=r"no tensor 'model.layers.3"):
        load_model(path, ReferenceOps())


def test_tensors_that_no_rule_consumes_are_refused(tmp_path):
    path = save_model(make_model("qwen3"), tmp_path)  # has q_norm and k_norm, which llama has not
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(UnsupportedModel, match=r"6 tensors unknown to family llama: .*q_norm|k_norm"):
        load_model(path, ReferenceOps())
