"""All rows, by config.json's model_type and by GGUF's architecture."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.dense import DENSE
from octavo.model.families.mixtures import MIXTURES
from octavo.model.families.row import Family

FAMILIES: Mapping[str, Family] = MappingProxyType({row.name: row for row in (*DENSE, *MIXTURES)})

# Models for several kinds of input, by model_type: the allowed rows of their text part.
WRAPPERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"gemma3": ("gemma3_text",), "llama4": ("llama4_text",), "mistral3": ("mistral", "ministral3")}
)


def text_part(config: Fields) -> Fields:
    """The settings of the text part, which are all of them in most models. Raises UnsupportedModel."""
    name = config.text("model_type", "")
    if name not in WRAPPERS:
        return config
    inner, allowed = config.inner("text_config"), WRAPPERS[name]
    kind = inner.text("model_type", allowed[0])
    if kind not in allowed:
        raise UnsupportedModel(
            f"{inner.source}: family {kind!r:.60} in {name}; allowed: {', '.join(allowed)}"
        )
    outer = {key: config.values[key] for key in ("tie_word_embeddings",) if config.has(key)}
    return Fields(inner.source, {**inner.values, "model_type": kind, **outer})


def row_of_config(config: Fields) -> Family:
    """The row of config.json's model_type. Raises UnsupportedModel, which lists the known ones."""
    name = config.text("model_type", "")
    if name not in FAMILIES:
        raise _unknown(config, name, [*FAMILIES, *WRAPPERS])
    return FAMILIES[name]


def row_of_gguf(metadata: Fields) -> Family:
    """The row of a GGUF file's architecture: with experts, the mixture of that name."""
    arch = metadata.text("general.architecture", "")
    has_experts = metadata.integer(f"{arch}.expert_count", 0, 1 << 12, 0) > 0
    rows = [row for row in FAMILIES.values() if (row.arch or row.name) == arch]
    for row in rows:
        if (row.mixture is not None) == has_experts:
            return row
    if rows:
        given = "experts" if has_experts else "no experts"
        raise UnsupportedModel(f"{metadata.source}: architecture {arch!r:.60} with {given} is not supported")
    raise _unknown(metadata, arch, list(dict.fromkeys(row.arch or row.name for row in FAMILIES.values())))


def _unknown(fields: Fields, name: str, allowed: list[str]) -> UnsupportedModel:
    return UnsupportedModel(f"{fields.source}: family {name!r:.60}; allowed: {', '.join(allowed)}")
