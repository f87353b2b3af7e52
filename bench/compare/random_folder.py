"""Writes a folder of Llama 3.2 1B's shape in bf16 with random weights, 2.5 GB, for engines that read folders.

    python bench/compare/random_folder.py TARGET
    OCTAVO_PEERS=$PWD/TARGET python bench/compare/speed.py --classes bf16 --inp 64 --out 32

TARGET becomes a folder of peers: it links to the environments of $OCTAVO_PEERS, and the model's folder
replaces that of the default model and has its tokenizer. Random weights say nothing about quality; bytes and
operations are those of the real model.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

import peers

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_SIZE, LAYERS, VOCABULARY = 2048, 8192, 32, 8, 64, 16, 128_256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PIECE = 1 << 24  # random numbers at once


def main() -> None:
    """Write the folder and the links."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    target = parser.parse_args().target.resolve()
    original = peers.models()["folder"]
    folder = target / "models" / original.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("vllm", "oracle"):
        if not (target / name).is_symlink():
            (target / name).symlink_to((peers.peers_folder() / name).resolve())
    for path in original.glob("*token*"):
        shutil.copy(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    with (folder / "model.safetensors").open("wb") as file:
        write_tensors(file, dict(tensors()))
    peers.say(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e9:.1f} GB")


def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors, as transformers writes them."""
    kv, query = KV_HEADS * HEAD_SIZE, HEADS * HEAD_SIZE
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (HIDDEN,)
        yield f"{at}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{at}.self_attn.q_proj.weight", (query, HIDDEN)
        yield f"{at}.self_attn.k_proj.weight", (kv, HIDDEN)
        yield f"{at}.self_attn.v_proj.weight", (kv, HIDDEN)
        yield f"{at}.self_attn.o_proj.weight", (HIDDEN, query)
        yield f"{at}.mlp.gate_proj.weight", (FFN, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", (FFN, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", (HIDDEN, FFN)


def write_tensors(file: BinaryIO, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file: the header's size, the header, the data. Norms are ones, the rest is
    random."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    random = np.random.default_rng(0)
    for shape in shapes.values():
        count = int(np.prod(shape))
        for first in range(0, count, _PIECE):
            size = min(_PIECE, count - first)
            if len(shape) == 1:
                values = np.ones(size, np.float32)
            else:
                values = random.standard_normal(size, np.float32) * np.float32(shape[1] ** -0.5)
            file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())


if __name__ == "__main__":
    main()
