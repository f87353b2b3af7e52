"""From config.json to a description."""

from __future__ import annotations

import math

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.row import Description, Family
from octavo.model.families.scaling import rope_from_config
from octavo.model.families.sizes import (
    CONTEXT_MAX,
    FFN_MAX,
    LAYERS_MAX,
    VOCAB_MAX,
    activation_of,
    heads_of,
    windows_of,
)
from octavo.model.families.table import row_of_config
from octavo.model.spec import ModelSpec


def describe_config(config: Fields) -> Description:
    """From config.json. Raises BadModelFile (an absurd size) or UnsupportedModel (an unknown variation)."""
    family = row_of_config(config)
    keys = family.config_keys
    sizes = heads_of(config, keys)
    scale = sizes.head_size**-0.5
    if family.soft_caps:
        scale = config.number("query_pre_attn_scalar", 1e-3, 1e6, float(sizes.head_size)) ** -0.5
    if config.flag("scale_attn_by_inverse_layer_idx", False) or not config.flag("scale_attn_weights", True):
        raise UnsupportedModel(
            f"{config.source}: attention scores scaled by layer, or not at all; allowed: by head size"
        )
    context = config.integer(keys["context"], 1, CONTEXT_MAX)
    layers = config.integer(keys["layers"], 1, LAYERS_MAX)
    spec = ModelSpec(
        family=family.name,
        num_layers=layers,
        hidden_size=sizes.hidden,
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_size=sizes.head_size,
        ffn_size=config.integer(keys["ffn"], 1, FFN_MAX, None if family.gated else 4 * sizes.hidden),
        vocab_size=config.integer(keys["vocab"], 1, VOCAB_MAX),
        context_length=context,
        attention_scale=scale,
        norm=family.norm,
        norm_eps=config.number(keys["eps"], 0.0, 1.0, 1e-6 if family.norm == "rms" else 1e-5),
        activation=activation_of(config, config.text(keys["activation"], family.activation)),
        gated=family.gated,
        ropes=() if family.learned_positions else (rope_from_config(config, sizes.head_size),) * layers,
        windows=_windows_from_config(family, config, layers, context),
        attention_soft_cap=config.optional_number("attn_logit_softcapping", 1e-3, 1e6)
        if family.soft_caps
        else None,
        logit_soft_cap=config.optional_number("final_logit_softcapping", 1e-3, 1e6)
        if family.soft_caps
        else None,
        embedding_scale=math.sqrt(sizes.hidden) if family.scaled_embedding else 1.0,
    )
    return Description(family, spec, config.flag("tie_word_embeddings", family.tied))


def _windows_from_config(family: Family, config: Fields, layers: int, context: int) -> tuple[int | None, ...]:
    window = config.integer("sliding_window", 0, CONTEXT_MAX, 0)
    if family.windows == "none" or (
        family.windows == "late" and not config.flag("use_sliding_window", False)
    ):
        return ()
    kinds = config.values.get("layer_types")
    if kinds is None or window == 0:
        late_from = config.integer("max_window_layers", 0, LAYERS_MAX, layers)
        return windows_of(family, window, layers, context, late_from)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.bad("layer_types", f"a list of {layers} kinds")
    if not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise UnsupportedModel(
            f"{config.source}: layer_types other than full_attention and sliding_attention"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
