"""A tiny random Llama as a folder that `octavo serve` loads: two layers, a byte-level vocabulary, a chat
template. No answer of it means anything; all of them are exact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, HEADS, KV_HEADS, LAYERS, FFN, CONTEXT = 64, 4, 2, 2, 96, 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_folder(folder: Path, seed: int = 0) -> Path:
    """The folder, made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tensors(folder / "model.safetensors", vocab_size, seed)
    return folder


def _write_tokenizer(folder: Path) -> int:
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[0], "bos_token": SPECIAL[0], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(tokens)


def _write_tensors(path: Path, vocab_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    head = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (KV_HEADS * head, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (KV_HEADS * head, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.mlp.gate_proj.weight": (FFN, HIDDEN),
            f"{at}.mlp.up_proj.weight": (FFN, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, FFN),
        }
    header: dict[str, object] = {}
    parts: list[bytes] = []
    at_byte = 0
    for name, shape in shapes.items():
        is_norm = len(shape) == 1
        values = rng.normal(1.0 if is_norm else 0.0, 0.1 if is_norm else 0.3, shape).astype(np.float32)
        data = values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at_byte, at_byte + len(data)]}
        parts.append(data)
        at_byte += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
