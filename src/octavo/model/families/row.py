"""A row of the table of families: the names in its files, and the variations that it has."""

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
    """A family's routing, the names of its settings in config.json, and how safetensors hold experts.

    stored: "apart" (tensors for each expert), or "stacked" (one of gates and ups and one of downs, each
    (experts, inputs, outputs)). The row's tensors have the names of the roles: "router", and "expert_gate",
    "expert_up", "expert_down" (with "{{}}" for the expert) or "experts_gate_up" and "experts_down".
    """

    routing: Routing  # the file overrides top_k, and `normalised` if there is a key
    count_keys: tuple[str, ...] = ("num_experts", "num_local_experts")
    usual_count: int | None = None  # the default
    ffn_key: str = "intermediate_size"
    normalised_key: str = ""
    stored: str = "apart"
    alternating: bool = False  # rows of stacked gates and ups alternate, instead of gates before ups
    biased: bool = False  # experts always have biases; experts of other families never do
    shares_one: bool = False  # there is also one expert that all tokens share
    activation: str = ""  # of the experts, if it differs from the file's
    constants: Mapping[str, float] = field(default_factory=_no_numbers)  # built into the activation
    # Which layers have experts: all, or every n-th, or those listed, or all but those listed.
    step_key: str = ""
    mixed_key: str = ""
    dense_key: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One row. `name` is config.json's model_type; `arch` is GGUF's name of it ("": the same).

    Facts about tensors hold for safetensors; GGUF's converters have undone `norm_offset`, `transposed` and
    the stacking "by head".
    """

    name: str
    arch: str = ""
    tensors: Names = field(default_factory=lambda: LLAMA_TENSORS)  # in safetensors; the family lacks roles
    # that are missing here, in GGUF too
    gguf_tensors: Names = field(default_factory=_no_names)  # those that differ from other families'
    config_keys: Names = field(default_factory=lambda: CONFIG_KEYS)
    norm: str = "rms"  # "layer" has biases
    activation: str = "silu"  # the default
    gated: bool = True
    tied: bool = False  # the default of config.json
    learned_positions: bool = False
    positions_skipped: int = 0  # rows of that table before position 0 (OPT)
    biases: frozenset[str] = frozenset()  # linears that always have one; others have one if the file does
    # Which layers have a window, if the file does not list them: "none", "all", "even", all but each
    # `window_period`-th: "periodic", those without rope: "ropeless", from max_window_layers on: "late".
    # "listed": as "all", for families whose files may list them; "switched": as "all". "switched", "late" and
    # "ropeless" apply only if use_sliding_window is true
    windows: str = "none"
    window_period: int = 0
    soft_caps: bool = False
    # Models with soft caps scale scores by a scalar that GGUF has no key for: hidden / heads in the model
    # with so many layers, else the head size
    wide_scalar_layers: int = 0
    scaled_embedding: bool = False  # times sqrt(hidden)
    multipliers: bool = False  # the file scales embedding, attention, residuals and logits (Granite)
    norm_offset: float = 0.0  # added to norm weights
    transposed: bool = False  # linears are (inputs, outputs)
    fused_qkv: str = ""  # "stacked": q above k above v; "by head": q, k, v of each head
    fused_gate_up: bool = False  # gate above up in one tensor of role "up"
    qk_norm: str = "head"  # q_norm, if there is one, is over each "head" or over "all" together
    parallel: bool = False  # both branches read the layer's input
    partial_rope: bool = False  # the file may rotate only a part of each head
    rope_dims: float = 1.0  # the default of that part
    rope_kinds: Names = field(default_factory=_no_names)  # scalings that other families name otherwise
    # Layers with a window have a rope of their own, unscaled: its default theta; 0: the same as of the other
    # layers
    local_theta: float | None = None
    ropeless_every: int = 0  # every n-th layer has no rope, if the file does not list them
    temperature: bool = False  # queries may be scaled by their position
    fractional_yarn: bool = False  # by default the ends of its ramp are not rounded to whole dimensions
    # GGUF's attn_factor replaces YaRN's factor of cos and sin; elsewhere it multiplies YaRN's factor
    whole_attention_factor: bool = False
    # Llama 4: layers with rope attend in chunks and norm after rope; those without scale queries
    attends_in_chunks: bool = False
    context_is_scaled: bool = False  # the file's context includes a linear factor already
    # In which files q and k rows are ordered for rope on neighbours (i, i + 1): "gguf", "safetensors"
    interleaved_in: frozenset[str] = frozenset()
    sinks: bool = False
    mixture: MixtureFacts | None = None
    # Defaults of missing keys; GGUF's without the name of the architecture
    config_defaults: Mapping[str, object] = field(default_factory=_no_settings)
    gguf_defaults: Mapping[str, object] = field(default_factory=_no_settings)


@dataclass(frozen=True, slots=True)
class Description:
    """A file's settings, parsed: the row, the shape, and whether the output matrix is the embedding."""

    family: Family
    spec: ModelSpec
    tied: bool
    mixed_layers: tuple[bool, ...] = ()  # which layers have experts; (): none
    longest_context: int = 0  # to which the configuration scales positions; 0: the spec's
    context_note: str = ""  # why the context is less than the file's own
    is_part: bool = False  # the text part of a model for several kinds of input
