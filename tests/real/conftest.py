"""The embedded default model, loaded once; and the same weights in transformers, through the `gguf`
package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo import LLM
from octavo.config import StartOptions
from octavo.model.hub.paths import resolve


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    return resolve(None, print).path


@pytest.fixture(scope="session")
def llm(gguf_path: Path) -> LLM:
    """In float32, because the oracle computes in it."""
    return LLM(None, StartOptions(weights="f32", kv="f32", kv_memory_bytes=2**30, context_length=4096))


@pytest.fixture(scope="session")
def oracle(gguf_path: Path):  # type: ignore[no-untyped-def]
    """LlamaForCausalLM in float32; its weights were read and de-quantised by the `gguf` package, not by
    us."""
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(gguf_path)
    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()

    def halves(weight: np.ndarray, heads: int) -> np.ndarray:
        """GGUF stores q and k for interleaved rope: (heads, D/2, 2) becomes (heads, 2, D/2)."""
        return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)

    state = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "lm_head.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    names = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    for layer in range(30):
        for ours, theirs in names.items():
            weight = tensors[f"blk.{layer}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                weight = halves(weight, 9 if ours == "attn_q" else 3)
            state[f"model.layers.{layer}.{theirs}.weight"] = weight
    model.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in state.items()}, strict=True)
    return model
