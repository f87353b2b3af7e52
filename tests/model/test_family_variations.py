"""Windows, text parts of larger models, settings that files leave out, and what is refused by its name."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tests.model.checkpoints import random_prompt
from tests.model.chunks import BACKENDS, load, run_chunks
from tests.model.family_configs import FAMILY_CONFIGS, FAR, NEAR, SMALL
from tests.model.gguf_bench import finish, write_model
from tests.model.model_bench import CONFIGS, expected_logits, make_model, save_model, with_random_weights

from octavo.errors import UnsupportedModel
from octavo.fields import Fields, read_json_fields
from octavo.kernels.reference import ReferenceOps
from octavo.model.families import FAMILIES, describe_config
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model

pytestmark = pytest.mark.full

PROMPT, TOLERANCE = 41, 1e-4
PLAIN = [name for name in FAMILY_CONFIGS if "-" not in name]  # one of each dense family
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}


def of_images(kind: str) -> transformers.PreTrainedConfig:
    """A model for text and images, whose text part is one of ours."""
    if kind == "gemma3":
        text = CONFIGS["gemma3_text"]().to_dict()
        vision = transformers.SiglipVisionConfig(**VISION)
        return transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    text = CONFIGS["mistral" if kind == "mistral3-tied" else "ministral3"]().to_dict()
    vision = transformers.PixtralVisionConfig(**VISION, head_dim=8)
    tied = kind == "mistral3-tied"
    return transformers.Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)


@pytest.mark.parametrize("newer_names", [False, True], ids=["older-names", "newer-names"])
@pytest.mark.parametrize("kind", ["gemma3", "mistral3", "mistral3-tied"])
def test_text_parts_are_served_and_images_are_left_out_with_a_word(kind, newer_names, tmp_path):
    torch.manual_seed(0)
    theirs = transformers.AutoModelForImageTextToText.from_config(
        of_images(kind), attn_implementation="eager"
    )
    theirs = with_random_weights(theirs.float().eval(), kind == "gemma3")
    path = save_model(theirs, tmp_path)
    if newer_names:
        file = tmp_path / "model.safetensors"
        renamed = {
            name.replace("language_model.lm_head", "lm_head")
            .replace("language_model.model.", "model.language_model.")
            .replace("vision_tower", "model.vision_tower")
            .replace("multi_modal", "model.multi_modal"): tensor
            for name, tensor in load_file(file).items()
        }
        save_file(renamed, file, {"format": "pt"})
    told: list[str] = []
    ops = BACKENDS["reference"]()
    model = load_model(path, ops, progress=told.append).model
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    assert np.abs(expected).max() > 0.5, "logits too small for a mistake to show"
    ours = run_chunks(ops, model, tokens, [7, 16, 18])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)
    assert [line for line in told if "tensors of images; the model is served for text alone" in line]
    assert model.spec.family == {"gemma3": "gemma3_text", "mistral3": "ministral3"}.get(kind, "mistral")


def test_a_text_part_of_another_family_is_refused():
    config = {"model_type": "gemma3", "text_config": {"model_type": "llama"}}
    with pytest.raises(UnsupportedModel, match="family 'llama' in gemma3; allowed: gemma3_text"):
        describe_config(Fields("config", config))


def test_gemma3_configurations_that_say_little_mean_the_published_sizes():
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text"}
    text |= {"num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    config = {"model_type": "gemma3", "text_config": text | {"sliding_window": 1024}, "vision_config": {}}
    description = describe_config(Fields("config", config))
    theirs, spec = transformers.Gemma3TextConfig(**text, sliding_window=1024), description.spec
    assert description.tied
    assert (spec.num_heads, spec.num_kv_heads, spec.head_size, spec.vocab_size) == (8, 4, 256, 262_208)
    assert (spec.context_length, description.longest_context) == (131_072, 131_072)
    assert spec.windows == tuple(1024 if kind == NEAR else None for kind in theirs.layer_types)
    for kind, rope in zip(theirs.layer_types, spec.ropes, strict=True):
        assert rope.theta == theirs.rope_parameters[kind]["rope_theta"]
        assert rope.factor == (8.0 if kind == FAR else 1.0)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "-" not in name or name == "gpt_oss-window-8"])
def test_configurations_that_leave_out_what_transformers_knows_mean_the_same(name, tmp_path):
    """Every key whose value is the class's own default."""
    config = CONFIGS[name]()
    config.save_pretrained(tmp_path)
    values = dict(read_json_fields(tmp_path / "config.json").values)
    usual = type(config)().to_dict()
    needed = {"model_type", "hidden_act", "intermediate_size", "num_key_value_heads", "head_dim"}
    short = {key: value for key, value in values.items() if key in needed or usual.get(key) != value}
    assert describe_config(Fields("short", short)) == describe_config(Fields("long", values))


BLOCK, CHUNK = 16, 24


@pytest.mark.parametrize("window", [BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 39, 40, 41, 60])
def test_windows_around_a_block_a_chunk_and_the_prompt_equal_transformers(window, monkeypatch, tmp_path):
    config = transformers.MistralConfig(**SMALL, sliding_window=window)
    monkeypatch.setitem(CONFIGS, "mistral-wide", lambda: config)
    theirs = make_model("mistral-wide")
    ops, model = load(save_model(theirs, tmp_path), "native")
    tokens = random_prompt(60)
    expected = expected_logits(theirs, tokens)
    whole = run_chunks(ops, model, tokens, [60])
    for lengths in ([CHUNK, CHUNK, 12], [BLOCK] * 3 + [12], [40] + [1] * 20):
        ours = run_chunks(ops, model, tokens, lengths)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)
        assert ours.tobytes() == whole.tobytes()


def test_the_parallel_and_the_serial_branches_differ(tmp_path):
    theirs = make_model("gpt_neox")
    path = save_model(theirs, tmp_path)
    ops, model = load(path, "reference")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"use_parallel_residual": False}))
    serial = load(path, "reference")[1]
    tokens = random_prompt(9)
    assert model.spec.parallel
    assert not serial.spec.parallel
    assert np.abs(run_chunks(ops, model, tokens, [9]) - run_chunks(ops, serial, tokens, [9])).max() > 1e-2


@pytest.mark.parametrize("name", ["gpt_neox", "opt", "gpt2"])
def test_families_without_shared_heads_do_not_read_their_number(name, tmp_path):
    """As transformers' classes, which keep the keys and use neither."""
    theirs = make_model(name)
    path = save_model(theirs, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    told = config | {"num_key_value_heads": 2, "head_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps(told))
    ops, model = load(path, "reference")
    tokens = random_prompt(9)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [9]), expected, rtol=0, atol=TOLERANCE)


def test_buffers_of_older_gpt_neox_files_are_no_weights(tmp_path):
    path = save_model(make_model("gpt_neox"), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name.replace("lm_head", "embed_out"): tensor for name, tensor in load_file(file).items()}
    tensors |= {
        "gpt_neox.layers.0.attention.bias": np.ones((1, 1, 8, 8), np.float32),
        "gpt_neox.layers.0.attention.masked_bias": np.ones((1,), np.float32),
        "gpt_neox.layers.0.attention.rotary_emb.inv_freq": np.ones((2,), np.float32),
    }
    save_file(tensors, file, {"format": "pt"})
    assert load_model(path, ReferenceOps()).model.spec.num_layers == 3


@pytest.mark.parametrize("name", ["glm", "glm4"])
def test_gguf_files_that_fuse_what_the_family_has_apart_are_split(name, tmp_path):
    theirs = make_model(name)
    whole = write_model(theirs, tmp_path / "apart.gguf")
    reader = gguf.GGUFReader(whole.path)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    for layer in range(3):
        for suffix in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{layer}.attn_{part}.{suffix}") for part in "qkv"]
            tensors[f"blk.{layer}.attn_qkv.{suffix}"] = np.concatenate(parts)
    writer = gguf.GGUFWriter(tmp_path / "fused.gguf", reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for key, values in tensors.items():
        writer.add_tensor(key, values)
    finish(writer)
    tokens = random_prompt(20)
    rows = [
        run_chunks(*load(ModelPath("tiny", file, "gguf"), "reference"), tokens, [20])
        for file in (whole.path, tmp_path / "fused.gguf")
    ]
    assert rows[0].tobytes() == rows[1].tobytes()


REFUSED = [
    (
        "llama",
        {"attn_logit_softcapping": 30.0},
        "attn_logit_softcapping is 30.0, which family llama does not",
    ),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("llama", {"sliding_window": 64}, "sliding_window is 64; family llama has no windows"),
    ("llama", {"layer_types": [NEAR] * 3, "sliding_window": 8}, "family llama has no windows"),
    ("llama", {"layer_types": ["chunked_attention"] * 3}, "layer_types other than"),
    ("llama", {"no_rope_layers": [1, 0, 1]}, "no_rope_layers is"),
    ("llama", {"num_local_experts": 8}, "num_local_experts is 8"),
    ("llama", {"use_qkv_bias": True}, "use_qkv_bias is True"),
    ("llama", {"logits_scaling": 4.0}, "logits_scaling is 4.0"),
    ("llama", {"residual_multiplier": 0.2}, "residual_multiplier is 0.2"),
    ("olmo2", {"clip_qkv": 8.0}, "clip_qkv is 8.0, which family olmo2 does not have; allowed: none"),
    ("phi3", {"qk_layernorm": True}, "qk_layernorm is True.*allowed: none or False"),
    ("mistral", {"layer_types": [NEAR, FAR, NEAR], "sliding_window": 8}, "in family mistral all are alike"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma2", {"hidden_act": "silu"}, "hidden_act is 'silu' next to hidden_activation"),
    ("gemma3_text", {"layer_types": ["linear_attention"] * 4}, "layer_types other than"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("smollm3", {"hidden_act": "xielu"}, "activation 'xielu'"),
]


@pytest.mark.parametrize("name,changed,message", REFUSED)
def test_variations_that_no_row_reads_are_refused_by_name(name, changed, message, tmp_path):
    CONFIGS[name]().save_pretrained(tmp_path)
    values = dict(read_json_fields(tmp_path / "config.json").values) | changed
    with pytest.raises(UnsupportedModel, match=message):
        describe_config(Fields("config", values))


OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "ffn_dim": 96,
}
OPT |= {"vocab_size": 96, "max_position_embeddings": 64, "word_embed_proj_dim": 64}


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"do_layer_norm_before": False}, "do_layer_norm_before is False.*allowed: none or True"),
        ({"word_embed_proj_dim": 32}, "word_embed_proj_dim is not hidden_size"),
        ({"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
    ],
)
def test_variants_of_opt_are_refused_by_name(changed, message):
    assert describe_config(Fields("config", OPT)).family is FAMILIES["opt"]
    with pytest.raises(UnsupportedModel, match=message):
        describe_config(Fields("config", OPT | changed))


@pytest.mark.parametrize(
    "key,value,message",
    [
        ("llama.attention.clamp_kqv", 8.0, "clamp_kqv is 8.0"),
        ("llama.attn_logit_softcapping", 30.0, "attn_logit_softcapping is 30.0"),
        ("llama.logit_scale", 0.5, "logit_scale is 0.5"),
        ("llama.attention.sliding_window", 64, "family llama has no windows"),
        ("llama.rope.dimension_count", 8, "8 of 16 elements of a head are rotated"),
        ("llama.attention.temperature_scale", 0.1, "temperature_scale is 0.1"),
    ],
)
def test_gguf_settings_that_no_row_reads_are_refused_by_name(key, value, message, tmp_path):
    path = write_model(make_model("llama"), tmp_path / "tiny.gguf")
    reader = gguf.GGUFReader(path.path)
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", key):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    writer.add_uint32(key, value) if isinstance(value, int) else writer.add_float32(key, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    finish(writer)
    with pytest.raises(UnsupportedModel, match=message):
        load_model(ModelPath("tiny", tmp_path / "other.gguf", "gguf"), ReferenceOps())
