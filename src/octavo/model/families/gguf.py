"""From GGUF metadata to a description."""

from __future__ import annotations

import math

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.names import GGUF_KEYS
from octavo.model.families.row import Description, Family
from octavo.model.families.scaling import rope_from_gguf
from octavo.model.families.sizes import (
    CONTEXT_MAX,
    FFN_MAX,
    HEAD_SIZE_MAX,
    LAYERS_MAX,
    activation_of,
    heads_of,
    windows_of,
)
from octavo.model.families.table import row_of_gguf
from octavo.model.rope import RopeSpec
from octavo.model.spec import ModelSpec

_GEMMA2_27B_LAYERS = 46


def describe_gguf(
    metadata: Fields, vocab_size: int, rope_factors: tuple[float, ...] | None, has_output: bool
) -> Description:
    """From GGUF metadata and what tensors tell: rows of the embedding, rope_freqs.weight, an output."""
    arch = metadata.text("general.architecture", "")
    family = row_of_gguf(metadata)
    keys = {name: f"{arch}.{key}" for name, key in GGUF_KEYS.items()}
    sizes = heads_of(metadata, keys)
    if (
        metadata.integer(f"{arch}.attention.value_length", 1, HEAD_SIZE_MAX, sizes.head_size)
        != sizes.head_size
    ):
        raise UnsupportedModel(f"{metadata.source}: keys and values of different sizes; allowed: equal ones")
    layers = metadata.integer(keys["layers"], 1, LAYERS_MAX)
    # The format has no key for Gemma 2's query scalar; only the 27B differs from its head size.
    scalar = (
        sizes.hidden / sizes.heads if family.soft_caps and layers == _GEMMA2_27B_LAYERS else sizes.head_size
    )
    eps_key = f"{arch}.attention.layer_norm{'_rms' if family.norm == 'rms' else ''}_epsilon"
    context = metadata.integer(keys["context"], 1, CONTEXT_MAX)
    window = metadata.integer(keys["window"], 0, CONTEXT_MAX, 4096 if family.windows == "even" else 0)
    ropes: tuple[RopeSpec | None, ...] = ()
    if not family.learned_positions:
        ropes = (rope_from_gguf(metadata, arch, sizes.head_size, rope_factors),) * layers
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
        attention_scale=scalar**-0.5,
        norm=family.norm,
        norm_eps=metadata.number(eps_key, 0.0, 1.0),
        activation=activation_of(metadata, family.activation),
        gated=family.gated,
        ropes=ropes,
        windows=windows_of(family, window, layers, context, late_from=layers),
        attention_soft_cap=_cap(family, metadata, "attn", 50.0),
        logit_soft_cap=_cap(family, metadata, "final", 30.0),
        embedding_scale=math.sqrt(sizes.hidden) if family.scaled_embedding else 1.0,
    )
    return Description(family, spec, not has_output)


def _cap(family: Family, metadata: Fields, name: str, default: float) -> float | None:
    if not family.soft_caps:
        return None
    return metadata.number(f"{family.name}.{name}_logit_softcapping", 1e-3, 1e6, default)
