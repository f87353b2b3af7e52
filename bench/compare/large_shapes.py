"""The table of shapes for measurements with random weights: sizes, tensors, kinds, and bytes read by a step.

    Shape   the sizes in a model's public config.json
    mix     a mix of llama.cpp's llama-quantize: Q4_K_M, Q4_0, Q8_0
    Tensor  name, shape and kind of one tensor of the file, in the file's order

It knows no file and no random number: `large_file` writes the described file, `large` measures it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

# Weights in a block, and its bytes.
BLOCKS = {"F32": (1, 4), "Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210)}
MIXES = {"Q4_K_M": "Q4_K", "Q4_0": "Q4_0", "Q8_0": "Q8_0"}  # and the kind of most matrices


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes; `ffn` is that of one expert if there are any, `dense_ffn` the file's separate value
    for dense layers."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    context: int
    eps: float
    theta: float
    tied: bool
    head_norms: bool = False  # a norm of queries and keys
    post_norms: bool = False  # norms behind attention and feed-forward
    experts: int = 0
    experts_used: int = 0
    dense_ffn: int = 0
    window: int = 0  # of all layers but every `window_period`-th
    window_period: int = 0
    window_theta: float = 0.0
    linear_factor: float = 0.0
    llama3_factor: float = 0.0  # stretched from 8,192 positions as Llama 3.1's card says


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor; `shape` is (outputs, inputs), with experts in front, or (size,)."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def num_blocks(self) -> int:
        """Blocks of its kind."""
        return math.prod(self.shape) // BLOCKS[self.kind][0]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.num_blocks * BLOCKS[self.kind][1]


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128_256, 131_072, 1e-5, 500_000.0, True,
            llama3_factor=32.0,
        ),
        Shape(
            "gemma-3-4b", "gemma3", 34, 2560, 8, 4, 256, 10_240, 262_144, 131_072, 1e-6, 1e6, True,
            head_norms=True, post_norms=True, window=1024, window_period=6, window_theta=10_000.0,
            linear_factor=8.0,
        ),
        Shape(
            "qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12_288, 151_936, 40_960, 1e-6, 1e6, False,
            head_norms=True,
        ),
        Shape(
            "qwen3-30b-a3b", "qwen3moe", 48, 2048, 32, 4, 128, 768, 151_936, 40_960, 1e-6, 1e6, False,
            head_norms=True, experts=128, experts_used=8, dense_ffn=6144,
        ),
    )
}  # fmt: skip


def tiny(shape: Shape) -> Shape:
    """The same architecture, small enough for a test; rows still are whole blocks of 256."""
    return dataclasses.replace(
        shape,
        name=f"tiny-{shape.name}",
        layers=6,
        hidden=256,
        heads=4,
        kv_heads=2,
        head_size=64,
        ffn=512,
        vocabulary=1024,
        context=4096,
        experts=16 if shape.experts else 0,
        experts_used=4 if shape.experts else 0,
        dense_ffn=1024 if shape.experts else 0,
        window=32 if shape.window else 0,
    )


def takes_more_bits(layer: int, layers: int) -> bool:
    """Whether llama.cpp's mixes store this layer's values and down projections in the larger kind: the first
    eighth, the last, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors_of(shape: Shape, mix: str) -> list[Tensor]:
    """All tensors of the file. Raises KeyError for an unknown mix."""
    base, hidden = MIXES[mix], shape.hidden
    output = base if mix == "Q8_0" else "Q6_K"
    tensors = [Tensor("token_embd.weight", (shape.vocabulary, hidden), output if shape.tied else base)]
    if not shape.tied:
        tensors.append(Tensor("output.weight", (shape.vocabulary, hidden), output))
    tensors.append(Tensor("output_norm.weight", (hidden,), "F32"))
    if shape.llama3_factor:
        tensors.append(Tensor("rope_freqs.weight", (shape.head_size // 2,), "F32"))
    for layer in range(shape.layers):
        more = "Q6_K" if mix == "Q4_K_M" and takes_more_bits(layer, shape.layers) else base
        tensors += _layer(shape, f"blk.{layer}", base, more)
    return tensors


def _layer(shape: Shape, prefix: str, base: str, more: str) -> list[Tensor]:
    """One layer; `more` is the kind of values and down projections."""
    hidden, queries, keys = (
        shape.hidden,
        shape.heads * shape.head_size,
        shape.kv_heads * shape.head_size,
    )
    norms = {"attn_norm": hidden, "ffn_norm": hidden}
    if shape.head_norms:
        norms |= {"attn_q_norm": shape.head_size, "attn_k_norm": shape.head_size}
    if shape.post_norms:
        norms |= {"post_attention_norm": hidden, "post_ffw_norm": hidden}
    matrices: dict[str, tuple[str, tuple[int, ...]]] = {
        "attn_q": (base, (queries, hidden)),
        "attn_k": (base, (keys, hidden)),
        "attn_v": (more, (keys, hidden)),
        "attn_output": (base, (hidden, queries)),
    }
    if shape.experts:
        matrices |= {
            "ffn_gate_inp": ("F32", (shape.experts, hidden)),
            "ffn_gate_exps": (base, (shape.experts, shape.ffn, hidden)),
            "ffn_up_exps": (base, (shape.experts, shape.ffn, hidden)),
            "ffn_down_exps": (more, (shape.experts, hidden, shape.ffn)),
        }
    else:
        matrices |= {
            "ffn_gate": (base, (shape.ffn, hidden)),
            "ffn_up": (base, (shape.ffn, hidden)),
            "ffn_down": (more, (hidden, shape.ffn)),
        }
    return [Tensor(f"{prefix}.{name}.weight", (size,), "F32") for name, size in norms.items()] + [
        Tensor(f"{prefix}.{name}.weight", dimensions, kind) for name, (kind, dimensions) in matrices.items()
    ]


def file_bytes(shape: Shape, mix: str) -> int:
    """Bytes of all tensors."""
    return sum(tensor.num_bytes for tensor in tensors_of(shape, mix))


def step_bytes(shape: Shape, mix: str, rows: int) -> float:
    """Bytes of weights that a step of `rows` sequences must read: all except the embedding, of which it reads
    rows, and of the experts the expected share with a routed row, if all are equally likely."""
    total = 0.0
    for tensor in tensors_of(shape, mix):
        if tensor.name == "token_embd.weight" and not shape.tied:
            continue
        total += tensor.num_bytes * _share_read(shape, tensor, rows)
    return total


def active_weights(shape: Shape, mix: str) -> float:
    """The number of weights in one token's products."""
    return sum(
        math.prod(tensor.shape) * _share_read(shape, tensor, 1)
        for tensor in tensors_of(shape, mix)
        if len(tensor.shape) > 1 and (tensor.name != "token_embd.weight" or shape.tied)
    )


def _share_read(shape: Shape, tensor: Tensor, rows: int) -> float:
    if len(tensor.shape) < 3:
        return 1.0
    return 1.0 - (1.0 - shape.experts_used / shape.experts) ** rows


def kv_bytes(shape: Shape, tokens: int, item_bytes: int = 2) -> int:
    """Bytes of K and V of so many tokens, without windows."""
    return tokens * 2 * shape.layers * shape.kv_heads * shape.head_size * item_bytes
