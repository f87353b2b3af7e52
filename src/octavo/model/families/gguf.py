"""From GGUF metadata to a description."""

from __future__ import annotations

import math

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.chunked import with_chunks_of_gguf
from octavo.model.families.config import MULTIPLIER_MAX
from octavo.model.families.layers import rope_layers_of_gguf, window_of, windowed_in_gguf, windows_of
from octavo.model.families.mixture_settings import with_experts_of_gguf
from octavo.model.families.names import GGUF_KEYS
from octavo.model.families.refusals import refuse_gguf
from octavo.model.families.row import Description, Family
from octavo.model.families.scaling import RopeTensors, rope_scaling_of_gguf
from octavo.model.families.sizes import (
    CONTEXT_MAX,
    FFN_MAX,
    HEAD_SIZE_MAX,
    LAYERS_MAX,
    Heads,
    activation_of,
    heads_of,
)
from octavo.model.families.table import row_of_gguf
from octavo.model.spec import ModelSpec


def describe_gguf(metadata: Fields, vocab_size: int, ropes: RopeTensors, has_output: bool) -> Description:
    """From GGUF metadata and facts of the tensors: rows of the embedding, factors of rope, an output."""
    arch = metadata.text("general.architecture", "")
    family = row_of_gguf(metadata)
    metadata = metadata.with_defaults({f"{arch}.{key}": value for key, value in family.gguf_defaults.items()})
    refuse_gguf(family, metadata, arch)
    keys = {name: f"{arch}.{key}" for name, key in GGUF_KEYS.items()}
    sizes = heads_of(metadata, keys)
    if (
        metadata.integer(f"{arch}.attention.value_length", 1, HEAD_SIZE_MAX, sizes.head_size)
        != sizes.head_size
    ):
        raise UnsupportedModel(f"{metadata.source}: keys and values of different sizes; allowed: equal ones")
    layers = metadata.integer(keys["layers"], 1, LAYERS_MAX)
    context = metadata.integer(keys["context"], 1, CONTEXT_MAX)
    has_rope = rope_layers_of_gguf(family, layers)
    window = window_of(family, metadata, keys["window"])
    windowed = windowed_in_gguf(family, metadata, arch, has_rope, window)
    rope = rope_scaling_of_gguf(family, metadata, arch, sizes.head_size, has_rope, windowed, context, ropes)
    eps_key = f"{arch}.attention.layer_norm{'_rms' if family.norm == 'rms' else ''}_epsilon"
    spec = ModelSpec(
        family=family.name,
        num_layers=layers,
        hidden_size=sizes.hidden,
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_size=sizes.head_size,
        ffn_size=metadata.integer(keys["ffn"], 1, FFN_MAX),
        vocab_size=vocab_size,
        context_length=context,
        attention_scale=_attention_scale(family, metadata, arch, sizes, layers),
        norm=family.norm,
        norm_eps=metadata.number(eps_key, 0.0, 1.0),
        activation=activation_of(metadata, family.activation),
        gated=family.gated,
        ropes=rope.ropes,
        temperatures=rope.temperatures,
        windows=windows_of(window, windowed),
        attention_soft_cap=_cap(family, metadata, f"{arch}.attn_logit_softcapping"),
        logit_soft_cap=_cap(family, metadata, f"{arch}.final_logit_softcapping"),
        embedding_scale=math.sqrt(sizes.hidden)
        if family.scaled_embedding
        else _multiplier(family, metadata, f"{arch}.embedding_scale"),
        residual_scale=_multiplier(family, metadata, f"{arch}.residual_scale"),
        logit_scale=1.0 / _multiplier(family, metadata, f"{arch}.logit_scale"),
        parallel=metadata.flag(f"{arch}.use_parallel_residual", True) if family.parallel else False,
    )
    description = Description(family, spec, not has_output, longest_context=rope.longest_context)
    return with_chunks_of_gguf(with_experts_of_gguf(metadata, arch, description))


def _attention_scale(family: Family, metadata: Fields, arch: str, sizes: Heads, layers: int) -> float:
    """The factor of scores."""
    own = metadata.number(f"{arch}.attention.scale", 0.0, MULTIPLIER_MAX, 0.0) if family.multipliers else 0.0
    # The format has no key for Gemma's query scalar; only one size of each generation has another.
    usual = sizes.hidden / sizes.heads if layers == family.wide_scalar_layers else sizes.head_size
    return own or usual**-0.5


def _multiplier(family: Family, metadata: Fields, key: str) -> float:
    if not family.multipliers:
        return 1.0
    return metadata.number(key, 0.0, MULTIPLIER_MAX, 0.0) or 1.0  # 0 means none


def _cap(family: Family, metadata: Fields, key: str) -> float | None:
    return (metadata.number(key, 0.0, 1e6, 0.0) or None) if family.soft_caps else None
