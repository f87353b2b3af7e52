"""From config.json to a description."""

from __future__ import annotations

import math

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.chunked import with_chunks_of_config
from octavo.model.families.layers import rope_layers_of_config, window_of, windowed_in_config, windows_of
from octavo.model.families.mixture_settings import with_experts_of_config
from octavo.model.families.refusals import refuse_config
from octavo.model.families.row import Description, Family
from octavo.model.families.scaling import rope_scaling_of_config
from octavo.model.families.sizes import (
    CONTEXT_MAX,
    FFN_MAX,
    LAYERS_MAX,
    VOCAB_MAX,
    activation_of,
    heads_of,
)
from octavo.model.families.table import row_of_config, text_part
from octavo.model.spec import ModelSpec

MULTIPLIER_MIN, MULTIPLIER_MAX = 1e-6, 1e6
_TANH_GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh")


def describe_config(config: Fields) -> Description:
    """From config.json. Raises BadModelFile (an absurd size) or UnsupportedModel (an unknown variation)."""
    part = text_part(config)
    is_part = part is not config
    family = row_of_config(part)
    config = part.with_defaults(family.config_defaults)
    refuse_config(family, config)
    keys = family.config_keys
    sizes = heads_of(config, keys)
    layers = config.integer(keys["layers"], 1, LAYERS_MAX)
    context = config.integer(keys["context"], 1, CONTEXT_MAX)
    has_rope = rope_layers_of_config(family, config, layers)
    window = window_of(family, config, "sliding_window")
    windowed = windowed_in_config(family, config, has_rope, window)
    scaling = rope_scaling_of_config(family, config, sizes.head_size, has_rope, windowed, context)
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
        attention_scale=_attention_scale(family, config, sizes.head_size),
        norm=family.norm,
        norm_eps=config.number(keys["eps"], 0.0, 1.0, 1e-6 if family.norm == "rms" else 1e-5),
        activation=_activation(family, config),
        gated=family.gated,
        ropes=scaling.ropes,
        temperatures=scaling.temperatures,
        windows=windows_of(window, windowed),
        attention_soft_cap=config.optional_number("attn_logit_softcapping", 1e-3, 1e6),
        logit_soft_cap=config.optional_number("final_logit_softcapping", 1e-3, 1e6),
        embedding_scale=math.sqrt(sizes.hidden)
        if family.scaled_embedding
        else _multiplier(family, config, "embedding_multiplier"),
        residual_scale=_multiplier(family, config, "residual_multiplier"),
        logit_scale=1.0 / _multiplier(family, config, "logits_scaling"),
        parallel=config.flag("use_parallel_residual", True) if family.parallel else False,
    )
    description = Description(
        family,
        spec,
        config.flag("tie_word_embeddings", family.tied),
        longest_context=scaling.longest_context,
        is_part=is_part,
    )
    return with_chunks_of_config(config, with_experts_of_config(config, description))


def _attention_scale(family: Family, config: Fields, head_size: int) -> float:
    """The factor of scores."""
    if family.multipliers:
        return config.number("attention_multiplier", MULTIPLIER_MIN, MULTIPLIER_MAX, 1.0)
    size = float(head_size)
    if family.soft_caps:
        size = config.number("query_pre_attn_scalar", 1e-3, 1e6, size)
    scale: float = size**-0.5
    return scale


def _multiplier(family: Family, config: Fields, key: str) -> float:
    return config.number(key, MULTIPLIER_MIN, MULTIPLIER_MAX, 1.0) if family.multipliers else 1.0


def _activation(family: Family, config: Fields) -> str:
    key = family.config_keys["activation"]
    older = config.text("hidden_act", family.activation)
    # Gemma's files name it twice; "gelu" under the older key means the tanh approximation.
    if key == "hidden_activation" and older not in _TANH_GELUS:
        raise UnsupportedModel(
            f"{config.source}: hidden_act is {older!r:.60} next to {key}; allowed: {_TANH_GELUS}"
        )
    return activation_of(config, config.text(key, family.activation))
