"""Which layers have a window, and which have rope: by the family's row, or as the file lists them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.row import Family
from octavo.model.families.sizes import CONTEXT_MAX, LAYERS_MAX

Marks = tuple[bool, ...]  # one a layer
# Files of these rows enable windows by use_sliding_window; in other files the key has no meaning.
_SWITCHED = ("late", "ropeless", "switched")

FULL, WINDOWED, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def rope_layers_of_config(family: Family, config: Fields, layers: int) -> Marks:
    """Which layers have rope. `no_rope_layers` has a 1 for each that has."""
    if family.ropeless_every == 0:
        return (True,) * layers
    if config.values.get("no_rope_layers"):
        return tuple(mark != 0 for mark in config.numbers("no_rope_layers", layers, 0, 1))
    return _all_but_every(
        config.integer("no_rope_layer_interval", 1, LAYERS_MAX, family.ropeless_every), layers
    )


def rope_layers_of_gguf(family: Family, layers: int) -> Marks:
    """Which layers have rope; the format has no key for it."""
    return _all_but_every(family.ropeless_every, layers) if family.ropeless_every else (True,) * layers


def windowed_in_config(family: Family, config: Fields, has_rope: Marks, window: int) -> Marks:
    """Which layers have the window; 0: none. Raises UnsupportedModel for layers of another kind."""
    layers = len(has_rope)
    listed = _listed(family, config, layers)
    off = family.windows in _SWITCHED and not config.flag("use_sliding_window", False)
    if off or window == 0:
        return (False,) * layers
    if listed is None:
        late_from = config.integer("max_window_layers", 0, LAYERS_MAX, layers)
        period = config.integer("sliding_window_pattern", 1, LAYERS_MAX, family.window_period or 1)
        return _by_rule(family, has_rope, late_from, period)
    if family.windows == "none" and any(listed):
        raise UnsupportedModel(f"{config.source}: layer_types with {WINDOWED}; family {family.name} has none")
    in_all = family.windows in ("all", "switched")
    if in_all and len(set(listed)) > 1:
        raise UnsupportedModel(f"{config.source}: layer_types differ; in family {family.name} all are alike")
    return (True,) * layers if in_all else listed


def windowed_in_gguf(family: Family, metadata: Fields, arch: str, has_rope: Marks, window: int) -> Marks:
    """Which layers have the window; 0: none. By the file's pattern, or by the row."""
    if window == 0:
        return (False,) * len(has_rope)
    key = f"{arch}.attention.sliding_window_pattern"
    if family.windows == "periodic" and metadata.is_list(key):
        return tuple(mark != 0 for mark in metadata.numbers(key, len(has_rope), 0, 1))
    period = family.window_period or 1
    if family.windows == "periodic":
        period = metadata.integer(key, 1, LAYERS_MAX, period)
    return _by_rule(family, has_rope, len(has_rope), period)


def window_of(family: Family, fields: Fields, key: str) -> int:
    """How many positions a layer with a window sees; 0: all. Raises UnsupportedModel if the row has none."""
    window = fields.integer(key, 0, CONTEXT_MAX, 0)
    gated = "use_sliding_window" in fields.values and not fields.flag("use_sliding_window", False)
    if window and family.windows == "none" and not gated:
        raise UnsupportedModel(f"{fields.source}: {key} is {window:,}; family {family.name} has no windows")
    return window


def windows_of(window: int, windowed: Marks) -> tuple[int | None, ...]:
    """One entry a layer; () when no layer has a window."""
    return tuple(window if here else None for here in windowed) if any(windowed) else ()


def _listed(family: Family, config: Fields, layers: int) -> Marks | None:
    kinds = config.values.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.bad("layer_types", f"a list of {layers} kinds")
    # The context of a family with chunks ends where the second one would begin.
    allowed = (FULL, CHUNKED) if family.attends_in_chunks else (FULL, WINDOWED)
    if not all(kind in allowed for kind in kinds):
        raise UnsupportedModel(f"{config.source}: layer_types other than {' and '.join(allowed)}")
    return tuple(kind == WINDOWED for kind in kinds)


def _by_rule(family: Family, has_rope: Sequence[bool], late_from: int, period: int) -> Marks:
    layers = len(has_rope)
    rules: dict[str, Marks] = {
        "none": (False,) * layers,
        "all": (True,) * layers,
        "switched": (True,) * layers,
        "listed": (True,) * layers,
        "even": tuple(layer % 2 == 0 for layer in range(layers)),
        "periodic": _all_but_every(period, layers),
        "ropeless": tuple(not mark for mark in has_rope),
        "late": tuple(layer >= late_from for layer in range(layers)),
    }
    return rules[family.windows]


def _all_but_every(period: int, layers: int) -> Marks:
    return tuple((layer + 1) % period != 0 for layer in range(layers))
