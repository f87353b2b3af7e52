"""Safetensors: one file, or several named by model.safetensors.index.json, as views of mapped files.

    u64 header length | JSON {"name": {"dtype", "shape", "data_offsets": [begin, end)}} | tensor data

The header is parsed here, with bounds, and not by the `safetensors` library: its NumPy interface has no
bfloat16, copies every tensor it returns, and gives no view whose pages could be released one tensor at a
time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from octavo.errors import BadModelFile, ModelNotFound, UnsupportedModel
from octavo.fields import parse_json_object, read_json_fields
from octavo.kernels.contract import RawTensor
from octavo.model.files.mapped import MappedFile

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
HEADER_BYTES_MAX = 32 << 20
TENSORS_MAX = 1 << 16
SHARDS_MAX = 1 << 10
DIMENSIONS_MAX = 4
DIMENSION_MAX = 1 << 40
ITEM_BYTES: Mapping[str, int] = MappingProxyType({"F32": 4, "F16": 2, "BF16": 2})
# Types of quantised weights; floats of 8 bits have no other use.
CODE_BYTES: Mapping[str, int] = MappingProxyType(
    {"I8": 1, "U8": 1, "I32": 4, "I64": 8, "F8_E4M3": 1, "F8_E5M2": 1}
)


@dataclass(frozen=True, slots=True)
class SafetensorsFiles:
    """The tensors of all shards. `release` frees a tensor's pages once it is converted.

    `tensors` are floats; `codes` are of a kind of `CODE_BYTES`, and only config.json gives their meaning.
    """

    paths: tuple[Path, ...]
    tensors: Mapping[str, RawTensor]
    codes: Mapping[str, RawTensor]
    header_bytes: int  # the largest header, its length field included
    files: Mapping[str, MappedFile] = field(repr=False)  # by tensor name

    @property
    def num_bytes(self) -> int:
        """Bytes of all `tensors`."""
        return sum(raw.data.size for raw in self.tensors.values())

    def release(self, raw: RawTensor) -> None:
        """Give back the resident pages under a tensor of these files."""
        self.files[raw.name].release(raw.data)


def read_safetensors(folder: Path) -> SafetensorsFiles:
    """The weights of a folder: the index's shards when there is an index, else model.safetensors.

    Tensors of a type that is never a weight (masks of booleans) are left out, so a later lookup reports them
    as missing. Raises ModelNotFound, BadModelFile, UnsupportedModel. O(header bytes).
    """
    index = folder / INDEX_NAME
    expected = _read_index(index) if index.is_file() else None
    names = sorted(set(expected.values())) if expected else [SINGLE_NAME]
    tensors: dict[str, RawTensor] = {}
    codes: dict[str, RawTensor] = {}
    files: dict[str, MappedFile] = {}
    header_bytes = 0
    for name in names:
        path = folder / name
        if not path.is_file():
            raise ModelNotFound(f"{path} does not exist" + (f", but {index} names it" if expected else ""))
        file = MappedFile(path)
        found, header = _read_shard(file)
        header_bytes = max(header_bytes, header)
        for raw in found:
            if expected is not None and expected.get(raw.name) != name:
                raise BadModelFile(f"{path} holds {raw.name!r:.100}, which {index} does not place there")
            (tensors if raw.kind in ITEM_BYTES else codes)[raw.name] = raw
            files[raw.name] = file
    return SafetensorsFiles(
        tuple(folder / name for name in names),
        MappingProxyType(tensors),
        MappingProxyType(codes),
        header_bytes,
        MappingProxyType(files),
    )


def _read_index(index: Path) -> dict[str, str]:
    """Tensor name -> file name. A name that leaves the folder is refused."""
    mapping = read_json_fields(index).inner("weight_map").values
    if not 1 <= len(mapping) <= TENSORS_MAX:
        raise BadModelFile(f"{index}: weight_map has {len(mapping):,} entries; allowed: 1 to {TENSORS_MAX:,}")
    checked: dict[str, str] = {}
    for tensor, name in mapping.items():
        plain = isinstance(name, str) and name.endswith(".safetensors") and not set(name) & set("/\\\0")
        if not isinstance(name, str) or not plain:
            raise BadModelFile(
                f"{index}: {tensor!r:.100} is in {name!r:.100}; allowed: a .safetensors file of the same"
                " folder"
            )
        checked[tensor] = name
    if len(set(checked.values())) > SHARDS_MAX:
        raise BadModelFile(f"{index} names more than {SHARDS_MAX:,} files")
    return checked


def _read_shard(file: MappedFile) -> tuple[list[RawTensor], int]:
    """The tensors of one file, and the bytes of its header."""
    if file.size < 8:
        raise BadModelFile(f"{file.path} has {file.size} bytes, too few for a safetensors header")
    length = int.from_bytes(file.data[:8].tobytes(), "little")
    if length > min(HEADER_BYTES_MAX, file.size - 8):
        raise BadModelFile(
            f"{file.path} ({file.size:,} bytes) has a header of {length:,}; allowed: {HEADER_BYTES_MAX:,}"
        )
    start = 8 + length
    header = parse_json_object(file.data[8:start].tobytes(), f"{file.path}: the header")
    header.pop("__metadata__", None)
    if len(header) > TENSORS_MAX:
        raise BadModelFile(f"{file.path} holds {len(header):,} tensors; allowed: up to {TENSORS_MAX:,}")
    raws = [_read_entry(file, start, name, entry) for name, entry in header.items()]
    return [raw for raw in raws if raw is not None], start


def _read_entry(file: MappedFile, start: int, name: str, entry: object) -> RawTensor | None:
    """One tensor as a view, or None for a type that is never a weight; the range is checked either way."""
    where = f"{file.path}: tensor {name!r:.100}"
    if not isinstance(entry, dict):
        raise BadModelFile(f"{where} is described by {type(entry).__name__}; allowed: an object")
    kind = entry.get("dtype")
    shape, offsets = _sizes(entry.get("shape"), DIMENSIONS_MAX), _sizes(entry.get("data_offsets"), 2)
    if shape is None or offsets is None or len(offsets) != 2:
        raise BadModelFile(f"{where} has a shape or data_offsets that are not lists of sizes")
    begin, end = offsets
    if not begin <= end <= file.size - start:
        raise BadModelFile(
            f"{where} lies at bytes {begin:,} to {end:,} of {file.size - start:,} (a broken download?)"
        )
    if kind in ("BOOL", "I16", "U16", "U32", "U64"):
        return None
    known = {**ITEM_BYTES, **CODE_BYTES}
    if not isinstance(kind, str) or kind not in known:
        raise UnsupportedModel(f"{where} is stored as {kind!r:.40}; allowed: {', '.join(known)}")
    if math.prod(shape) * known[kind] != end - begin:
        raise BadModelFile(f"{where} of shape {shape} as {kind} does not take {end - begin:,} bytes")
    return RawTensor(name, kind, shape, file.data[start + begin : start + end])


def _sizes(value: object, most: int) -> tuple[int, ...] | None:
    """A list of at most `most` whole numbers that a size could be, or None."""
    if not isinstance(value, list) or len(value) > most:
        return None
    if not all(type(size) is int and 0 <= size <= DIMENSION_MAX for size in value):
        return None
    return tuple(value)
