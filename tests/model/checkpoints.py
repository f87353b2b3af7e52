"""Tiny checkpoints of some families without transformers: its configuration, names and shapes of tensors,
and the logits that it computed are recorded in `recorded/`; weights are drawn here from a tensor's name and a
seed.

    python -m tests.model.checkpoints      records all of them with transformers

The quick tier compares with what is recorded; the full tier compares what is recorded with transformers
itself.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from tests.model.sizes import VOCABULARY

from octavo.model.hub.paths import ModelPath

RECORDED = Path(__file__).with_name("recorded")
PROMPT = 41  # tokens: crosses two block borders, and is longer than every window
LAST = 3  # positions whose logits are recorded
# One of each shape of decoder: gated, with two windows and caps and norms behind branches, layer norms with
# learned positions, parallel branches, norms behind branches alone, experts. Then what other tests make files
# of.
SHAPES = ("llama", "gemma2", "gpt2", "gpt_neox", "olmo2", "mixtral")
NAMES = (*SHAPES, "llama-wide", "llama-tied", "llama-rope-llama3", "mistral-window", "gemma3_text", "qwen3")
NAMES += ("gpt_oss-window-8", "qwen2", "qwen3_moe")


@dataclass(frozen=True)
class Checkpoint:
    """A model as a file holds it: its configuration, and arrays by transformers' names."""

    values: dict[str, object]
    arrays: dict[str, np.ndarray]
    logits: np.ndarray  # (LAST, V), of transformers, behind the prompt of `random_prompt(PROMPT)`

    @property
    def config(self) -> SimpleNamespace:
        """With transformers' attributes."""
        return SimpleNamespace(**self.values)

    def state_dict(self) -> dict[str, np.ndarray]:
        """As transformers' models have it."""
        return self.arrays

    def save(self, folder: Path, shard_bytes: int | None = None) -> ModelPath:
        """As a folder of config.json, model.safetensors (or shards of no more than so many bytes, if a tensor
        has no more) and the least tokenizer."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.values))
        if shard_bytes is None:
            save_file(self.arrays, folder / "model.safetensors", {"format": "pt"})
        else:
            self._save_shards(folder, shard_bytes)
        add_tokenizer(folder)
        return ModelPath("tiny", folder, "safetensors")

    def _save_shards(self, folder: Path, shard_bytes: int) -> None:
        from safetensors.numpy import save_file

        shards: list[dict[str, np.ndarray]] = [{}]
        for name, array in self.arrays.items():
            if shards[-1] and sum(one.nbytes for one in shards[-1].values()) + array.nbytes > shard_bytes:
                shards.append({})
            shards[-1][name] = array
        names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
        for name, shard in zip(names, shards, strict=True):
            save_file(shard, folder / name, {"format": "pt"})
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def checkpoint(name: str, seed: int = 0) -> Checkpoint:
    """A recorded one; its logits are those of seed 0."""
    record = json.loads((RECORDED / f"{name}.json").read_text())
    shapes = {key: tuple(shape) for key, shape in record["shapes"].items()}
    arrays = {key: _weights(key, shape, "gemma" in name, seed) for key, shape in shapes.items()}
    return Checkpoint(record["config"], arrays, np.array(record["logits"], np.float32))


def save_checkpoint(name: str, folder: Path, seed: int = 0, shard_bytes: int | None = None) -> ModelPath:
    """A recorded one as a folder that the loader reads."""
    return checkpoint(name, seed).save(folder, shard_bytes)


def _weights(name: str, shape: tuple[int, ...], norms_on_zero: bool, seed: int) -> np.ndarray:
    """Large enough for a mistake to show; norms of Gemma's are stored less 1."""
    is_norm = ("norm" in name or "ln_" in name) and name.endswith("weight")
    centre = 1.0 if is_norm and not norms_on_zero else 0.0
    values = np.random.default_rng([zlib.crc32(name.encode()), seed]).standard_normal(shape, np.float32)
    return (centre + (0.2 if len(shape) == 1 else 0.15) * values).astype(np.float32)


def random_prompt(length: int, seed: int = 1) -> list[int]:
    """Token ids."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def add_tokenizer(folder: Path) -> None:
    """The least tokenizer.json that the loader takes: 96 byte-level letters and no merges."""
    import tokenizers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[:VOCABULARY]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))


def record(name: str, folder: Path) -> dict[str, object]:
    """What transformers says of a family's tiny model with these weights."""
    import torch
    import transformers
    from safetensors.numpy import load_file
    from tests.model.model_bench import expected_logits, make_model

    theirs = make_model(name)
    theirs.save_pretrained(folder)
    config = json.loads(theirs.config.to_json_string(use_diff=False))
    shapes = {key: array.shape for key, array in load_file(folder / "model.safetensors").items()}
    arrays = {key: _weights(key, shape, "gemma" in name, 0) for key, shape in shapes.items()}
    Checkpoint(config, arrays, np.zeros(0, np.float32)).save(folder)
    filled = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    logits = expected_logits(filled.eval(), random_prompt(PROMPT))[-LAST:]
    rounded = [[float(f"{value:.7g}") for value in row] for row in logits.tolist()]
    return {"config": config, "shapes": shapes, "logits": rounded}


def main() -> None:
    """Record all of them."""
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            (RECORDED / f"{name}.json").write_text(json.dumps(record(name, Path(folder))) + "\n")


if __name__ == "__main__":
    main()
