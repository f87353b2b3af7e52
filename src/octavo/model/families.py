"""The table of families: one row says how a family's files name things and which variations it has.

    row = names of sizes in config.json + names of tensors in safetensors + a few facts (norm, windows, ...)

GGUF calls everything the same for all families, so its names are one shared column. From a row and a file's
settings come a `ModelSpec` (what the decoder follows) and the names by which `model/weights.py` finds the
tensors. A family with a new variation is a new row, and a new fact only if no row had it yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.rope import CONTEXT_MAX, rope_from_config, rope_from_gguf
from octavo.model.spec import ModelSpec, RopeSpec

LAYERS_MAX = 1024
HIDDEN_MAX = 1 << 17
HEADS_MAX = 1024
HEAD_SIZE_MAX = 1024
FFN_MAX = 1 << 20
VOCAB_MAX = 1 << 22

Names = Mapping[str, str]

# What config.json calls the settings, and what GGUF does below the name of the architecture.
_CONFIG_KEYS: Names = MappingProxyType(
    {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_size": "head_dim",
        "ffn": "intermediate_size",
        "vocab": "vocab_size",
        "context": "max_position_embeddings",
        "eps": "rms_norm_eps",
        "activation": "hidden_act",
    }
)
_GPT2_KEYS: Names = MappingProxyType(
    {
        "layers": "n_layer",
        "hidden": "n_embd",
        "heads": "n_head",
        "ffn": "n_inner",
        "vocab": "vocab_size",
        "context": "n_positions",
        "eps": "layer_norm_epsilon",
        "activation": "activation_function",
    }
)
_GGUF_KEYS: Names = MappingProxyType(
    {
        "layers": "block_count",
        "hidden": "embedding_length",
        "heads": "attention.head_count",
        "kv_heads": "attention.head_count_kv",
        "head_size": "attention.key_length",
        "ffn": "feed_forward_length",
        "context": "context_length",
        "window": "attention.sliding_window",
    }
)

# What tensors are called. "{}" is the layer; ".weight" and ".bias" follow.
GGUF_TENSORS: Names = MappingProxyType(
    {
        "embedding": "token_embd",
        "positions": "position_embd",
        "final_norm": "output_norm",
        "output": "output",
        "attention_norm": "blk.{}.attn_norm",
        "q": "blk.{}.attn_q",
        "k": "blk.{}.attn_k",
        "v": "blk.{}.attn_v",
        "qkv": "blk.{}.attn_qkv",
        "o": "blk.{}.attn_output",
        "q_norm": "blk.{}.attn_q_norm",
        "k_norm": "blk.{}.attn_k_norm",
        "attention_post_norm": "blk.{}.post_attention_norm",
        "ffn_norm": "blk.{}.ffn_norm",
        "gate": "blk.{}.ffn_gate",
        "up": "blk.{}.ffn_up",
        "down": "blk.{}.ffn_down",
        "ffn_post_norm": "blk.{}.post_ffw_norm",
    }
)
_LLAMA_TENSORS: Names = MappingProxyType(
    {
        "embedding": "model.embed_tokens",
        "final_norm": "model.norm",
        "output": "lm_head",
        "attention_norm": "model.layers.{}.input_layernorm",
        "q": "model.layers.{}.self_attn.q_proj",
        "k": "model.layers.{}.self_attn.k_proj",
        "v": "model.layers.{}.self_attn.v_proj",
        "o": "model.layers.{}.self_attn.o_proj",
        "ffn_norm": "model.layers.{}.post_attention_layernorm",
        "gate": "model.layers.{}.mlp.gate_proj",
        "up": "model.layers.{}.mlp.up_proj",
        "down": "model.layers.{}.mlp.down_proj",
    }
)
_QWEN3_TENSORS: Names = MappingProxyType(
    {
        **_LLAMA_TENSORS,
        "q_norm": "model.layers.{}.self_attn.q_norm",
        "k_norm": "model.layers.{}.self_attn.k_norm",
    }
)
_GEMMA2_TENSORS: Names = MappingProxyType(
    {
        **_LLAMA_TENSORS,
        # Gemma's "post" norms are on the branch; Llama's norm of that name is before the feed-forward part.
        "attention_post_norm": "model.layers.{}.post_attention_layernorm",
        "ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
        "ffn_post_norm": "model.layers.{}.post_feedforward_layernorm",
    }
)
_GPT2_TENSORS: Names = MappingProxyType(
    {
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "output": "lm_head",
        "attention_norm": "transformer.h.{}.ln_1",
        "qkv": "transformer.h.{}.attn.c_attn",
        "o": "transformer.h.{}.attn.c_proj",
        "ffn_norm": "transformer.h.{}.ln_2",
        "up": "transformer.h.{}.mlp.c_fc",
        "down": "transformer.h.{}.mlp.c_proj",
    }
)


@dataclass(frozen=True, slots=True)
class Family:
    """One row. `name` is config.json's model_type and GGUF's architecture (which writes mistral as llama)."""

    name: str
    tensors: Names = field(default_factory=lambda: _LLAMA_TENSORS)  # in safetensors
    config_keys: Names = field(default_factory=lambda: _CONFIG_KEYS)
    norm: str = "rms"  # "layer" has biases
    activation: str = "silu"  # where the file does not say
    gated: bool = True
    tied: bool = False  # where config.json does not say
    learned_positions: bool = False
    biases: frozenset[str] = frozenset()  # linears that always have one; others have one when the file does
    windows: str = "none"  # "all" layers, every "even" one, or from max_window_layers on: "late"
    soft_caps: bool = False
    scaled_embedding: bool = False  # times sqrt(hidden)
    norm_offset: float = 0.0  # added to norm weights of safetensors; GGUF files have it added
    transposed: bool = False  # linears of safetensors are (inputs, outputs)
    fused_qkv: bool = False
    interleaved_in_gguf: bool = False  # q and k rows are ordered for rope on neighbours (i, i + 1)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        row.name: row
        for row in (
            Family("llama", interleaved_in_gguf=True),
            Family("mistral", windows="all"),
            Family("qwen2", windows="late", biases=frozenset("qkv")),
            Family("qwen3", tensors=_QWEN3_TENSORS, windows="late"),
            Family(
                "gemma2",
                tensors=_GEMMA2_TENSORS,
                config_keys=MappingProxyType({**_CONFIG_KEYS, "activation": "hidden_activation"}),
                activation="gelu_pytorch_tanh",
                tied=True,
                windows="even",
                soft_caps=True,
                scaled_embedding=True,
                norm_offset=1.0,
            ),
            Family(
                "gpt2",
                tensors=_GPT2_TENSORS,
                config_keys=_GPT2_KEYS,
                norm="layer",
                activation="gelu_new",
                gated=False,
                tied=True,
                learned_positions=True,
                biases=frozenset(("qkv", "o", "up", "down")),
                transposed=True,
                fused_qkv=True,
            ),
        )
    }
)
_ACTIVATIONS: Names = MappingProxyType(
    {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
)
_GEMMA2_27B_LAYERS = 46


@dataclass(frozen=True, slots=True)
class Description:
    """A file's settings, understood: the row, the shape, and whether the output matrix is the embedding."""

    family: Family
    spec: ModelSpec
    tied: bool


def describe_config(config: Fields) -> Description:
    """From config.json. Raises BadModelFile (an absurd size) or UnsupportedModel (an unknown variation)."""
    family = _row(config, config.text("model_type", ""))
    keys = family.config_keys
    head_size, hidden, heads = _head_size(config, keys)
    scale = head_size**-0.5
    if family.soft_caps:
        scale = config.number("query_pre_attn_scalar", 1e-3, 1e6, float(head_size)) ** -0.5
    if config.flag("scale_attn_by_inverse_layer_idx", False) or not config.flag("scale_attn_weights", True):
        raise UnsupportedModel(
            f"{config.source}: attention scores scaled by layer, or not at all; allowed: by head size"
        )
    context = config.integer(keys["context"], 1, CONTEXT_MAX)
    layers = config.integer(keys["layers"], 1, LAYERS_MAX)
    spec = ModelSpec(
        family=family.name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(config, keys, heads),
        head_size=head_size,
        ffn_size=config.integer(keys["ffn"], 1, FFN_MAX, None if family.gated else 4 * hidden),
        vocab_size=config.integer(keys["vocab"], 1, VOCAB_MAX),
        context_length=context,
        attention_scale=scale,
        norm=family.norm,
        norm_eps=config.number(keys["eps"], 0.0, 1.0, 1e-6 if family.norm == "rms" else 1e-5),
        activation=_activation(config, config.text(keys["activation"], family.activation)),
        gated=family.gated,
        rope=None if family.learned_positions else rope_from_config(config, head_size),
        windows=_windows_from_config(family, config, layers, context),
        attention_soft_cap=config.optional_number("attn_logit_softcapping", 1e-3, 1e6)
        if family.soft_caps
        else None,
        logit_soft_cap=config.optional_number("final_logit_softcapping", 1e-3, 1e6)
        if family.soft_caps
        else None,
        embedding_scale=math.sqrt(hidden) if family.scaled_embedding else 1.0,
    )
    return Description(family, spec, config.flag("tie_word_embeddings", family.tied))


def describe_gguf(
    metadata: Fields, vocab_size: int, rope_factors: tuple[float, ...] | None, has_output: bool
) -> Description:
    """From GGUF metadata and what tensors tell: rows of the embedding, rope_freqs.weight, an output."""
    arch = metadata.text("general.architecture", "")
    family = _row(metadata, arch)
    keys = {name: f"{arch}.{key}" for name, key in _GGUF_KEYS.items()}
    head_size, hidden, heads = _head_size(metadata, keys)
    if metadata.integer(f"{arch}.attention.value_length", 1, HEAD_SIZE_MAX, head_size) != head_size:
        raise UnsupportedModel(f"{metadata.source}: keys and values of different sizes; allowed: equal ones")
    layers = metadata.integer(keys["layers"], 1, LAYERS_MAX)
    # The format has no key for Gemma 2's query scalar; only the 27B differs from its head size.
    scalar = hidden / heads if family.soft_caps and layers == _GEMMA2_27B_LAYERS else head_size
    eps_key = f"{arch}.attention.layer_norm{'_rms' if family.norm == 'rms' else ''}_epsilon"
    context = metadata.integer(keys["context"], 1, CONTEXT_MAX)
    window = metadata.integer(keys["window"], 0, CONTEXT_MAX, 4096 if family.windows == "even" else 0)
    rope: RopeSpec | None = None
    if not family.learned_positions:
        rope = rope_from_gguf(metadata, arch, head_size, rope_factors)
    spec = ModelSpec(
        family=family.name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(metadata, keys, heads),
        head_size=head_size,
        ffn_size=metadata.integer(keys["ffn"], 1, FFN_MAX),
        vocab_size=vocab_size,
        context_length=context,
        attention_scale=scalar**-0.5,
        norm=family.norm,
        norm_eps=metadata.number(eps_key, 0.0, 1.0),
        activation=_activation(metadata, family.activation),
        gated=family.gated,
        rope=rope,
        windows=_windows(family, window, layers, context, late_from=layers),
        attention_soft_cap=_gguf_cap(family, metadata, "attn", 50.0),
        logit_soft_cap=_gguf_cap(family, metadata, "final", 30.0),
        embedding_scale=math.sqrt(hidden) if family.scaled_embedding else 1.0,
    )
    return Description(family, spec, not has_output)


def _row(fields: Fields, name: str) -> Family:
    family = FAMILIES.get(name)
    if family is None:
        raise UnsupportedModel(f"{fields.source}: family {name!r:.60}; allowed: {', '.join(FAMILIES)}")
    return family


def _activation(fields: Fields, name: str) -> str:
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"{fields.source}: activation {name!r:.60}; allowed: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _head_size(fields: Fields, keys: Names) -> tuple[int, int, int]:
    """Head size, hidden size, heads. The head size is hidden / heads where the file does not say."""
    hidden = fields.integer(keys["hidden"], 1, HIDDEN_MAX)
    heads = fields.integer(keys["heads"], 1, HEADS_MAX)
    key = keys.get("head_size", "")
    if not fields.has(key) and hidden % heads:
        raise fields.bad(keys["heads"], f"a divisor of the hidden size {hidden:,}")
    head_size = fields.integer(key, 1, HEAD_SIZE_MAX, hidden // heads)
    if head_size % 2 or head_size > HEAD_SIZE_MAX:
        raise UnsupportedModel(
            f"{fields.source}: heads of {head_size:,}; allowed: an even size up to {HEAD_SIZE_MAX:,}"
        )
    return head_size, hidden, heads


def _kv_heads(fields: Fields, keys: Names, heads: int) -> int:
    key = keys.get("kv_heads", "")
    kv_heads = fields.integer(key, 1, HEADS_MAX, heads)
    if heads % kv_heads:
        raise fields.bad(key, f"a divisor of the {heads} query heads")
    return kv_heads


def _windows_from_config(family: Family, config: Fields, layers: int, context: int) -> tuple[int | None, ...]:
    window = config.integer("sliding_window", 0, CONTEXT_MAX, 0)
    if family.windows == "none" or (
        family.windows == "late" and not config.flag("use_sliding_window", False)
    ):
        return ()
    kinds = config.values.get("layer_types")
    if kinds is None or window == 0:
        late_from = config.integer("max_window_layers", 0, LAYERS_MAX, layers)
        return _windows(family, window, layers, context, late_from)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.bad("layer_types", f"a list of {layers} kinds")
    if not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise UnsupportedModel(
            f"{config.source}: layer_types other than full_attention and sliding_attention"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _windows(
    family: Family, window: int, layers: int, context: int, late_from: int
) -> tuple[int | None, ...]:
    """One entry a layer; () when no layer has a window that the context could outgrow."""
    if window == 0 or window >= context:
        return ()
    rules = {
        "none": [False] * layers,
        "all": [True] * layers,
        "even": [layer % 2 == 0 for layer in range(layers)],
        "late": [layer >= late_from for layer in range(layers)],
    }
    windowed = rules[family.windows]
    return tuple(window if here else None for here in windowed) if any(windowed) else ()


def _gguf_cap(family: Family, metadata: Fields, name: str, default: float) -> float | None:
    if not family.soft_caps:
        return None
    return metadata.number(f"{family.name}.{name}_logit_softcapping", 1e-3, 1e6, default)
