"""The unused part of KV blocks under attention windows, since a block holds all layers.

    layer with window w, sequence of n tokens:    holds n positions, reads the last w:    n - w are wasted

A block holds K and V of all layers for its positions, so a layer with a window keeps positions that it never
reads again. Separate block tables and pools for the layers of one window (KV groups) would free them.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.model.spec import ModelSpec
from octavo.units import format_bytes


@dataclass(frozen=True, slots=True)
class WindowWaste:
    """K and V that one sequence of the whole context holds and that no later token reads."""

    num_layers: int  # with a window shorter than the context
    num_bytes: int
    all_bytes: int  # what the sequence holds

    def in_words(self) -> str:
        """ "1.2 GiB of 2.0 GiB (60 %)"; the caller puts "26 of 30 layers ..." before it."""
        share = self.num_bytes / self.all_bytes
        return (
            f"{format_bytes(self.num_bytes)} of its {format_bytes(self.all_bytes)} of K and V ({share:.0%})"
        )


def window_waste(spec: ModelSpec, bytes_per_token: float) -> WindowWaste | None:
    """The waste of windows in blocks of all layers; None if no layer has a window within the context.

    A block holds K and V of all layers for its positions, so a layer that sees `window` positions keeps all
    of them. KV groups with block tables of their own would free them.
    """
    context = spec.context_length
    unused = [context - window for window in spec.windows if window is not None and window < context]
    if not unused:
        return None
    of_layer = bytes_per_token / spec.num_layers
    return WindowWaste(len(unused), round(sum(unused) * of_layer), round(context * bytes_per_token))


def waste_in_words(spec: ModelSpec, waste: WindowWaste) -> str:
    """One sentence."""
    least = min(window for window in spec.windows if window is not None)
    return (
        f"{waste.num_layers} of {spec.num_layers} layers see {least:,} positions and keep all: a sequence of "
        f"{spec.context_length:,} tokens wastes {waste.in_words()}"
    )
