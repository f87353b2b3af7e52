"""What a row of the table of families says: how its files name things, and which variations it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from octavo.kernels.contract import Routing
from octavo.model.families.names import CONFIG_KEYS, LLAMA_TENSORS, Names
from octavo.model.spec import ModelSpec


def _no_names() -> Names:
    return MappingProxyType({})


def _no_settings() -> Mapping[str, object]:
    return MappingProxyType({})


def _no_numbers() -> Mapping[str, float]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MixtureFacts:
    """How a family's router chooses, what config.json calls its settings, and how safetensors hold experts.

    stored: "apart" (tensors for each expert), or "stacked" (one of gates and ups and one of downs, each
    (experts, inputs, outputs)). What roles are called stands in the row's tensors: "router", and
    "expert_gate", "expert_up", "expert_down" (with "{{}}" for the expert) or "experts_gate_up" and
    "experts_down".
    """

    routing: Routing  # its top_k is the file's, and `normalised` too where there is a key
    count_keys: tuple[str, ...] = ("num_experts", "num_local_experts")
    usual_count: int | None = None  # where the file does not say
    ffn_key: str = "intermediate_size"
    normalised_key: str = ""
    stored: str = "apart"
    alternating: bool = False  # stacked gates and ups lie in turns, not one above the other
    biased: bool = False  # experts always have biases; none has one elsewhere
    shares_one: bool = False  # an expert that all tokens share stands beside the others
    activation: str = ""  # the experts', where it is not what the file says
    constants: Mapping[str, float] = field(default_factory=_no_numbers)  # that the activation has built in
    # Which layers have experts: all, or every so many, or those listed, or all but those listed.
    step_key: str = ""
    mixed_key: str = ""
    dense_key: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One row. `name` is config.json's model_type; `arch` what GGUF calls it ("": the same).

    Facts about tensors hold for safetensors; GGUF's converters have undone `norm_offset`, `transposed` and
    what is stacked "by head".
    """

    name: str
    arch: str = ""
    tensors: Names = field(default_factory=lambda: LLAMA_TENSORS)  # in safetensors; a role that is missing
    # here is one that the family lacks, in GGUF too
    gguf_tensors: Names = field(default_factory=_no_names)  # where they differ from other families'
    config_keys: Names = field(default_factory=lambda: CONFIG_KEYS)
    norm: str = "rms"  # "layer" has biases
    activation: str = "silu"  # where the file does not say
    gated: bool = True
    tied: bool = False  # where config.json does not say
    learned_positions: bool = False
    positions_skipped: int = 0  # rows of that table before position 0 (OPT)
    biases: frozenset[str] = frozenset()  # linears that always have one; others have one when the file does
    # Which layers have one, where the file does not list them: "none", "all", "even", all but each
    # `window_period`-th: "periodic", those without rope: "unturned", from max_window_layers on: "late".
    # "listed": as "all", for families whose files may list them; "switched": as "all". The last of these and
    # "late" and "unturned" are so only where use_sliding_window is true
    windows: str = "none"
    window_period: int = 0
    soft_caps: bool = False
    # Soft caps go with scores scaled by a scalar of their own, which GGUF has no key for: hidden / heads in
    # the size with so many layers, else the head size
    wide_scalar_layers: int = 0
    scaled_embedding: bool = False  # times sqrt(hidden)
    multipliers: bool = False  # of embedding, attention, residuals and logits, by the file (Granite)
    norm_offset: float = 0.0  # added to norm weights
    transposed: bool = False  # linears are (inputs, outputs)
    fused_qkv: str = ""  # "stacked": q above k above v; "by head": q, k, v of each head
    fused_gate_up: bool = False  # gate above up in one tensor of role "up"
    qk_norm: str = "head"  # where q_norm is: of each "head", or of "all" together
    parallel: bool = False  # both branches read the layer's input
    partial_rope: bool = False  # the file may say which part of a head is rotated
    rope_dims: float = 1.0  # that part, where the file does not say
    rope_kinds: Names = field(default_factory=_no_names)  # scalings that are called otherwise elsewhere
    # Layers with a window have a rope of their own, unscaled: its theta, where the file does not say; 0: as
    # the others'
    local_theta: float | None = None
    unturned_every: int = 0  # each such layer has no rope, where the file does not list them
    temperature: bool = False  # queries may be scaled by their position
    fractional_yarn: bool = False  # the ends of its ramp are no whole dimensions, where the file does not say
    # GGUF's attn_factor is all that YaRN multiplies cos and sin by; elsewhere it is times what YaRN says
    whole_attention_factor: bool = False
    # Llama 4: layers with rope attend in chunks, and norm what it turned; those without scale queries
    attends_in_chunks: bool = False
    context_is_scaled: bool = False  # the file's context counts a linear factor already
    # In which files q and k rows are ordered for rope on neighbours (i, i + 1): "gguf", "safetensors"
    interleaved_in: frozenset[str] = frozenset()
    sinks: bool = False
    mixture: MixtureFacts | None = None
    # What files mean that leave a key out; of GGUF, below the architecture
    config_defaults: Mapping[str, object] = field(default_factory=_no_settings)
    gguf_defaults: Mapping[str, object] = field(default_factory=_no_settings)


@dataclass(frozen=True, slots=True)
class Description:
    """A file's settings, understood: the row, the shape, and whether the output matrix is the embedding."""

    family: Family
    spec: ModelSpec
    tied: bool
    mixed_layers: tuple[bool, ...] = ()  # which layers have experts; (): none
    longest_context: int = 0  # that the configuration scales positions to; 0: the spec's
    context_note: str = ""  # why the context is less than the file's own
    is_part: bool = False  # of a model for several kinds of input, whose other parts are left out
