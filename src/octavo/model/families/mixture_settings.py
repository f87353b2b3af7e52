"""A file's settings of experts: their number, the router, their width, and the layers that have them.

    config.json     keys that each family's row names          GGUF     ARCH.expert_*

It completes a description whose row has a mixture, and returns any other unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from octavo.errors import UnsupportedModel, shown
from octavo.fields import Fields
from octavo.kernels.contract import Routing
from octavo.model.families.row import Description, MixtureFacts
from octavo.model.families.sizes import EXPERTS_MAX, FFN_MAX, LAYERS_MAX

# GGUF's numbers of the scoring functions of routers.
_GATINGS: Mapping[str, int] = MappingProxyType({"softmax": 1, "sigmoid": 2, "softmax_of_chosen": 3})


def with_experts_of_config(config: Fields, description: Description) -> Description:
    """Raises BadModelFile (an absurd number), UnsupportedModel (a variation of the gate that no op has)."""
    facts = description.family.mixture
    if facts is None:
        return description
    _require_constants(config, facts)
    count_key = next((key for key in facts.count_keys if config.has(key)), facts.count_keys[0])
    count = config.integer(count_key, 1, EXPERTS_MAX, facts.usual_count)
    top_k = config.integer("num_experts_per_tok", 1, count)
    normalised = facts.routing.normalised
    if facts.normalised_key:
        normalised = config.flag(facts.normalised_key, False)
    routing = dataclasses.replace(facts.routing, top_k=top_k, normalised=normalised)
    mixed = _mixed_by_config(config, facts, description.spec.num_layers)
    return _completed(description, facts, routing, count, config.integer(facts.ffn_key, 1, FFN_MAX), mixed)


def with_experts_of_gguf(metadata: Fields, arch: str, description: Description) -> Description:
    """As `with_experts_of_config`, from GGUF metadata."""
    facts, spec = description.family.mixture, description.spec
    if facts is None:
        return description
    count = metadata.integer(f"{arch}.expert_count", 1, EXPERTS_MAX)
    top_k = metadata.integer(f"{arch}.expert_used_count", 1, count)
    normalised = metadata.flag(f"{arch}.expert_weights_norm", facts.routing.normalised)
    routing = dataclasses.replace(facts.routing, top_k=top_k, normalised=normalised)
    _require_plain_gguf(metadata, arch, routing)
    ffn = metadata.integer(f"{arch}.expert_feed_forward_length", 1, FFN_MAX, spec.ffn_size)
    step = metadata.integer(f"{arch}.interleave_moe_layer_step", 1, LAYERS_MAX, 1) if facts.step_key else 1
    return _completed(description, facts, routing, count, ffn, _every(step, spec.num_layers))


def _completed(
    description: Description,
    facts: MixtureFacts,
    routing: Routing,
    count: int,
    ffn: int,
    mixed: Sequence[bool],
) -> Description:
    spec = dataclasses.replace(
        description.spec,
        routing=routing,
        num_experts=count,
        expert_ffn_size=ffn,
        activation=facts.activation or description.spec.activation,
    )
    return dataclasses.replace(description, spec=spec, mixed_layers=tuple(mixed))


def _mixed_by_config(config: Fields, facts: MixtureFacts, layers: int) -> Sequence[bool]:
    """Which layers have experts: those listed, or every n-th except those listed as dense."""
    if facts.mixed_key and config.has(facts.mixed_key):
        listed = _layers(config, facts.mixed_key, layers)
        return [layer in listed for layer in range(layers)]
    step = config.integer(facts.step_key, 1, LAYERS_MAX, 1) if facts.step_key else 1
    dense = _layers(config, facts.dense_key, layers) if facts.dense_key else frozenset()
    return [mixed and layer not in dense for layer, mixed in enumerate(_every(step, layers))]


def _every(step: int, layers: int) -> Sequence[bool]:
    return [(layer + 1) % step == 0 for layer in range(layers)]


def _layers(config: Fields, key: str, layers: int) -> frozenset[int]:
    """A list of layers' numbers; none when it is absent."""
    values = config.values.get(key)
    if values is None:
        return frozenset()
    if not isinstance(values, list) or len(values) > layers:
        raise config.bad(key, f"a list of up to {layers} layers")
    if not all(isinstance(value, int) and 0 <= value < layers for value in values):
        raise config.bad(key, f"layers from 0 to {layers - 1}")
    return frozenset(values)


def _require_constants(config: Fields, facts: MixtureFacts) -> None:
    """The file's constants must equal those built into the gate's op."""
    for key, allowed in facts.constants.items():
        if config.has(key) and config.number(key, -1e6, 1e6) != allowed:
            value = shown(config.values[key])
            raise UnsupportedModel(f"{config.source}: {key} is {value}; allowed: {allowed:g}")


def _require_plain_gguf(metadata: Fields, arch: str, routing: Routing) -> None:
    """Variations of other architectures: groups of experts, scaled weights, dense layers first."""
    scale = metadata.number(f"{arch}.expert_weights_scale", 0.0, 1e6, 1.0)
    if scale not in (0.0, 1.0):  # 0: not written
        raise UnsupportedModel(f"{metadata.source}: {arch}.expert_weights_scale is {scale:g}; allowed: 1")
    gating = _GATINGS[routing.scoring]
    given = metadata.integer(f"{arch}.expert_gating_func", 0, 1 << 8, gating)
    if given not in (0, gating):
        raise UnsupportedModel(
            f"{metadata.source}: {arch}.expert_gating_func is {given}; allowed: {gating} ({routing.scoring})"
        )
    for key, most in (("expert_group_count", 1), ("leading_dense_block_count", 0)):
        if metadata.integer(f"{arch}.{key}", 0, 1 << 16, 0) > most:
            raise UnsupportedModel(f"{metadata.source}: {arch}.{key} is not supported; allowed: {most}")
