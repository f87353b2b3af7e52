"""What a model is: one frozen description that the decoder follows, whatever file it came from.

A family is a *row* of the table in `model/families.py` (which names the tensors in a file and says which
variations apply); this module only holds the vocabulary of those variations. It knows no file format and no
array of weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from octavo.kernels.contract import Floats, Matrix, Vector


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: `dims` of each head are rotated in halves, i with i + dims/2.

    `scaling` is "none", "linear" (`factor`) or "llama3" (all four); `factors`, when given (GGUF's
    rope_freqs tensor), divides the inverse frequencies instead. Source: Su et al. 2021; the Llama 3.1 model
    card for "llama3".
    """

    theta: float
    dims: int
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] | None = None

    def inverse_frequencies(self) -> Floats:
        """(dims / 2,) in float32, computed in float32 as the models were trained."""
        exponents = np.arange(0, self.dims, 2, dtype=np.float32) / np.float32(self.dims)
        inverse: Floats = (np.float32(1.0) / np.power(np.float32(self.theta), exponents)).astype(np.float32)
        if self.factors is not None:
            inverse = (inverse / np.asarray(self.factors, np.float32)).astype(np.float32)
        elif self.scaling == "linear":
            inverse = (inverse / np.float32(self.factor)).astype(np.float32)
        elif self.scaling == "llama3":
            wavelength = 2 * np.pi / inverse
            low = self.original_context / self.low_freq_factor
            high = self.original_context / self.high_freq_factor
            smooth = (self.original_context / wavelength - self.low_freq_factor) / (
                self.high_freq_factor - self.low_freq_factor
            )
            blended = (1 - smooth) * inverse / self.factor + smooth * inverse
            scaled = np.where(wavelength > low, inverse / self.factor, inverse)
            between = (wavelength <= low) & (wavelength >= high)
            inverse = np.where(between, blended, scaled).astype(np.float32)
        return inverse

    def table(self, context_length: int) -> tuple[Floats, Floats]:
        """cos and sin, (context_length, dims / 2) each, float32: fixed by the configured context, never by
        a request."""
        angles = np.arange(context_length, dtype=np.float32)[:, None] * self.inverse_frequencies()[None, :]
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape and the variations of one decoder-only model. Sizes are in elements; `windows` has one
    entry a layer."""

    family: str  # "llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt2"
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
    activation: str = "silu"  # "silu" | "gelu_tanh" | "gelu"
    gated: bool = True  # down(act(gate) * up), else down(act(up))
    rope: RopeSpec | None = None  # None: learned positions, added to the embedding
    windows: tuple[int | None, ...] = ()  # () means every layer sees everything
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    embedding_scale: float = 1.0  # Gemma: sqrt(hidden_size)

    def window(self, layer: int) -> int | None:
        """How many positions layer `layer` sees, itself included; None: all before it."""
        return self.windows[layer] if self.windows else None


@dataclass(frozen=True, slots=True)
class Norm:
    """Weight (E,) and, for LayerNorm, bias (E,). Gemma's "1 + weight" is added when loading."""

    weight: Vector
    bias: Vector | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection (outputs, inputs) with an optional bias (outputs,)."""

    weight: Matrix
    bias: Vector | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. What a family does not have is None; the decoder does what is there."""

    attention_norm: Norm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    ffn_norm: Norm
    up: Linear
    down: Linear
    gate: Linear | None = None
    q_norm: Norm | None = None  # (head_size,), per head, before rope (Qwen3)
    k_norm: Norm | None = None
    attention_post_norm: Norm | None = None  # on the branch, before it is added (Gemma 2)
    ffn_post_norm: Norm | None = None

    @property
    def linears(self) -> list[Linear]:
        """Those that it has."""
        all_of_them = (self.q, self.k, self.v, self.o, self.gate, self.up, self.down)
        return [linear for linear in all_of_them if linear is not None]

    @property
    def norms(self) -> list[Norm]:
        """Those that it has."""
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
        """The same for each kind in which matrices are held, the most bytes first."""
        sums: dict[str, int] = {}
        for matrix in self._matrices:
            sums[matrix.kind] = sums.get(matrix.kind, 0) + matrix.num_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def num_parameters(self) -> int:
        """Numbers that were learned, a tied embedding once."""
        norms = [self.final_norm, *(norm for layer in self.layers for norm in layer.norms)]
        vectors = [vector for norm in norms for vector in (norm.weight, norm.bias)]
        vectors += [linear.bias for layer in self.layers for linear in layer.linears]
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
class Model:
    """A loaded model: what the executor runs. `fingerprint` names the weights (32 bytes, strong hash)."""

    name: str
    spec: ModelSpec
    weights: ModelWeights
    fingerprint: bytes
    rope_tables: tuple[Vector, Vector] | None = field(default=None, repr=False)
