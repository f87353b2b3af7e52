"""Writes a GGUF file of a shape with random weights, which both engines open.

    random tile of blocks   |t0 t1 t2 ... t(P-1)|         P is prime: rows of a matrix rarely repeat
    a tensor                |t7 t8 ... t(P-1)|t0 t1 ...   the tile repeated, from a tensor-specific offset

Codes are random bytes; all scales of a tile are one number, chosen so that a product keeps the magnitude of
its input: activations stay finite through any number of layers. Random weights say nothing about quality, but
bytes and operations are those of the real model, and so is speed. Norms are ones; routers are fully random,
so all experts are equally likely. At most a few tiles are in memory.
"""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
import numpy.typing as npt

import peers
from large_shapes import BLOCKS, Shape, Tensor, file_bytes, tensors_of

Bytes = npt.NDArray[np.uint8]
_TILE_BLOCKS = 16_381  # prime; 3.4 MB of Q6_K
_SPARE_BYTES = 1 << 30  # left free on the disk
_LLAMA3_CONTEXT, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0
# The standard deviation of random codes of a kind, by which d is divided.
_SPREAD = {"Q4_0": 4.61, "Q8_0": 73.6, "Q4_K": 258.0, "Q6_K": 1366.0}
_MEAN_CODE_Q4_K = 7.5


class NoRoom(Exception):
    """The disk has too little room for the file."""


def path_of(shape: Shape, mix: str) -> Path:
    """The path of the file, under $OCTAVO_PEERS/models."""
    return peers.peers_folder() / "models" / f"random-{shape.name}-{mix}.gguf"


def write_file(shape: Shape, mix: str, path: Path) -> None:
    """Write the file, first under a temporary name, and report the progress. Raises NoRoom."""
    needed, free = file_bytes(shape, mix) + _SPARE_BYTES, shutil.disk_usage(path.parent).free
    if needed > free:
        raise NoRoom(
            f"{path} needs {needed / 1e9:.1f} GB, 1 GiB of it stays free; {free / 1e9:.1f} GB are free"
        )
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, shape.architecture)
    add_settings(writer, shape)
    add_tokenizer(writer, shape.vocabulary)
    tensors = tensors_of(shape, mix)
    for tensor in tensors:
        kind = gguf.GGMLQuantizationType[tensor.kind]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.num_bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    output = writer.fout[0]
    writer.write_padding(output, output.tell())
    weights, reported, written = _Weights(shape), time.monotonic(), 0
    for tensor in tensors:
        weights.write(output, tensor)
        writer.write_padding(output, tensor.num_bytes)
        written += tensor.num_bytes
        if time.monotonic() - reported > 2.0:
            reported = time.monotonic()
            peers.say(f"  {written / 1e9:.1f} of {file_bytes(shape, mix) / 1e9:.1f} GB written")
    output.close()
    unfinished.rename(path)


class _Weights:
    """Writes tensors: one tile for each kind and row length, made at its first use."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._rng = np.random.default_rng(0)
        self._tiles: dict[tuple[str, int], Bytes] = {}

    def write(self, output: BinaryIO, tensor: Tensor) -> None:
        """Write all bytes of a tensor."""
        if tensor.kind == "F32":
            output.write(self._floats(tensor).tobytes())
            return
        key = (tensor.kind, tensor.shape[-1])
        if key not in self._tiles:
            self._tiles[key] = random_blocks(self._rng, *key, _TILE_BLOCKS)
        tile = self._tiles[key]
        block, left = int(self._rng.integers(_TILE_BLOCKS)), tensor.num_blocks
        while left:
            part = tile[block : block + left]
            output.write(part.data)
            left, block = left - part.shape[0], 0

    def _floats(self, tensor: Tensor) -> npt.NDArray[np.float32]:
        if tensor.name == "rope_freqs.weight":
            return llama3_factors(self._shape)
        if len(tensor.shape) == 1:
            return np.ones(tensor.shape, np.float32)
        drawn = self._rng.standard_normal(tensor.shape, np.float32)
        return np.asarray(drawn / math.sqrt(tensor.shape[-1]), np.float32)


def random_blocks(rng: np.random.Generator, kind: str, inputs: int, count: int) -> Bytes:
    """(count, bytes of a block): weights with standard deviation 1 / sqrt(`inputs`)."""
    blocks = rng.integers(0, 256, (count, BLOCKS[kind][1]), np.uint8)
    scale = 1.0 / (math.sqrt(inputs) * _SPREAD[kind])
    if kind == "Q8_0":
        blocks[blocks == 128] = 127  # quantisers never write -128
    if kind == "Q6_K":
        blocks[:, -2:] = _half(scale)
    else:
        blocks[:, :2] = _half(scale)
    if kind == "Q4_K":
        blocks[:, 2:4] = _half(_MEAN_CODE_Q4_K * scale)  # the weights' mean is zero
    return blocks


def _half(value: float) -> Bytes:
    return np.array([value], np.float16).view(np.uint8)


def llama3_factors(shape: Shape) -> npt.NDArray[np.float32]:
    """(head_size / 2,) divisors of the frequencies: 1 for short waves, the factor for long ones."""
    exponents = np.arange(0, shape.head_size, 2) / shape.head_size
    waves = 2 * np.pi * shape.theta**exponents
    smooth = (_LLAMA3_CONTEXT / waves - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / shape.llama3_factor + smooth)).astype(np.float32)


def add_settings(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Add the metadata that llama.cpp's converter writes for the architecture."""
    writer.add_name(f"random-{shape.name}")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.dense_ffn or shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_freq_base(shape.theta)
    if shape.architecture == "llama":
        writer.add_rope_dimension_count(shape.head_size)
        writer.add_vocab_size(shape.vocabulary)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.ffn)
    if shape.window:
        # Readers have the period of six layers and the RoPE base of windows (10,000) built in.
        writer.add_sliding_window(shape.window)
    if shape.linear_factor:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(shape.linear_factor)


def add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    """Add a vocabulary of this size: bytes and invented words."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [256 + i for i in range(256 - len(visible))]
    tokens = [chr(code) for code in visible + hidden] + ["ab"]
    tokens += [f"word{i}" for i in range(vocabulary - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(vocabulary - 2)
    writer.add_eos_token_id(vocabulary - 1)
