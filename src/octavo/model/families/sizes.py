"""The allowed sizes of a model, and settings common to config.json and GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.names import Names

LAYERS_MAX = 1024
HIDDEN_MAX = 1 << 17
HEADS_MAX = 1024
HEAD_SIZE_MAX = 1024
FFN_MAX = 1 << 20
VOCAB_MAX = 1 << 22
CONTEXT_MAX = 1 << 24
EXPERTS_MAX = 1 << 10

_ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "swiglu_clamped": "swiglu_clamped",
    }
)


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of attention."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int


def heads_of(fields: Fields, keys: Names) -> Heads:
    """The head size defaults to hidden / heads. Raises BadModelFile, UnsupportedModel."""
    hidden = fields.integer(keys["hidden"], 1, HIDDEN_MAX)
    heads = fields.integer(keys["heads"], 1, HEADS_MAX)
    key = keys.get("head_size", "")
    if not fields.has(key) and hidden % heads:
        raise fields.bad(keys["heads"], f"a divisor of the hidden size {hidden:,}")
    head_size = fields.integer(key, 1, HEAD_SIZE_MAX, hidden // heads)
    if head_size % 2 or head_size > HEAD_SIZE_MAX:
        raise UnsupportedModel(
            f"{fields.source}: heads of {head_size:,}; allowed: an even size up to {HEAD_SIZE_MAX:,}"
        )
    kv_key = keys.get("kv_heads", "")
    kv_heads = fields.integer(kv_key, 1, HEADS_MAX, heads)
    if heads % kv_heads:
        raise fields.bad(kv_key, f"a divisor of the {heads} query heads")
    return Heads(hidden, heads, kv_heads, head_size)


def activation_of(fields: Fields, name: str) -> str:
    """The contract's name of a file's activation."""
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"{fields.source}: activation {name!r:.60}; allowed: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]
