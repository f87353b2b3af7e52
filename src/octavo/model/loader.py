"""From a path to a model that is ready to run: header, description, tokenizer, weights, fingerprint.

    ModelPath -> GgufFile | SafetensorsFiles -> Description -> weights, tokenizer, fingerprint -> LoadedModel

The files are hashed by a second thread while the weights are converted. Beyond the resident weights, a load
holds one tensor of the file at a time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import BadModelFile, ConfigError, UnsupportedModel
from octavo.fields import Fields, read_json_fields
from octavo.kernels.contract import WeightOps
from octavo.kernels.packed import unpack_vector
from octavo.model.families import Description, describe_config, describe_gguf
from octavo.model.fingerprint import fingerprint, hash_files
from octavo.model.gguf import GgufFile, read_gguf
from octavo.model.hub import ModelPath
from octavo.model.packed_cache import PackedFolder, Weights, read_through
from octavo.model.quantised import DequantisedFiles, dequantised_source
from octavo.model.reader import TensorSource
from octavo.model.safetensors_file import SafetensorsFiles, read_safetensors
from octavo.model.spec import Model, ModelSpec, ModelWeights, turns_of
from octavo.model.weights import read_weights
from octavo.text.tokenizer import Tokenizer
from octavo.units import format_bytes

log = logging.getLogger("octavo.load")
ROPE_FACTORS = "rope_freqs.weight"
TABLE_BYTES_LEAST = 32 << 20  # tables of that size are allowed however small the model is


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine needs: the model, and the tokenizer (with its chat template) that goes with it."""

    model: Model
    tokenizer: Tokenizer
    mapped_bytes: int = 0  # of weights that are pages of a file, which the system counts as free memory


def load_model(
    path: ModelPath,
    ops: WeightOps,
    context_length: int | None = None,
    progress: Callable[[str], None] | None = None,
    packed: PackedFolder | None = None,
) -> LoadedModel:
    """Load weights and tokenizer. The context is the model's own, or `context_length` if that is less.
    With `packed`, `ops` are native ones, and weights come from a packed copy; without one, it is made.

    Raises ModelNotFound, BadModelFile (the message names the tensor, key or byte), UnsupportedModel,
    ConfigError. O(bytes of weights); calls `progress` about once a second.
    """
    if context_length is not None and context_length < 1:
        raise ConfigError(f"context_length is {context_length}; allowed: 1 or more, up to the model's own")
    report = progress or _ignore
    if path.kind == "gguf":
        gguf = read_gguf(path.path)
        description = _describe_gguf(gguf)
        return _load(path, gguf, gguf.paths, description, _Loading(ops, context_length, report, packed))
    files = read_safetensors(path.path)
    config = read_json_fields(path.path / "config.json")
    source = dequantised_source(files, config)
    if isinstance(source, DequantisedFiles):
        log.info("%s", source.in_words())
    description = describe_config(config)
    return _load(path, source, files.paths, description, _Loading(ops, context_length, report, packed))


@dataclass(frozen=True, slots=True)
class _Loading:
    """How to load."""

    ops: WeightOps
    context_length: int | None
    progress: Callable[[str], None]
    packed: PackedFolder | None


def _load(
    path: ModelPath,
    source: GgufFile | SafetensorsFiles | DequantisedFiles,
    paths: Sequence[Path],
    description: Description,
    how: _Loading,
) -> LoadedModel:
    ops, context_length = how.ops, how.context_length
    with ThreadPoolExecutor(1, "octavo-fingerprint") as pool:
        hashing = pool.submit(hash_files, paths, source.header_bytes)
        is_gguf = isinstance(source, GgufFile)
        if isinstance(source, GgufFile):
            tokenizer = Tokenizer.from_gguf(source.metadata, str(path.path))
        else:
            tokenizer = Tokenizer.from_folder(path.path)
        described = repr(description.spec) + (source.identity if isinstance(source, DequantisedFiles) else "")

        def read(tensors: TensorSource, to: WeightOps) -> ModelWeights:
            return read_weights(tensors, str(path.path), is_gguf, description, to, how.progress)

        if how.packed is None:
            found = Weights(read(source, ops))
        else:
            named = fingerprint(hashing.result(), described)
            found = read_through(how.packed, named, source, ops, read, how.progress)
        name_of_weights = fingerprint(hashing.result(), described)
    spec = description.spec
    if is_gguf and tokenizer.vocab_size > spec.vocab_size:
        raise BadModelFile(
            f"{path.path} has {tokenizer.vocab_size:,} tokens, but an embedding of {spec.vocab_size:,} rows"
        )
    if context_length is not None and context_length < spec.context_length:
        spec = dataclasses.replace(spec, context_length=context_length)
    _check_tables(path, spec, found.weights.num_bytes)
    model = Model(path.name, spec, found.weights, name_of_weights, turns_of(spec, ops.vector))
    return LoadedModel(model, tokenizer, found.mapped_bytes)


def _check_tables(path: ModelPath, spec: ModelSpec, weight_bytes: int) -> None:
    """A header alone must not make tables of rotations that are larger than the model.

    Raises UnsupportedModel.
    """
    kinds = {(spec.rope(layer), spec.temperature(layer)) for layer in range(spec.num_layers)}
    widths = [rope.dims if rope else spec.head_size for rope, scaled in kinds if rope or scaled]
    num_bytes, allowed = 4 * spec.context_length * sum(widths), max(weight_bytes, TABLE_BYTES_LEAST)
    if num_bytes > allowed:
        raise UnsupportedModel(
            f"{path.path}: a context of {spec.context_length:,} tokens needs tables of"
            f" {format_bytes(num_bytes)} for its rotary positions; allowed: up to {format_bytes(allowed)}."
            " Give a smaller --context-length"
        )


def _describe_gguf(gguf: GgufFile) -> Description:
    """The description, with the three things that only the tensors tell."""
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadModelFile(f"{gguf.path} has no matrix token_embd.weight")
    raw = gguf.tensors.get(ROPE_FACTORS)
    factors: tuple[float, ...] | None = None
    if raw is not None:
        if len(raw.shape) != 1 or raw.shape[0] > 1024:
            raise BadModelFile(
                f"{gguf.path}: tensor {ROPE_FACTORS!r} has shape {raw.shape}; expected one dimension"
            )
        factors = tuple(float(value) for value in unpack_vector(raw))
    fields = Fields(str(gguf.path), gguf.metadata)
    return describe_gguf(fields, embedding.shape[0], factors, "output.weight" in gguf.tensors)


def _ignore(_message: str) -> None:
    """Nobody asked for progress."""
