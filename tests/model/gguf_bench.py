"""GGUF files made by the `gguf` package, which is the oracle of our own parser."""

from __future__ import annotations

import itertools
from pathlib import Path

import gguf
import numpy as np
from tests.blocks import encoded, floats_tensor
from tests.model.gguf_mixtures import Config, Model, expert_tensors, floats_of
from tests.model.gguf_settings import ON_NEIGHBOURS, add_rope_tensors, add_settings, arch_of

from octavo.model.hub.paths import ModelPath

KINDS = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
    "Q4_0": gguf.GGMLQuantizationType.Q4_0,
    "Q4_1": gguf.GGMLQuantizationType.Q4_1,
}


def write_sample(path: Path, kinds: tuple[str, ...] = tuple(KINDS)) -> Path:
    """A small file with every value type, and one matrix and one vector of each kind."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -7)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 2**63 + 1)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_string("a.text", "prélude ▁ 世界")
    writer.add_array("a.strings", ["one", "", "deux ▁", "三"])
    writer.add_array("a.integers", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 1.5])
    writer.add_array("a.flags", [True, False, True])
    generator = np.random.default_rng(0)
    for kind in kinds:
        matrix = generator.standard_normal((6, 64)).astype(np.float32)
        writer.add_tensor(f"{kind}.matrix", gguf.quants.quantize(matrix, KINDS[kind]), raw_dtype=KINDS[kind])
        writer.add_tensor(f"{kind}.vector", matrix[0])
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows (or elements) of q or k as llama GGUF files order them: pairs (i, i + D/2) become neighbours."""
    halves = weight.reshape(num_heads, 2, len(weight) // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_model(
    theirs: Model,
    path: Path,
    kind: str | tuple[str, ...] = "F32",
    *,
    rope_factors: np.ndarray | None = None,
    expert_kind: str | None = None,
) -> ModelPath:
    """A whole model as its GGUF file would have it: names, q and k order, norm offsets, fused qkv.

    Of several kinds each matrix has the next one.
    """
    kinds = itertools.cycle((kind,) if isinstance(kind, str) else kind)
    config = theirs.config
    arch = arch_of(config)
    writer = gguf.GGUFWriter(path, arch)
    add_settings(writer, config, arch)
    _add_vocabulary(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(
        {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[arch], config.num_hidden_layers
    )
    for name, tensor in theirs.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = floats_of(tensor)
        of_experts = expert_tensors(name, array, config)
        for target, values in of_experts.items():
            is_small = values.ndim == 2  # a router, or biases of experts
            _add_tensor(writer, target, values, "F32" if is_small else expert_kind or next(kinds))
        if of_experts:
            continue
        values = _as_converted(name, array, config, arch)
        # The map of names is older than this one of transformers'.
        older = name.replace("lm_head", "embed_out") if arch == "gptneox" else name
        target = names.get_name(older, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        _add_tensor(writer, target, values, next(kinds) if values.ndim == 2 else "F32")
    add_rope_tensors(writer, config)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    finish(writer)
    return ModelPath("tiny", path, "gguf")


def _add_tensor(writer: gguf.GGUFWriter, target: str, values: np.ndarray, kind: str) -> None:
    """Of that kind, but for vectors."""
    stored = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
    data = encoded(floats_tensor(values), stored.name).data
    rows = data.reshape(*values.shape[:-1], -1)
    writer.add_tensor(target, rows.view(np.float32) if stored.name == "F32" else rows, raw_dtype=stored)


def _as_converted(name: str, values: np.ndarray, config: Config, arch: str) -> np.ndarray:
    """What llama.cpp's converters make of a tensor of that family."""
    if arch in ON_NEIGHBOURS and name.endswith(("q_proj.weight", "q_proj.bias")):
        return interleaved(values, config.num_attention_heads)
    if arch in ON_NEIGHBOURS and name.endswith(("k_proj.weight", "k_proj.bias")):
        return interleaved(values, config.num_key_value_heads)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1.0
    if arch == "gpt2" and ".c_" in name and name.endswith(".weight"):
        return values.T
    if arch == "gptneox" and ".query_key_value." in name:  # q, k and v of each head, put apart
        by_head = values.reshape(config.num_attention_heads, 3, -1, *values.shape[1:])
        return by_head.swapaxes(0, 1).reshape(values.shape)
    return values


def _add_vocabulary(writer: gguf.GGUFWriter, count: int) -> None:
    """Byte-level letters, three special tokens and a single merge."""
    import tokenizers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[: count - 4]
    letters.append(letters[0] + letters[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|begin|>", "<|end|>", "<|im_end|>", *letters])
    writer.add_token_types([3, 3, 3] + [1] * len(letters))
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
