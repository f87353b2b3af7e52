"""Settings that change a model's answers, and that only some families' rows read.

A key that no row reads would be ignored, and the model would give wrong answers silently: it is refused by
name, unless its value changes nothing. Keys that no answer depends on (training, generation) are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from octavo.errors import UnsupportedModel, shown
from octavo.fields import Fields
from octavo.model.families.row import Family

Harmless = Sequence[object]  # values that change nothing; null and absent ones never do


def _caps(family: Family) -> bool:
    return family.soft_caps


def _multipliers(family: Family) -> bool:
    return family.multipliers


def _mixture(family: Family) -> bool:
    return family.mixture is not None


def _ropeless(family: Family) -> bool:
    return family.ropeless_every > 0


def _chunked(family: Family) -> bool:
    return family.attends_in_chunks


def _nothing(family: Family) -> bool:
    return False


# By key: which families read it, and its allowed values in others.
_OF_CONFIG: Mapping[str, tuple[Callable[[Family], bool], Harmless]] = MappingProxyType(
    {
        "attn_logit_softcapping": (_caps, ()),
        "final_logit_softcapping": (_caps, ()),
        "query_pre_attn_scalar": (_caps, ()),
        "embedding_multiplier": (_multipliers, (1,)),
        "attention_multiplier": (_multipliers, ()),
        "residual_multiplier": (_multipliers, (1,)),
        "logits_scaling": (_multipliers, (1,)),
        "logit_scale": (_nothing, (1,)),
        "no_rope_layers": (_ropeless, ([],)),
        "num_experts": (_mixture, (0, 1)),
        "num_local_experts": (_mixture, (0, 1)),
        "n_routed_experts": (_mixture, (0,)),
        "clip_qkv": (_nothing, ()),
        "use_qkv_bias": (_nothing, (False,)),
        "qk_layernorm": (_nothing, (False,)),
        "use_qk_norm": (_chunked, (False,)),
        "alibi": (_nothing, (False,)),
        "use_alibi": (_nothing, (False,)),
        "use_bidirectional_attention": (_nothing, (False,)),
        "add_cross_attention": (_nothing, (False,)),
        "scale_attn_by_inverse_layer_idx": (_nothing, (False,)),
        "scale_attn_weights": (_nothing, (True,)),
        # OPT's variants
        "do_layer_norm_before": (_nothing, (True,)),
        "_remove_final_layer_norm": (_nothing, (False,)),
        "layer_norm_elementwise_affine": (_nothing, (True,)),
    }
)
# GGUF keys, after the name of the architecture.
_OF_GGUF: Mapping[str, tuple[Callable[[Family], bool], Harmless]] = MappingProxyType(
    {
        "attn_logit_softcapping": (_caps, (0,)),
        "final_logit_softcapping": (_caps, (0,)),
        "embedding_scale": (_multipliers, (0, 1)),
        "residual_scale": (_multipliers, (0, 1)),
        "logit_scale": (_multipliers, (0, 1)),
        "attention.scale": (_multipliers, (0,)),
        "attention.clamp_kqv": (_nothing, (0,)),
        "attention.max_alibi_bias": (_nothing, (0,)),
        "attention.causal": (_nothing, (True,)),
        "attention.temperature_scale": (lambda family: family.temperature, (0,)),
        "rope.dimension_sections": (_nothing, ()),
        "rope.scaling.alpha": (_nothing, (0, 1)),
    }
)


def refuse_config(family: Family, config: Fields) -> None:
    """Raise UnsupportedModel for the first setting that this family's row does not read."""
    for key, (understands, harmless) in _OF_CONFIG.items():
        _refuse(family, config, key, understands, harmless)
    width = config.values.get("word_embed_proj_dim")
    if width is not None and width != config.values.get("hidden_size"):
        raise UnsupportedModel(f"{config.source}: word_embed_proj_dim is not hidden_size; allowed: the same")


def refuse_gguf(family: Family, metadata: Fields, arch: str) -> None:
    """As `refuse_config`, for GGUF metadata."""
    for key, (understands, harmless) in _OF_GGUF.items():
        _refuse(family, metadata, f"{arch}.{key}", understands, harmless)


def _refuse(
    family: Family, fields: Fields, key: str, understands: Callable[[Family], bool], harmless: Harmless
) -> None:
    value = fields.values.get(key)
    if value is None or understands(family) or any(_same(value, allowed) for allowed in harmless):
        return
    allowed = " or ".join(["none", *map(str, harmless)])
    raise UnsupportedModel(
        f"{fields.source}: {key} is {shown(value)}, which family {family.name} does not have;"
        f" allowed: {allowed}"
    )


def _same(value: object, allowed: object) -> bool:
    return type(value) in (bool, int, float, list) and value == allowed
