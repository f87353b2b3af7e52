"""A folder with safetensors as one GGUF file.

    1. plan    the reader of weights runs over ops that make nothing: which matrices, in which kinds
    2. check   the metadata that would be written is read back, and must describe the very same model
    3. write   the reader runs again, and each matrix is encoded into its place

So a family needs no rule here beyond its row: q and k rows go back into the order that GGUF has, tensors that
GGUF has as one are put together, and what the metadata cannot say is refused before anything is written. The
tokenizer is kept whole, as `tokenizer.huggingface.json`, which other programs may not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from octavo.errors import UnsupportedModel, shown
from octavo.fields import Fields, read_json_fields
from octavo.kernels.contract import Floats, Matrix, RawTensor
from octavo.kernels.file_order import encoded
from octavo.kernels.held import kind_held
from octavo.model.conversion.convert import (
    SLAB_ELEMENTS,
    Progress,
    Reporter,
    Target,
    quantisation_pairs,
    writing,
)
from octavo.model.conversion.folder_layout import FolderLayout, Part, PlannedMatrix, lay_out
from octavo.model.conversion.gguf_metadata import Metadata, Value, describe, describe_tokenizer, factors_of
from octavo.model.families import Description, describe_config, describe_gguf
from octavo.model.families.row import Family
from octavo.model.families.scaling import RopeTensors
from octavo.model.files.gguf_writer import GgufWriter, PlannedTensor
from octavo.model.files.safetensors_file import read_safetensors
from octavo.model.loader import ROPE_FACTORS
from octavo.model.quantised.source import dequantised_source
from octavo.model.reader import Reader
from octavo.model.rope import RopeSpec, Temperature
from octavo.model.spec import ModelSpec
from octavo.model.weights import read_weights
from octavo.text.model_templates import templates_of_folder
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary_folder import optional_fields

_SAME_FREQUENCY = 1e-6  # of factors that are rounded to float32
# What each scaling of rope reads beside theta and dims.
_USED_BY: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor", "original_context"),
    "yarn": ("factor", "original_context", "beta_fast", "beta_slow", "truncate", "attention_factor"),
    "longrope": ("factors", "long_factors", "original_context", "attention_factor"),
}


def convert_folder(folder: Path, target: Target, progress: Progress) -> Sequence[PlannedTensor]:
    """Write the target; returns its tensors. Raises as `convert_gguf`. O(bytes), read twice where they are
    quantised already."""
    target.require_sound()
    config = read_json_fields(folder / "config.json")
    source, description = dequantised_source(read_safetensors(folder), config), describe_config(config)
    progress("looking at the weights")
    planning = _PlanningOps(target.weights)
    weights = read_weights(Reader(source, str(folder), False, description, planning, progress))
    layout = lay_out(weights, description)
    factors = factors_of(description)
    layout.vectors.update(factors)
    metadata = Metadata(
        describe(description, folder.resolve().name) | _tokenizer_values(folder, description.spec.vocab_size)
    )
    require_same_model(description, metadata, factors, str(folder))
    plan = [
        *layout.tensors,
        *(PlannedTensor(name, "F32", vector.shape) for name, vector in layout.vectors.items()),
    ]
    pairs = [*metadata.pairs(), *quantisation_pairs(target.weights)]
    with writing(target, pairs, plan) as writer:
        for name, vector in layout.vectors.items():
            writer.write(name, np.ascontiguousarray(vector, np.float32).view(np.uint8).reshape(-1))
        ops = _WritingOps(writer, layout, Reporter(plan, progress))
        read_weights(Reader(source, str(folder), False, description, ops))
    return plan


def require_same_model(
    description: Description, metadata: Metadata, factors: Mapping[str, Floats], label: str
) -> None:
    """Raise UnsupportedModel unless the metadata describe this very model when they are read back."""
    fields = Fields(f"{label} as GGUF", metadata.values)
    given = (tuple(factors[name].tolist()) if name in factors else None for name in ROPE_FACTORS)
    again = describe_gguf(fields, description.spec.vocab_size, RopeTensors(*given), not description.tied)
    differing = differences(description.spec, again.spec)
    longest = [max(each.longest_context, each.spec.context_length) for each in (description, again)]
    if longest[0] != longest[1]:
        differing.append("longest_context")
    if again.mixed_layers != description.mixed_layers:
        differing.append("mixed_layers")
    if _essence(again.family) != _essence(description.family):
        differing.append("tensors")
    if differing:
        raise UnsupportedModel(
            f"{label}: GGUF's metadata for family {description.family.name} cannot say its "
            f"{', '.join(differing)}; allowed to convert: models whose settings they can say. Serve the "
            "folder as it is, with --weights"
        )


def differences(spec: ModelSpec, again: ModelSpec) -> list[str]:
    """The fields in which two specs do not mean the same; numbers count as float32."""
    found = []
    for field in dataclasses.fields(ModelSpec):
        if field.name == "family":  # GGUF has one name for several
            continue
        one, other = getattr(spec, field.name), getattr(again, field.name)
        if field.name == "ropes":
            is_same = len(one) == len(other) and all(
                _turn_alike(a, b, spec.context_length) for a, b in zip(one, other, strict=True)
            )
        else:
            is_same = _equal(one, other)
        if not is_same:
            found.append(field.name)
    return found


def _essence(family: Family) -> Family:
    """What a row says of the tensors in GGUF."""
    return dataclasses.replace(family, name="", arch="", config_keys={}, config_defaults={}, gguf_defaults={})


def _turn_alike(one: RopeSpec | None, other: RopeSpec | None, context_length: int) -> bool:
    if one is None or other is None:
        return one is other
    if "factors" in (one.scaling, other.scaling) and {one.scaling, other.scaling} <= {"llama3", "factors"}:
        theirs, ours = other.inverse_frequencies(context_length), one.inverse_frequencies(context_length)
        return one.dims == other.dims and np.allclose(ours, theirs, rtol=_SAME_FREQUENCY, atol=0)
    used = _USED_BY.get(one.scaling, ())
    return all(
        _equal(getattr(one, name), getattr(other, name)) for name in ("theta", "dims", "scaling", *used)
    )


def _equal(one: object, other: object) -> bool:
    """Equal, and numbers as float32."""
    if isinstance(one, Temperature) and isinstance(other, Temperature):
        return _equal(dataclasses.astuple(one), dataclasses.astuple(other))
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.float32(one) == np.float32(other))
    return one == other


def _tokenizer_values(folder: Path, vocab_size: int) -> dict[str, Value]:
    """Raises UnsupportedModel where the file would have other special tokens than the folder."""
    tokenizer = Tokenizer.from_folder(folder)
    templates = templates_of_folder(folder, optional_fields(folder / "tokenizer_config.json"))
    stop_ids = {token for token in tokenizer.stop_ids if token < vocab_size}  # others are never drawn
    values = describe_tokenizer(tokenizer, templates, stop_ids)
    again = Tokenizer.from_gguf(values, f"{folder} as GGUF")
    pairs = {
        "begin token": (tokenizer.bos_id, again.bos_id),
        "end token": (tokenizer.eos_id, again.eos_id),
        "end tokens": (stop_ids, again.stop_ids),
        "special tokens": (tokenizer.special_ids, again.special_ids),
        "size": (tokenizer.vocab_size, again.vocab_size),
    }
    for name, (had, has) in pairs.items():
        if had != has:
            raise UnsupportedModel(
                f"{folder}: the tokenizer's {name}: {shown(had)}, and GGUF's metadata say {shown(has)}; "
                "allowed to convert: one begin token, and end tokens that they can name. Serve the folder"
            )
    if tokenizer.encode("Hello") != again.encode("Hello"):
        raise UnsupportedModel(
            f"{folder}: the tokenizer begins texts in a way that GGUF's metadata cannot say"
        )
    if tokenizer.vocab_size > vocab_size:
        raise UnsupportedModel(
            f"{folder} has {tokenizer.vocab_size:,} tokens, but an embedding of {vocab_size:,} rows"
        )
    return values


class _PlanningOps:
    """`WeightOps` that make nothing, but know what would be made, and in which order."""

    def __init__(self, weights: str) -> None:
        self._weights, self._count = weights, 0

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """What would be made."""
        rows, inputs = raw.shape
        self._count += 1
        return PlannedMatrix((rows, inputs), kind_held(raw, self._weights, table), self._count - 1)

    def vector(self, values: Floats) -> Floats:
        """The array itself."""
        return values


class _WritingOps:
    """`WeightOps` that encode each matrix into its place in the file."""

    def __init__(self, writer: GgufWriter, layout: FolderLayout, report: Reporter) -> None:
        self._writer, self._layout, self._report = writer, layout, report
        self._count = 0

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """Write it; what is returned is not looked at."""
        part = self._layout.parts[self._count]
        rows, inputs = raw.shape
        matrix = PlannedMatrix((rows, inputs), part.kind, self._count)
        self._count += 1
        self._write(raw, part)
        self._report.add(matrix.num_bytes)
        return matrix

    def vector(self, values: Floats) -> Floats:
        """The array itself: it was written before."""
        return values

    def _write(self, raw: RawTensor, part: Part) -> None:
        stored = raw.data.reshape(raw.shape[0], -1)
        step = max(16, SLAB_ELEMENTS // raw.shape[1] // 16 * 16)
        offset = part.first_byte
        for first in range(0, raw.shape[0], step):
            last = min(first + step, raw.shape[0])
            some = stored[first:last] if part.order is None else stored[part.order[first:last]]
            slab = RawTensor(raw.name, raw.kind, (last - first, raw.shape[1]), some.reshape(-1))
            data = encoded(slab, part.kind)
            self._writer.write(part.tensor, data, offset)
            offset += data.size
