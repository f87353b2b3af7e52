"""What a row of the table of families says: how its files name things, and which variations it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from octavo.kernels.contract import Routing
from octavo.model.families.names import CONFIG_KEYS, LLAMA_TENSORS, Names
from octavo.model.spec import ModelSpec

_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MixtureFacts:
    """How a family's files hold experts, and how its router chooses.

    safetensors: "apart" (a gate, up and down for each expert, "{}" twice: layer, expert), "stacked" (one
    tensor of gates above ups, one of downs, for all experts).
    """

    routing: Routing  # top_k 0: the file says how many
    tensors: (
        Names  # "router", and "expert_gate", "expert_up", "expert_down" or "experts_gate_up", "experts_down"
    )
    stored: str = "apart"
    count_key: str = "num_experts"
    top_k_key: str = "num_experts_per_tok"
    ffn_key: str = "moe_intermediate_size"
    normalised_key: str = ""  # where config.json says whether weights are divided by their sum
    shares_one: bool = False  # an expert that all tokens share stands beside the others
    biases: bool = False  # of the router and the experts


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
    config_keys: Names = field(default_factory=lambda: CONFIG_KEYS)
    norm: str = "rms"  # "layer" has biases
    activation: str = "silu"  # where the file does not say
    gated: bool = True
    tied: bool = False  # where config.json does not say
    learned_positions: bool = False
    positions_skipped: int = 0  # rows of that table before position 0 (OPT)
    biases: frozenset[str] = frozenset()  # linears that always have one; others have one when the file does
    windows: str = "none"  # "all" layers, every "even" one, from max_window_layers on: "late", or "listed"
    soft_caps: bool = False
    scaled_embedding: bool = False  # times sqrt(hidden)
    multipliers: bool = False  # of embedding, attention, residuals and logits, by the file (Granite)
    norm_offset: float = 0.0  # added to norm weights
    transposed: bool = False  # linears are (inputs, outputs)
    fused_qkv: str = ""  # "stacked": q above k above v; "by head": q, k, v of each head
    fused_gate_up: bool = False  # gate above up in one tensor of role "up"
    qk_norm: str = "head"  # where q_norm is: of each "head", or of "all" together
    parallel: bool = False  # both branches read the layer's input
    rope_dims: float = 1.0  # the part of a head that is rotated, where the file does not say
    # In which files q and k rows are ordered for rope on neighbours (i, i + 1): "gguf", "safetensors"
    interleaved_in: frozenset[str] = frozenset()
    sinks: bool = False
    mixture: MixtureFacts | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A file's settings, understood: the row, the shape, and whether the output matrix is the embedding."""

    family: Family
    spec: ModelSpec
    tied: bool
    mixed_layers: tuple[bool, ...] = ()  # which layers have experts; (): none
