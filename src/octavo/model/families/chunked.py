"""Llama 4's variations besides its experts: chunked attention, norms after rope, temperatures.

    layers with rope        attend to their own chunk of positions; queries and keys are normed after rope
    layers without rope     attend to all positions; queries are scaled by their position

Chunked attention is not implemented: within the first chunk it equals full causal attention, so the context
ends there, and `context_note` says why. It completes a description whose row attends in chunks.
"""

from __future__ import annotations

import dataclasses

from octavo.fields import Fields
from octavo.model.families.row import Description
from octavo.model.families.sizes import CONTEXT_MAX
from octavo.model.rope import Temperature

_SCALE, _SPAN = 0.1, 8192  # defaults of temperatures
# GGUF has no keys for these: one size has no norms of queries and keys, and the chunk size is as published.
_UNNORMED_EXPERTS, _GGUF_CHUNK = 128, 8192


def with_chunks_of_config(config: Fields, description: Description) -> Description:
    """Read the chunk length from config.json. Raises BadModelFile for an absurd number."""
    if not description.family.attends_in_chunks:
        return description
    tuned = config.values.get("attn_temperature_tuning", True)  # some files have a number for true
    temperature = None
    if tuned:
        scale = config.number("attn_scale", 0.0, 1e3, _SCALE)
        temperature = Temperature(scale, config.integer("floor_scale", 1, CONTEXT_MAX, _SPAN), first=1)
    chunk = 0
    if "attention_chunk_size" not in config.values or config.has("attention_chunk_size"):
        chunk = config.integer("attention_chunk_size", 1, CONTEXT_MAX, _GGUF_CHUNK)
    return _completed(description, temperature, chunk, config.flag("use_qk_norm", True))


def with_chunks_of_gguf(description: Description) -> Description:
    """Set the chunk length that the architecture implies."""
    if not description.family.attends_in_chunks:
        return description
    is_normed = description.spec.num_experts != _UNNORMED_EXPERTS
    return _completed(description, Temperature(_SCALE, _SPAN, first=1), _GGUF_CHUNK, is_normed)


def _completed(
    description: Description, temperature: Temperature | None, chunk: int, is_normed: bool
) -> Description:
    """`chunk` 0: there are none."""
    spec, note = description.spec, ""
    context, longest = spec.context_length, max(spec.context_length, description.longest_context)
    if 0 < chunk < longest:
        note = (
            f"the model's own context is {longest:,} tokens, but most of its layers attend in chunks of "
            f"{chunk:,}, which Octavo serves the first of"
        )
        context, longest = min(context, chunk), chunk
    temperatures: tuple[Temperature | None, ...] = ()
    if temperature is not None:
        temperatures = tuple(temperature if rope is None else None for rope in spec.ropes)
    spec = dataclasses.replace(
        spec, context_length=context, temperatures=temperatures, norms_after_rope=is_normed
    )
    return dataclasses.replace(description, spec=spec, longest_context=longest, context_note=note)
