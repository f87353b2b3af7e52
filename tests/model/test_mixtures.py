"""Mixtures from files: kinds of experts, spellings, parts of larger models, and what is refused by name."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.blocks import dequantised, encoded, floats_tensor
from tests.model.checkpoints import add_tokenizer, random_prompt
from tests.model.chunks import BACKENDS, load, run_chunks
from tests.model.gguf_bench import write_model
from tests.model.mixture_configs import MIXTURE_CONFIGS, SMALL
from tests.model.model_bench import expected_logits, make_model, save_model

from octavo.errors import BadModelFile, ConfigError, UnsupportedModel
from octavo.fields import Fields, read_json_fields
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.model.families import RopeTensors, describe_config, describe_gguf
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.model.packed_cache import PackedFolder

pytestmark = pytest.mark.full

PROMPT = 41


def through(kind: str, values: np.ndarray) -> np.ndarray:
    """What is left of numbers that are held in that kind."""
    rows = values.reshape(-1, values.shape[-1])
    return dequantised(encoded(floats_tensor(rows), kind)).reshape(values.shape)


def round_experts(theirs: transformers.PreTrainedModel, kind: str) -> None:
    """Leave of the experts' weights what the kind holds; along inputs, which may be the middle axis."""
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if ".experts." not in name or name.endswith("bias"):
                continue
            values = parameter.numpy()
            if theirs.config.model_type == "gpt_oss":
                rounded = through(kind, np.ascontiguousarray(values.swapaxes(1, 2))).swapaxes(1, 2)
            else:
                rounded = through(kind, values)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(rounded)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name,kind", [("gpt_oss-window-8", "MXFP4"), ("mixtral-wide", "Q4_K"), ("mixtral", "Q8_0")]
)
def test_experts_of_a_gguf_are_cut_out_of_three_dimensions_in_every_kind(name, kind, backend, tmp_path):
    theirs = make_model(name)
    path = write_model(theirs, tmp_path / "tiny.gguf", expert_kind=kind)
    ops, model = load(path, backend)
    round_experts(theirs, kind)
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    far = 5e-4 if "wide" in name else 1e-4
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=far)
    held = load_model(path, NativeOps()).model.weights.bytes_by_kind
    assert held[kind] > 0


def mxfp4_parts(values: np.ndarray) -> dict[str, torch.Tensor]:
    """(X, inputs, outputs) as published: two codes a byte, the even one low, and exponents beside them."""
    across = np.ascontiguousarray(values.swapaxes(1, 2))
    experts, outputs, inputs = across.shape
    raw = encoded(floats_tensor(across.reshape(-1, inputs)), "MXFP4").data.reshape(-1, 17)
    codes = np.concatenate([raw[:, 1:] & 15, raw[:, 1:] >> 4], axis=1)
    blocks = codes[:, ::2] | codes[:, 1::2] << 4
    return {
        "_blocks": torch.from_numpy(blocks.reshape(experts, outputs, inputs // 32, 16).copy()),
        "_scales": torch.from_numpy(raw[:, 0].reshape(experts, outputs, inputs // 32).copy()),
    }


def as_published(theirs: transformers.PreTrainedModel, folder, **changes: object) -> ModelPath:
    """A folder with gpt-oss's experts in MXFP4."""
    save_model(theirs, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        parts = mxfp4_parts(tensors.pop(name).numpy())
        tensors |= {name + suffix: part for suffix, part in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"quantization_config": {"quant_method": "mxfp4"}, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return ModelPath("tiny", folder, "safetensors")


def test_published_gpt_oss_has_the_bits_of_its_gguf(tmp_path):
    theirs = make_model("gpt_oss-window-16")
    tokens = random_prompt(PROMPT)
    logits = []
    gguf_path = write_model(theirs, tmp_path / "tiny.gguf", expert_kind="MXFP4")
    for path in (as_published(theirs, tmp_path / "folder"), gguf_path):
        ops = NativeOps()
        model = load_model(path, ops).model
        assert model.weights.bytes_by_kind["MXFP4"] > 0
        logits.append(run_chunks(ops, model, tokens, [PROMPT]).tobytes())
    assert logits[0] == logits[1]


def test_experts_without_their_scales_are_named(tmp_path):
    path = as_published(make_model("gpt_oss-window-8"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    lost = "model.layers.1.mlp.experts.down_proj_scales"
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadModelFile, match=f"no tensor '{lost}'"):
        load_model(path, ReferenceOps())


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss-window-8", "llama4_text"])
def test_a_packed_copy_of_a_mixture_gives_the_same_bits(name, tmp_path):
    path = save_model(make_model(name), tmp_path / "model")
    ops = NativeOps("q4")
    folder = PackedFolder(tmp_path / "packed", ops.arithmetic_id)
    first = load_model(path, ops, packed=folder)
    second = load_model(path, ops, packed=folder)
    assert first.mapped_bytes == 0 < second.mapped_bytes
    tokens = random_prompt(PROMPT)
    logits = [run_chunks(ops, loaded.model, tokens, [PROMPT]).tobytes() for loaded in (first, second)]
    assert logits[0] == logits[1]
    assert second.model.weights.layers[0].mixture is not None or name == "llama4_text"


@pytest.mark.parametrize("name", MIXTURE_CONFIGS)
def test_parameters_are_counted_as_transformers_counts_them(name, tmp_path):
    theirs = make_model(name)
    model = load(save_model(theirs, tmp_path), "reference")[1]
    assert model.weights.num_parameters == sum(parameter.numel() for parameter in theirs.parameters())


def test_routers_keep_eight_bits_where_layers_have_four(tmp_path):
    model = load_model(save_model(make_model("mixtral"), tmp_path), NativeOps("q4")).model
    mixture = model.weights.layers[0].mixture
    assert mixture.router.weight.kind == "Q8_0"
    assert {linear.weight.kind for linear in mixture.linears[1:]} == {"Q4_1"}


def test_the_text_part_of_llama_4_loads_and_its_images_are_left_out(tmp_path):
    theirs = make_model("llama4_text")
    save_model(theirs, tmp_path)
    tensors = {f"language_model.{name}": t for name, t in load_file(tmp_path / "model.safetensors").items()}
    tensors["vision_model.patch.weight"] = torch.zeros(3, 3)
    tensors["multi_modal_projector.linear_1.weight"] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": text}))
    ops, model = load(ModelPath("tiny", tmp_path, "safetensors"), "native")
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=1e-4)


def test_attention_in_chunks_ends_the_context_and_says_why(tmp_path, caplog):
    path = save_model(make_model("llama4_text"), tmp_path)
    assert load_model(path, ReferenceOps()).model.spec.context_length == 64
    assert "the context is 64 tokens: the model's own context is 128 tokens, but most of its" in caplog.text
    with pytest.raises(
        ConfigError, match=r"context_length is 65, .* allowed: up to 64; the model's own .* chunks of 64"
    ):
        load_model(path, ReferenceOps(), context_length=65)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attention_chunk_size": None}))
    assert load_model(path, ReferenceOps()).model.spec.context_length == 128


def described(name: str, tmp_path, **changes: object):
    """The description of a family's settings with some changed."""
    MIXTURE_CONFIGS[name]().save_pretrained(tmp_path)
    values = {**read_json_fields(tmp_path / "config.json").values, **changes}
    return describe_config(Fields("config", values))


def test_which_layers_are_mixed_is_read_as_each_family_says_it(tmp_path):
    of = partial(described, tmp_path=tmp_path)
    assert of("qwen3_moe-some-dense").mixed_layers == (False, False, False, True)
    assert of("qwen3_moe-some-dense", mlp_only_layers=[]).mixed_layers == (False, True, False, True)
    assert of("llama4_text").mixed_layers == (False, True, False, True)
    assert of("llama4_text", moe_layers=None).mixed_layers == (False, True, False, True)
    assert of("llama4_text-no-norm").mixed_layers == (True, False, True)
    assert of("mixtral").mixed_layers == (True, True, True)


def test_the_older_spelling_of_how_many_experts_there_are_means_the_same(tmp_path):
    newer = described("qwen3_moe", tmp_path)
    older = described("qwen3_moe", tmp_path, num_local_experts=None, num_experts=12)
    assert older == newer
    assert newer.spec.routing.normalised
    assert not described("qwen3_moe", tmp_path, norm_topk_prob=None).spec.routing.normalised


@pytest.mark.parametrize(
    "name,changes,error,message",
    [
        ("mixtral", {"num_local_experts": 0}, BadModelFile, "num_local_experts is 0; allowed: a whole"),
        ("mixtral", {"num_local_experts": 10**9}, BadModelFile, "num_local_experts is 1000000000"),
        ("mixtral", {"num_local_experts": 2.5}, BadModelFile, "num_local_experts is 2.5"),
        ("mixtral", {"num_experts_per_tok": 6}, BadModelFile, "num_experts_per_tok is 6; .* from 1 to 5"),
        ("qwen3_moe", {"moe_intermediate_size": -1}, BadModelFile, "moe_intermediate_size is -1"),
        ("qwen3_moe", {"mlp_only_layers": [3]}, BadModelFile, "mlp_only_layers is .*layers from 0 to 2"),
        ("qwen3_moe", {"mlp_only_layers": 3}, BadModelFile, "mlp_only_layers is 3"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, BadModelFile, "decoder_sparse_step is 0"),
        ("olmoe", {"clip_qkv": 8.0}, UnsupportedModel, "clip_qkv is 8.0"),
        ("gpt_oss-window-8", {"swiglu_limit": 5.0}, UnsupportedModel, "swiglu_limit is 5.0; allowed: 7"),
        ("llama4_text", {"moe_layers": [0, 9]}, BadModelFile, "moe_layers is"),
        ("llama4_text", {"attention_chunk_size": 0}, BadModelFile, "attention_chunk_size is 0"),
        (
            "llama4_text",
            {"layer_types": ["sliding_attention"] * 4},
            UnsupportedModel,
            "layer_types other than",
        ),
    ],
)
def test_settings_that_no_op_has_are_refused_by_name(name, changes, error, message, tmp_path):
    with pytest.raises(error, match=message):
        described(name, tmp_path, **changes)


@pytest.mark.parametrize(
    "changes,error,message",
    [
        ({"qwen3moe.expert_count": 5000}, BadModelFile, "expert_count is 5000"),
        ({"qwen3moe.expert_used_count": 13}, BadModelFile, "expert_used_count is 13; .* from 1 to 12"),
        ({"qwen3moe.expert_weights_scale": 2.5}, UnsupportedModel, "expert_weights_scale is 2.5"),
        ({"qwen3moe.expert_group_count": 4}, UnsupportedModel, "expert_group_count is not supported"),
        ({"qwen3moe.leading_dense_block_count": 1}, UnsupportedModel, "leading_dense_block_count is not"),
        ({"qwen3moe.expert_gating_func": 2}, UnsupportedModel, "expert_gating_func is 2; allowed: 1"),
        ({"qwen3moe.expert_count": 0}, UnsupportedModel, "'qwen3moe' with no experts"),
    ],
)
def test_keys_of_a_gguf_that_no_op_has_are_refused_by_name(changes, error, message):
    values = {"general.architecture": "qwen3moe", "qwen3moe.block_count": 2, "qwen3moe.context_length": 64}
    values |= {"qwen3moe.embedding_length": 64, "qwen3moe.attention.head_count": 4}
    values |= {"qwen3moe.feed_forward_length": 96, "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6}
    values |= {"qwen3moe.expert_count": 12, "qwen3moe.expert_used_count": 8}
    describe_gguf(Fields("gguf", values), 96, RopeTensors(), True)
    with pytest.raises(error, match=message):
        describe_gguf(Fields("gguf", values | changes), 96, RopeTensors(), True)


def test_an_expert_that_is_missing_or_of_another_size_is_named(tmp_path):
    path = save_model(make_model("mixtral"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for changes, message in (
        ({"num_local_experts": 6}, r"gate.weight' has shape \(5, 64\); expected \(6, 64\)"),
        ({"intermediate_size": 80}, r"experts.0.w1.weight' has shape \(96, 64\); expected \(80, 64\)"),
        ({"num_hidden_layers": 4}, "no tensor 'model.layers.3"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(BadModelFile, match=message):
            load_model(path, ReferenceOps())


def test_fewer_experts_than_the_file_has_are_refused(tmp_path):
    theirs = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_local_experts=3))
    theirs.save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.block_sparse_moe.experts.3.w1.weight"
    tensors[name] = torch.zeros(96, 64)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"1 tensors unknown to family mixtral: {name}"):
        load_model(ModelPath("tiny", tmp_path, "safetensors"), ReferenceOps())
