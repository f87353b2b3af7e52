"""From a path to a model that is ready to run: header, description, tokenizer, weights, fingerprint.

    ModelPath -> GgufFile | SafetensorsFiles -> Description -> weights, tokenizer, fingerprint -> LoadedModel

The files are hashed by a second thread while the weights are converted. Beyond the resident weights, a load
holds one tensor of the file at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import BadModelFile, ConfigError
from octavo.fields import Fields, read_json_fields
from octavo.kernels.contract import WeightOps
from octavo.kernels.packed import unpack_vector
from octavo.model.families import Description, RopeTensors, describe_config, describe_gguf
from octavo.model.fingerprint import fingerprint, hash_files
from octavo.model.gguf import GgufFile, read_gguf
from octavo.model.hub import ModelPath
from octavo.model.safetensors_file import SafetensorsFiles, read_safetensors
from octavo.model.spec import Model, ModelSpec, turns_of
from octavo.model.weights import read_weights
from octavo.text.tokenizer import Tokenizer

ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine needs: the model, and the tokenizer (with its chat template) that goes with it."""

    model: Model
    tokenizer: Tokenizer


def load_model(
    path: ModelPath,
    ops: WeightOps,
    context_length: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> LoadedModel:
    """Load weights and tokenizer. The context is the model's own, or `context_length`: less, or as much more
    as the model's configuration scales positions to.

    Raises ModelNotFound, BadModelFile (the message names the tensor, key or byte), UnsupportedModel,
    ConfigError. O(bytes of weights); calls `progress` about once a second.
    """
    if context_length is not None and context_length < 1:
        raise ConfigError(f"context_length is {context_length}; allowed: 1 or more, up to the model's own")
    report = progress or _ignore
    if path.kind == "gguf":
        gguf = read_gguf(path.path)
        description = _describe_gguf(gguf)
        spec = spec_within(description, context_length, str(gguf.path))
        return _load(path, gguf, [gguf.path], description, ops, spec, report)
    files = read_safetensors(path.path)
    description = describe_config(read_json_fields(path.path / "config.json"))
    spec = spec_within(description, context_length, str(path.path))
    return _load(path, files, files.paths, description, ops, spec, report)


def spec_within(description: Description, context_length: int | None, source: str) -> ModelSpec:
    """The spec in the context that was asked for, or in its own. Raises ConfigError: it is too long."""
    own = description.spec.context_length
    longest = max(own, description.longest_context)
    if context_length is not None and context_length > longest:
        scaled = f", which its scaling of positions extends to {longest:,}" if longest > own else ""
        why = (
            "" if scaled else "; only a scaling in its configuration (linear, dynamic, yarn) would allow more"
        )
        raise ConfigError(
            f"context_length is {context_length:,}, but {source} has a context of {own:,} tokens{scaled};"
            f" allowed: up to {longest:,}{why}"
        )
    return description.spec.within(own if context_length is None else context_length)


def _load(
    path: ModelPath,
    source: GgufFile | SafetensorsFiles,
    paths: Sequence[Path],
    description: Description,
    ops: WeightOps,
    spec: ModelSpec,
    progress: Callable[[str], None],
) -> LoadedModel:
    with ThreadPoolExecutor(1, "octavo-fingerprint") as pool:
        hashing = pool.submit(hash_files, paths, source.header_bytes)
        is_gguf = isinstance(source, GgufFile)
        if isinstance(source, GgufFile):
            tokenizer = Tokenizer.from_gguf(source.metadata, str(path.path))
        else:
            tokenizer = Tokenizer.from_folder(path.path)
        weights = read_weights(source, str(path.path), is_gguf, description, ops, progress)
        # A rope that the context decides on makes other K of the same weights.
        ropes = tuple(rope and rope.fixed(spec.context_length) for rope in spec.ropes)
        settings = repr(dataclasses.replace(description.spec, ropes=ropes))
        name_of_weights = fingerprint(hashing.result(), settings)
    if is_gguf and tokenizer.vocab_size > spec.vocab_size:
        raise BadModelFile(
            f"{path.path} has {tokenizer.vocab_size:,} tokens, but an embedding of {spec.vocab_size:,} rows"
        )
    model = Model(path.name, spec, weights, name_of_weights, turns_of(spec, ops.vector))
    return LoadedModel(model, tokenizer)


def _describe_gguf(gguf: GgufFile) -> Description:
    """The description, with what only the tensors tell."""
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadModelFile(f"{gguf.path} has no matrix token_embd.weight")
    ropes = RopeTensors(*(_rope_factors(gguf, name) for name in ROPE_FACTORS))
    fields = Fields(str(gguf.path), gguf.metadata)
    return describe_gguf(fields, embedding.shape[0], ropes, "output.weight" in gguf.tensors)


def _rope_factors(gguf: GgufFile, name: str) -> tuple[float, ...] | None:
    raw = gguf.tensors.get(name)
    if raw is None:
        return None
    if len(raw.shape) != 1 or raw.shape[0] > 1024:
        raise BadModelFile(f"{gguf.path}: tensor {name!r} has shape {raw.shape}; expected one dimension")
    return tuple(float(value) for value in unpack_vector(raw))


def _ignore(_message: str) -> None:
    """Nobody asked for progress."""
