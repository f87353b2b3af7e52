"""Whole GGUF models: the logits of the weights they were written from, in any kind, in little memory."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
from tests.blocks import QUANTISED, SUPER_KINDS, dequantised, encoded, floats_tensor
from tests.model.checkpoints import checkpoint, random_prompt
from tests.model.chunks import BACKENDS, load, run_chunks
from tests.model.gguf_bench import write_model, write_sample

from octavo.errors import BadModelFile, ConfigError, ModelError, ModelNotFound, UnsupportedModel
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import bits_of
from octavo.kernels.reference import ReferenceOps
from octavo.model.files.gguf import read_gguf
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.model.reader import halves_order
from octavo.types import Notice

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
    "ministral3",
    "smollm3",
    "phi3",
    "phi3-longrope",
    "gemma",
    "gemma3_text",
    "granite",
    "olmo2",
    "olmo3",
    "starcoder2",
    "gpt_neox",
    "gpt_neox-serial",
    "glm",
    "glm4",
    "mixtral",
    "qwen3_moe",
    "olmoe",
    "gpt_oss-window-8",
    "gpt_oss-window-24",
    "llama4_text",
]


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GGUF_FAMILIES)
def test_gguf_logits_equal_transformers(name, backend, tmp_path):
    from tests.model.model_bench import expected_logits, make_model

    theirs = make_model(name)
    if name in ("gemma2", "gemma3_text"):  # the format cannot say another query scalar than the head size
        for layer in theirs.model.layers:
            layer.self_attn.scaling = layer.self_attn.head_dim**-0.5
    if name == "llama4_text":  # nor how far temperatures reach
        for layer in theirs.model.layers:
            layer.self_attn.floor_scale = 8192
    ops, model = load(write_model(theirs, tmp_path / "tiny.gguf"), backend)
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    for lengths in ([PROMPT], [7, 16, 1, 17], [20] + [1] * 21):
        np.testing.assert_allclose(run_chunks(ops, model, tokens, lengths), expected, rtol=0, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["F16", "BF16", *QUANTISED])
def test_rows_are_put_in_halves_without_decoding_them(kind, backend, tmp_path):
    import torch
    from tests.model.model_bench import expected_logits, make_model

    theirs = make_model("llama-wide" if kind in SUPER_KINDS else "llama")
    ops, model = load(write_model(theirs, tmp_path / "tiny.gguf", kind), backend)
    with torch.no_grad():  # what is left of the weights after this kind's rounding
        for parameter in theirs.parameters():
            if parameter.dim() == 2:
                stored = encoded(floats_tensor(parameter.numpy()), kind)
                parameter.copy_(torch.from_numpy(dequantised(stored).copy()))
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    far = 5e-4 if kind in SUPER_KINDS else 1e-4  # four times the terms in each sum
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=far)


@pytest.mark.parametrize("kind", SUPER_KINDS)
def test_each_mode_holds_a_whole_model_of_super_blocks_near_float32(kind, tmp_path):
    path = write_model(checkpoint("llama-wide"), tmp_path / "tiny.gguf", kind)
    tokens, wanted, names = random_prompt(PROMPT), None, set()
    held = {
        mode: {only} for mode, only in {"f32": "F32", "auto": kind, "bf16": "BF16", "int8": "Q8_0"}.items()
    }
    few_bits = bits_of(kind) <= bits_of("Q4_1")
    held["q4"] = {kind} if few_bits else {"Q4_1", kind}  # the embedding and the output stay
    for mode, kinds in held.items():
        ops = NativeOps(mode)
        model = load_model(path, ops).model
        assert model.weights.bytes_by_kind.keys() == kinds
        assert sum(model.weights.bytes_by_kind.values()) == model.weights.num_bytes
        logits = run_chunks(ops, model, tokens, [PROMPT])
        wanted = logits if wanted is None else wanted
        far = np.sqrt(np.mean((logits - wanted) ** 2) / np.mean(wanted**2))
        # four bits of random weights say little, layer after layer, and yet not nothing
        assert far < (0.7 if "Q4_1" in kinds else 0.06), mode
        names.add(ops.arithmetic_id)
    assert len(names) == 5


# What llama.cpp's tool makes of a model under these names, and of one whose rows are no multiples of 256.
MIXES = {
    "Q2_K": ("Q2_K", "Q3_K", "Q4_K", "Q6_K"),
    "Q3_K_M": ("Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    "Q4_K_M": ("Q4_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K"),
    "IQ4_XS": ("IQ4_XS", "Q5_K", "Q6_K"),
    "narrow": ("Q5_0", "Q5_1", "IQ4_NL", "Q8_0"),
}


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_of_kinds_is_held_as_it_is_and_near_float32(mix, tmp_path):
    name = "llama" if mix == "narrow" else "llama-wide"
    path = write_model(checkpoint(name), tmp_path / "tiny.gguf", MIXES[mix])
    tokens, logits = random_prompt(PROMPT), {}
    for mode in ("f32", "auto"):
        ops, model = NativeOps(mode), load_model(path, NativeOps(mode)).model
        assert model.weights.bytes_by_kind.keys() == ({"F32"} if mode == "f32" else set(MIXES[mix]))
        logits[mode] = run_chunks(ops, model, tokens, [PROMPT])
    error = np.sqrt(np.mean((logits["auto"] - logits["f32"]) ** 2) / np.mean(logits["f32"] ** 2))
    assert error < 0.06


@pytest.mark.full
def test_rope_factors_of_a_gguf_mean_llama3_scaling(tmp_path):
    from tests.model.model_bench import expected_logits, make_model

    theirs = make_model("llama-rope-llama3")
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    factors = plain / theirs.model.rotary_emb.inv_freq.numpy()
    assert factors.max() > 4.0
    ops, model = load(write_model(theirs, tmp_path / "tiny.gguf", rope_factors=factors), "reference")
    tokens = random_prompt(PROMPT)
    expected = expected_logits(theirs, tokens)
    np.testing.assert_allclose(run_chunks(ops, model, tokens, [PROMPT]), expected, rtol=0, atol=1e-4)


def test_halves_order_undoes_the_interleaving():
    assert halves_order(8, 2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert halves_order(6, 1, 4).tolist() == [0, 2, 1, 3, 4, 5]


def test_output_of_a_gguf_without_one_is_the_embedding(tmp_path):
    _, model = load(write_model(checkpoint("llama-tied"), tmp_path / "tiny.gguf"), "reference")
    assert model.weights.output is model.weights.embedding


def test_fingerprint_changes_with_one_bit_of_a_weight(tmp_path):
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf")
    first = load_model(path, ReferenceOps()).model.fingerprint
    data = bytearray(path.path.read_bytes())
    data[-200] ^= 1
    path.path.write_bytes(data)
    assert load_model(path, ReferenceOps()).model.fingerprint != first


def test_flipped_settings_are_errors_of_the_tree(tmp_path):
    """Whatever the header says, loading ends in a model or in a ModelError."""
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf")
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
        ("llama.rope.scaling.type", "ntk", UnsupportedModel, "rope scaling 'ntk'"),
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


def test_a_guess_at_how_texts_are_cut_is_reported_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda file, name: None)
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf")
    told: list[str] = []
    load_model(path, ReferenceOps(), progress=told.append)
    notice = next(line for line in told if "how texts are cut" in line)
    assert isinstance(notice, Notice)
    known = write_model(checkpoint("qwen2"), tmp_path / "known.gguf")
    told.clear()
    load_model(known, ReferenceOps(), progress=told.append)
    assert not any("how texts are cut" in line for line in told)


def test_a_context_below_one_is_a_setting_error(tmp_path):
    with pytest.raises(ConfigError, match="context_length is 0"):
        load_model(ModelPath("tiny", tmp_path / "none.gguf", "gguf"), ReferenceOps(), context_length=0)


@pytest.mark.full
def test_a_header_does_not_make_tables_larger_than_the_model(tmp_path, monkeypatch):
    import transformers
    from tests.model.model_bench import CONFIGS, SMALL, make_model

    huge = {**SMALL, "max_position_embeddings": 1 << 24}
    monkeypatch.setitem(CONFIGS, "llama-huge", lambda: transformers.LlamaConfig(**huge))
    path = write_model(make_model("llama-huge"), tmp_path / "tiny.gguf")
    with pytest.raises(
        UnsupportedModel, match=r"tiny\.gguf: a context of 16,777,216 tokens needs tables of 1"
    ):
        load_model(path, NativeOps())
    assert load_model(path, NativeOps(), context_length=64).model.spec.context_length == 64


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        load_model(ModelPath("tiny", tmp_path / "none.gguf", "gguf"), ReferenceOps())


def test_a_gguf_without_embedding_is_refused(tmp_path):
    with pytest.raises(BadModelFile, match=r"no matrix token_embd\.weight"):
        load_model(ModelPath("tiny", write_sample(tmp_path / "s.gguf"), "gguf"), ReferenceOps())


MEASURE = """
import sys
from pathlib import Path
from octavo.kernels.native_ops import NativeOps
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model

loaded = load_model(ModelPath("m", Path(sys.argv[1]), "gguf"), NativeOps())
# Not ru_maxrss: that begins with the peak of the process that started this one.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(*(int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")))
"""


@pytest.mark.real_model
def test_the_default_model_is_loaded_in_little_memory(default_gguf):
    """In a process of its own: the peak is two tensors of the file above the end, and what an allocator adds
    to them; far from a copy of the model in float32."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(default_gguf)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    resident, peak = map(int, done.stdout.split())
    largest = max(len(raw.data) for raw in read_gguf(default_gguf).tensors.values())
    assert peak - resident <= 2.5 * largest


@pytest.mark.full
@pytest.mark.real_model
def test_the_default_models_logits_equal_transformers(default_gguf):
    """Against transformers' Llama, filled with the weights as the `gguf` package decodes them."""
    import transformers
    from tests.model.model_bench import expected_logits

    loaded = load_model(ModelPath("smollm2-135m", default_gguf, "gguf"), NativeOps("f32"))
    spec = loaded.model.spec
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size, hidden_size=spec.hidden_size, intermediate_size=spec.ffn_size,
        num_hidden_layers=spec.num_layers, num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads, max_position_embeddings=spec.context_length, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, tie_word_embeddings=True,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = transformers.LlamaForCausalLM(config).float().eval()
    fill_llama(theirs, default_gguf)
    tokens = loaded.tokenizer.encode(
        "Paris is the capital of France. In 1889, the Eiffel Tower was built for"
    )
    ours = run_chunks(NativeOps("f32"), loaded.model, tokens, [len(tokens)])
    expected = expected_logits(theirs, tokens)
    assert np.abs(ours - expected).max() < 1e-3
    assert ours[-1].argmax() == expected[-1].argmax()


def fill_llama(theirs, path):
    """Put a llama GGUF's weights into transformers' model, by the `gguf` package alone."""
    import torch

    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, theirs.config.num_hidden_layers)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            tensor = stored[names.get_name(name, try_suffixes=(".weight",))]
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(parameter.shape)
            if "q_proj" in name or "k_proj" in name:
                pairs = values.reshape(-1, theirs.config.head_dim // 2, 2, values.shape[1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
            parameter.copy_(torch.from_numpy(np.array(values)))
