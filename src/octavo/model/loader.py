"""Loads a model from a path: header, description, tokenizer, weights, fingerprint.

    ModelPath -> GgufFile | SafetensorsFiles -> Description -> weights, tokenizer, fingerprint -> LoadedModel

A second thread hashes the files while the weights are converted. Besides the resident weights, a load holds
one tensor of the file at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import BadModelFile, ConfigError, UnsupportedModel
from octavo.fields import Fields, read_json_fields
from octavo.kernels.contract import WeightOps
from octavo.kernels.packed import unpack_vector
from octavo.model.families import Description, RopeTensors, describe_config, describe_gguf
from octavo.model.files.fingerprint import fingerprint, hash_files, stamps_of
from octavo.model.files.gguf import GgufFile, read_gguf
from octavo.model.files.safetensors_file import SafetensorsFiles, read_safetensors
from octavo.model.hub.paths import ModelPath
from octavo.model.packed_cache import Origin, PackedFolder, Weights, read_through
from octavo.model.quantised.source import DequantisedFiles, dequantised_source
from octavo.model.reader import TensorSource, WeightReader
from octavo.model.spec import Model, ModelSpec, ModelWeights, rope_tables_of
from octavo.model.split import Split, check_ranks
from octavo.model.weights import read_weights
from octavo.text.gguf_vocabulary import pre_tokenizer_warning
from octavo.text.tokenizer import Tokenizer
from octavo.types import Notice
from octavo.units import format_bytes

log = logging.getLogger("octavo.load")
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
TABLE_BYTES_LEAST = 32 << 20  # tables of that size are allowed for any model, however small


@dataclass(frozen=True, slots=True)
class WholeModel:
    """A model of which this process has a part."""

    num_parameters: int
    weight_bytes: int  # on all ranks


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine needs: the model, and its tokenizer with the chat template."""

    model: Model
    tokenizer: Tokenizer
    mapped_bytes: int = 0  # of weights that are pages of a file, which the system counts as free memory
    weights_fingerprint: bytes = b""  # of the weights, independent of the context: names packed copies
    whole: WholeModel | None = None  # None: this process has the whole model


def load_model(
    path: ModelPath,
    ops: WeightOps,
    context_length: int | None = None,
    progress: Callable[[str], None] | None = None,
    packed: PackedFolder | None = None,
    split: Split | None = None,
) -> LoadedModel:
    """Load weights and tokenizer. The context is the model's own, or `context_length`: shorter, or up to the
    length to which the model's configuration scales positions. With `packed`, `ops` are native ones, and
    weights are read from a packed copy, which is made if missing. With `split`, a rank's part of the weights:
    rank 0 has the model's fingerprint, others have none.

    Raises ModelNotFound, BadModelFile (the message names the tensor, key or byte), UnsupportedModel,
    ConfigError. O(bytes of weights); calls `progress` about once a second.
    """
    if context_length is not None and context_length < 1:
        raise ConfigError(f"context_length is {context_length}; allowed: 1 or more, up to the model's own")
    opened = open_files(path)
    if isinstance(opened.source, DequantisedFiles):
        log.info("%s", opened.source.in_words())
    spec = spec_within(opened.description, context_length, opened.label)
    split = split or Split()
    check_ranks(split.num_ranks, spec.num_heads, spec.num_kv_heads)
    return _load(opened, _LoadOptions(ops, spec, progress or _ignore, packed, split))


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """A model's files with their headers parsed, and no weight read."""

    path: ModelPath
    source: GgufFile | SafetensorsFiles | DequantisedFiles
    paths: Sequence[Path]
    description: Description

    @property
    def label(self) -> str:
        """The name for messages."""
        return str(self.path.path)

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file, not a folder with safetensors."""
        return isinstance(self.source, GgufFile)


def open_files(path: ModelPath) -> OpenedFiles:
    """Headers and settings. Raises what `load_model` raises for them. O(header bytes)."""
    if path.kind == "gguf":
        gguf = read_gguf(path.path)
        return OpenedFiles(path, gguf, gguf.paths, describe_gguf_file(gguf))
    files = read_safetensors(path.path)
    config = read_json_fields(path.path / "config.json")
    return OpenedFiles(path, dequantised_source(files, config), files.paths, describe_config(config))


def read_tokenizer(opened: OpenedFiles) -> Tokenizer:
    """The tokenizer of the files. Raises BadModelFile, UnsupportedModel."""
    if not isinstance(opened.source, GgufFile):
        return Tokenizer.from_folder(opened.path.path)
    tokenizer = Tokenizer.from_gguf(opened.source.metadata, str(opened.path.path))
    require_rows(opened.path, opened.description, tokenizer.vocab_size)
    return tokenizer


def tokenizer_warning(opened: OpenedFiles) -> str:
    """Which part of the tokenizer was guessed, in words; "": nothing."""
    if not isinstance(opened.source, GgufFile):
        return ""
    return pre_tokenizer_warning(Fields(str(opened.path.path), opened.source.metadata))


def require_rows(path: ModelPath, description: Description, num_tokens: int) -> None:
    """Raise BadModelFile unless each token of a GGUF file has a row of the embedding."""
    rows = description.spec.vocab_size
    if num_tokens > rows:
        raise BadModelFile(f"{path.path} has {num_tokens:,} tokens, but an embedding of {rows:,} rows")


@dataclass(frozen=True, slots=True)
class _LoadOptions:
    """The options of a load, for the context of `spec`."""

    ops: WeightOps
    spec: ModelSpec
    progress: Callable[[str], None]
    packed: PackedFolder | None
    split: Split


def spec_within(description: Description, context_length: int | None, source: str) -> ModelSpec:
    """The spec with the requested context, or with its own. Raises ConfigError if it is too long."""
    own = description.spec.context_length
    longest = max(own, description.longest_context)
    if context_length is not None and context_length > longest:
        scaled = f", which its scaling of positions extends to {longest:,}" if longest > own else ""
        only = "only a scaling in its configuration (linear, dynamic, yarn) would allow more"
        why = "" if scaled else f"; {description.context_note or only}"
        raise ConfigError(
            f"context_length is {context_length:,}, but {source} has a context of {own:,} tokens{scaled};"
            f" allowed: up to {longest:,}{why}"
        )
    if context_length is None and description.context_note:
        log.warning("the context is %s tokens: %s", f"{own:,}", description.context_note)
    return description.spec.within(own if context_length is None else context_length)


def _load(opened: OpenedFiles, how: _LoadOptions) -> LoadedModel:
    path, source, description = opened.path, opened.source, opened.description
    ops, spec = how.ops, how.spec
    stamps = stamps_of(opened.paths)  # before they are read: a change meanwhile makes them differ
    with ThreadPoolExecutor(1, "octavo-fingerprint") as pool:
        of_files = _no_hash if how.split.rank else hash_files
        hashing = pool.submit(of_files, opened.paths, source.header_bytes)
        tokenizer = read_tokenizer(opened)
        if doubt := tokenizer_warning(opened):
            how.progress(Notice(f"{path.path}: {doubt}"))
        described = repr(description.spec) + (source.identity if isinstance(source, DequantisedFiles) else "")

        def read(tensors: TensorSource, to: WeightOps) -> ModelWeights:
            return read_weights(
                WeightReader(
                    tensors,
                    str(path.path),
                    opened.is_gguf,
                    description,
                    to,
                    how.progress,
                    split=how.split,
                )
            )

        if how.packed is None:
            found = Weights(read(source, ops))
        else:  # independent of the context, which changes no weight
            made_of = Origin(fingerprint(hashing.result(), described), stamps)
            found = read_through(how.packed, made_of, source, ops, read, how.progress)
        of_weights = fingerprint(hashing.result(), described)
        # A rope that depends on the context gives other K with the same weights.
        fixed = repr(tuple(rope and rope.fixed(spec.context_length) for rope in spec.ropes))
        name_of_weights = fingerprint(hashing.result(), described + fixed)
    check_tables(path, spec, found.weights.num_bytes * how.split.num_ranks)
    rope_tables = rope_tables_of(spec, ops.vector)
    model = Model(path.name, spec, found.weights, name_of_weights, rope_tables, how.split)
    return LoadedModel(model, tokenizer, found.mapped_bytes, of_weights)


def check_tables(path: ModelPath, spec: ModelSpec, weight_bytes: int) -> int:
    """The bytes of the tables of rotations. Raises UnsupportedModel if they are larger than the model: a
    header alone must not cause such allocations.
    """
    kinds = {(spec.rope(layer), spec.temperature(layer)) for layer in range(spec.num_layers)}
    widths = [rope.dims for rope, _ in kinds if rope] + [spec.head_size for _, scaled in kinds if scaled]
    num_bytes, allowed = 4 * spec.context_length * sum(widths), max(weight_bytes, TABLE_BYTES_LEAST)
    if num_bytes > allowed:
        raise UnsupportedModel(
            f"{path.path}: a context of {spec.context_length:,} tokens needs tables of"
            f" {format_bytes(num_bytes)} for its rotary positions; allowed: up to {format_bytes(allowed)}."
            " Give a smaller --context-length"
        )
    return num_bytes


def describe_gguf_file(gguf: GgufFile) -> Description:
    """The description, including facts that only the tensors hold."""
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadModelFile(f"{gguf.path} has no matrix token_embd.weight")
    ropes = RopeTensors(*(_rope_factors(gguf, name) for name in _ROPE_FACTORS))
    fields = Fields(str(gguf.path), gguf.metadata)
    return describe_gguf(fields, embedding.shape[0], ropes, "output.weight" in gguf.tensors)


def _rope_factors(gguf: GgufFile, name: str) -> tuple[float, ...] | None:
    raw = gguf.tensors.get(name)
    if raw is None:
        return None
    if len(raw.shape) != 1 or raw.shape[0] > 1024:
        raise BadModelFile(f"{gguf.path}: tensor {name!r} has shape {raw.shape}; expected one dimension")
    return tuple(float(value) for value in unpack_vector(raw))


def _no_hash(paths: Sequence[Path], header_bytes: int) -> bytes:
    """Hash nothing: rank 0 hashes the files."""
    return b""


def _ignore(_message: str) -> None:
    """Discard progress."""
