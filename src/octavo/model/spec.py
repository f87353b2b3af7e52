"""The description of a model that the decoder follows, independent of its file.

A family is a *row* of the table in `model/families/`, which names the tensors in a file and its variations;
this module only defines those variations. It knows no file format and no array of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from octavo.kernels.contract import Expert, Floats, Linear, Matrix, Routing, Vector
from octavo.model.rope import RopeSpec, Temperature, identity_table
from octavo.model.split import Split


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape and the variations of one decoder-only model. Sizes are in elements.

    `windows`, `ropes` and `temperatures` have one entry a layer, or are empty if no layer has one.
    """

    family: str  # a row of the table
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    context_length: int
    attention_scale: float  # usually head_size ** -0.5
    norm: str = "rms"  # "rms" | "layer"
    norm_eps: float = 1e-5
    activation: str = "silu"  # a name of `StepOps.gated`
    gated: bool = True  # down(act(gate) * up), else down(act(up))
    ropes: tuple[RopeSpec | None, ...] = ()  # none: learned positions, added to the embedding
    temperatures: tuple[Temperature | None, ...] = ()
    norms_after_rope: bool = False  # of queries and keys (Llama 4)
    windows: tuple[int | None, ...] = ()
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    embedding_scale: float = 1.0  # Gemma: sqrt(hidden_size)
    residual_scale: float = 1.0  # of every branch, before it is added (Granite)
    logit_scale: float = 1.0  # of the last hidden rows
    parallel: bool = False  # both branches read the layer's input (GPT-NeoX)
    routing: Routing | None = None  # of the layers that have experts
    num_experts: int = 0
    expert_ffn_size: int = 0

    def within(self, context_length: int) -> ModelSpec:
        """This spec with another context; a window that is not shorter than the context becomes None."""
        windows = tuple(
            window if window is not None and window < context_length else None for window in self.windows
        )
        kept = windows if any(window is not None for window in windows) else ()
        return replace(self, context_length=context_length, windows=kept)

    def window(self, layer: int) -> int | None:
        """How many positions layer `layer` sees, itself included; None: all before it."""
        return self.windows[layer] if self.windows else None

    def rope(self, layer: int) -> RopeSpec | None:
        """The rope of layer `layer`; None: it has none."""
        return self.ropes[layer] if self.ropes else None

    def temperature(self, layer: int) -> Temperature | None:
        """The temperature of layer `layer`, which scales queries by position; None: it has none."""
        return self.temperatures[layer] if self.temperatures else None


@dataclass(frozen=True, slots=True)
class Norm:
    """Weight (E,) and, for LayerNorm, bias (E,). Gemma's "1 + weight" is added when loading."""

    weight: Vector
    bias: Vector | None = None
    is_learned: bool = True  # else its weights are ones, for an op that needs some


@dataclass(frozen=True, slots=True)
class Mixture:
    """A layer's experts and the router (experts, hidden) that chooses among them."""

    router: Linear
    experts: tuple[Expert, ...]

    @property
    def linears(self) -> list[Linear]:
        """The router's and all experts' linear layers."""
        parts = [[expert.gate, expert.up, expert.down] for expert in self.experts]
        return [self.router, *(linear for part in parts for linear in part)]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Parts that the family lacks are None, and the decoder skips them."""

    q: Linear
    k: Linear
    v: Linear
    o: Linear
    up: Linear | None = None  # with a mixture: of the expert that all tokens share
    down: Linear | None = None
    gate: Linear | None = None
    mixture: Mixture | None = None
    attention_norm: Norm | None = None  # before the branch
    ffn_norm: Norm | None = None
    q_norm: Norm | None = None  # (head_size,), per head, or (heads * head_size,); before rope, mostly
    k_norm: Norm | None = None
    attention_post_norm: Norm | None = None  # on the branch, before it is added (Gemma 2)
    ffn_post_norm: Norm | None = None
    sinks: Vector | None = None  # (H,), `AttentionSpec.sinks`

    @property
    def linears(self) -> list[Linear]:
        """The linear layers that are not None."""
        all_of_them = (self.q, self.k, self.v, self.o, self.gate, self.up, self.down)
        routed = [] if self.mixture is None else self.mixture.linears
        return [linear for linear in all_of_them if linear is not None] + routed

    @property
    def norms(self) -> list[Norm]:
        """The norms that are not None."""
        behind = (self.attention_post_norm, self.ffn_post_norm)
        all_of_them = (self.attention_norm, self.q_norm, self.k_norm, self.ffn_norm, *behind)
        return [norm for norm in all_of_them if norm is not None]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights. `output` is the very object `embedding` when they are tied."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    output: Matrix
    positions: Matrix | None = None  # (context, hidden), learned

    @property
    def num_bytes(self) -> int:
        """Resident bytes of all matrices, a tied embedding once."""
        return sum(self.bytes_by_kind.values())

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """Resident bytes of matrices by kind, the largest first."""
        sums: dict[str, int] = {}
        for matrix in self._matrices:
            sums[matrix.kind] = sums.get(matrix.kind, 0) + matrix.num_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def main_kind(self) -> str:
        """The kind with the most bytes; "" if there are no matrices."""
        return next(iter(self.bytes_by_kind), "")

    @property
    def num_parameters(self) -> int:
        """The number of learned parameters, a tied embedding once."""
        norms = [self.final_norm, *(norm for layer in self.layers for norm in layer.norms)]
        vectors = [vector for norm in norms if norm.is_learned for vector in (norm.weight, norm.bias)]
        vectors += [linear.bias for layer in self.layers for linear in layer.linears]
        vectors += [layer.sinks for layer in self.layers]
        shapes = [matrix.shape for matrix in self._matrices]
        return sum(math.prod(shape) for shape in shapes) + sum(
            math.prod(vector.shape) for vector in vectors if vector is not None
        )

    @property
    def _matrices(self) -> list[Matrix]:
        matrices = [self.embedding, *(linear.weight for layer in self.layers for linear in layer.linears)]
        if self.output is not self.embedding:
            matrices.append(self.output)
        return matrices if self.positions is None else [*matrices, self.positions]


@dataclass(frozen=True, slots=True)
class CosSin:
    """A `RopeTable` in the backend's own form."""

    cos: Vector
    sin: Vector


@dataclass(frozen=True, slots=True)
class RopeTables:
    """The tables that rotate (and scale) a layer's queries and keys; None: unchanged."""

    q: CosSin | None = None
    k: CosSin | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model: what the executor runs. `fingerprint` names the weights (32 bytes, strong hash).

    `rope_tables` has one entry a layer; layers with equal rotations share them.
    """

    name: str
    spec: ModelSpec
    weights: ModelWeights
    fingerprint: bytes
    rope_tables: tuple[RopeTables, ...] = field(repr=False)
    split: Split = field(default_factory=Split)  # the rank whose part of each weight this is


def rope_tables_of(spec: ModelSpec, vector: Callable[[Floats], Vector]) -> tuple[RopeTables, ...]:
    """One entry a layer, for the spec's context; `vector` is `WeightOps.vector`. O(context) for each kind of
    layer."""
    made: dict[tuple[RopeSpec | None, Temperature | None], RopeTables] = {}
    kinds = [(spec.rope(layer), spec.temperature(layer)) for layer in range(spec.num_layers)]
    for kind in dict.fromkeys(kinds):
        made[kind] = _rope_tables(spec, kind[0], kind[1], vector)
    return tuple(made[kind] for kind in kinds)


def _rope_tables(
    spec: ModelSpec,
    rope: RopeSpec | None,
    temperature: Temperature | None,
    vector: Callable[[Floats], Vector],
) -> RopeTables:
    context = spec.context_length
    table = None if rope is None else rope.table(context)
    keys = None if table is None else CosSin(vector(table.cos), vector(table.sin))
    if temperature is None:
        return RopeTables(keys, keys)
    # Scaling applies to the whole head, so rope must rotate all of it, as it does in such models.
    assert rope is None or rope.dims == spec.head_size
    scaled = (table or identity_table(context, spec.head_size)).scaled(temperature.scales(context))
    return RopeTables(CosSin(vector(scaled.cos), vector(scaled.sin)), keys)
