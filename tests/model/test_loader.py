"""Whole GGUF models: the logits of the weights they were written from, in any kind, in little memory."""

from __future__ import annotations

import resource
import time

import gguf
import numpy as np
import pytest
import torch
from gguf_bench import KINDS, write_model
from model_bench import BACKENDS, expected_logits, load, make_model, random_prompt, run_chunks

from octavo.errors import BadModelFile, ConfigError, ModelNotFound, UnsupportedModel
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.model.hub import ModelPath
from octavo.model.loader import load_model
from octavo.model.weights import halves_order

PROMPT = 41
GGUF_FAMILIES = [
    "llama",
    "llama-tied",
    "llama-biases",
    "llama-rope-linear",
    "qwen2",
    "qwen3",
    "gemma2",
    "gpt2",
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GGUF_FAMILIES)
def test_gguf_logits_equal_transformers(name, backend, tmp_path):
    theirs = make_model(name)
    if name == "gemma2":  # the format cannot say another query scalar than the head size
        for layer in theirs.model.layers:
            layer.self_attn.scaling = layer.self_attn.head_dim**-0.5
    ops, model = load(write_model(theirs, tmp_path / "tiny.gguf"), backend)
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    for lengths in ([PROMPT], [7, 16, 1, 17], [20] + [1] * 21):
        np.testing.assert_allclose(run_chunks(ops, model, tokens, lengths), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "F32"])
def test_rows_are_put_in_halves_without_decoding_them(kind, backend, tmp_path):
    theirs = make_model("llama")
    ops, model = load(write_model(theirs, tmp_path / "tiny.gguf", kind), backend)
    with torch.no_grad():  # what is left of the weights after this kind's rounding
        for parameter in theirs.parameters():
            if parameter.dim() == 2:
                stored = gguf.quants.quantize(parameter.numpy(), KINDS[kind])
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, KINDS[kind]).copy()))
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=1e-4)


def test_rope_factors_of_a_gguf_mean_llama3_scaling(tmp_path):
    theirs = make_model("llama-rope-llama3")
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    factors = plain / theirs.model.rotary_emb.inv_freq.numpy()
    assert factors.max() > 4.0
    ops, model = load(write_model(theirs, tmp_path / "tiny.gguf", rope_factors=factors), "reference")
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=1e-4)


def test_halves_order_undoes_the_interleaving():
    assert halves_order(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_output_of_a_gguf_without_one_is_the_embedding(tmp_path):
    _, model = load(write_model(make_model("llama-tied"), tmp_path / "tiny.gguf"), "reference")
    assert model.weights.output is model.weights.embedding


def test_fingerprint_changes_with_one_bit_of_a_weight(tmp_path):
    path = write_model(make_model("llama"), tmp_path / "tiny.gguf")
    first = load_model(path, ReferenceOps()).model.fingerprint
    data = bytearray(path.path.read_bytes())
    data[-200] ^= 1
    path.path.write_bytes(data)
    assert load_model(path, ReferenceOps()).model.fingerprint != first


def test_flipped_settings_are_errors_of_the_tree(tmp_path):
    """Whatever the header says, loading ends in a model or in a ModelError."""
    from octavo.errors import ModelError
    from octavo.model.gguf import read_gguf

    path = write_model(make_model("llama"), tmp_path / "tiny.gguf")
    data = np.frombuffer(path.path.read_bytes(), np.uint8)
    header_bytes = read_gguf(path.path).header_bytes
    generator = np.random.default_rng(11)
    refused = 0
    for _ in range(150):
        changed = data.copy()
        changed[generator.integers(0, header_bytes, 2)] = generator.integers(0, 256, 2)
        path.path.write_bytes(changed.tobytes())
        try:
            load_model(path, ReferenceOps())
        except ModelError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    "key,value,error,message",
    [
        ("general.architecture", "mamba", UnsupportedModel, "family 'mamba'"),
        ("tokenizer.ggml.model", "bert", UnsupportedModel, "tokenizer model 'bert'"),
        ("tokenizer.ggml.pre", "klingon", UnsupportedModel, "pre-tokenizer 'klingon'"),
        ("llama.rope.scaling.type", "yarn", UnsupportedModel, "rope scaling 'yarn'"),
    ],
)
def test_unknown_settings_of_a_gguf_are_refused_by_name(key, value, error, message, tmp_path):
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "mamba" if key == "general.architecture" else "llama")
    for name, number in (("context_length", 128), ("embedding_length", 64), ("block_count", 1)):
        writer.add_uint32(f"llama.{name}", number)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_uint32("llama.feed_forward_length", 96)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    settings = {"tokenizer.ggml.model": "gpt2"} | {key: value}
    settings.pop("general.architecture", None)
    for name, setting in settings.items():
        writer.add_string(name, setting)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((2, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(error, match=message):
        load_model(ModelPath("tiny", path, "gguf"), ReferenceOps())


def test_a_context_below_one_is_a_setting_error(tmp_path):
    with pytest.raises(ConfigError, match="context_length is 0"):
        load_model(ModelPath("tiny", tmp_path / "none.gguf", "gguf"), ReferenceOps(), context_length=0)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        load_model(ModelPath("tiny", tmp_path / "none.gguf", "gguf"), ReferenceOps())


def test_a_gguf_without_embedding_is_refused(tmp_path):
    from gguf_bench import write_sample

    with pytest.raises(BadModelFile, match=r"no matrix token_embd\.weight"):
        load_model(ModelPath("tiny", write_sample(tmp_path / "s.gguf"), "gguf"), ReferenceOps())


@pytest.mark.real_model
def test_the_default_model_is_ready_in_time_and_in_little_memory(default_gguf):
    started = time.monotonic()
    said: list[str] = []
    loaded = load_model(ModelPath("smollm2-135m", default_gguf, "gguf"), NativeOps(), progress=said.append)
    assert time.monotonic() - started < 4.0
    weights = loaded.model.weights
    resident = weights.embedding.num_bytes + sum(
        linear.weight.num_bytes
        for layer in weights.layers
        for linear in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert resident < 600e6
    assert peak < resident + 1.2e9  # the test's own libraries (torch, transformers) take most of it
    assert loaded.model.spec.family == "llama"
    assert loaded.tokenizer.stop_ids == {2}
