"""GGUF files: a header parser that trusts nothing, over one mapped file, or one for each part of a split one.

    "GGUF" | u32 version | u64 tensors | u64 pairs | pairs ... | infos ... | padding | tensor data
        pair: key, u32 type, value
        info: name, u32 dims, u64 dim x dims, u32 kind, u64 offset into the tensor data

Every count, length and offset is checked against the file's size, and against one budget of memory for the
whole header, before anything is read or allocated. So a damaged file gives an error with its position, in
time proportional to the header. The native module reads string arrays (vocabularies) and NumPy reads numeric
arrays: no Python loop runs over tokens.

Source: the GGUF specification, versions 2 and 3 (version 1 had 32-bit lengths and is refused).
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.errors import BadModelFile, ModelError, ModelNotFound, UnsupportedModel
from octavo.kernels.contract import Bytes, RawTensor
from octavo.kernels.packed import BLOCKS
from octavo.model.files.gguf_split import SplitMark, foreign_key, part_paths, read_split_mark
from octavo.model.files.mapped import MappedFile
from octavo.units import format_bytes

NumberArray = npt.NDArray[np.generic]
MetaValue = bool | int | float | str | NumberArray | tuple[bytes, ...] | list["MetaValue"]

# Far above any real file, and far from any harm.
PAIRS_MAX = 1 << 16
TENSORS_MAX = 1 << 16
NAME_BYTES_MAX = 1 << 16
_STRING_BYTES_MAX = 1 << 26  # a whole tokenizer.json is the longest
ARRAY_LENGTH_MAX = 1 << 23
NESTED_LENGTH_MAX = 1 << 12
DIMENSIONS_MAX = 4
DIMENSION_MAX = 1 << 40
ALIGNMENT_MAX = 1 << 20
HEADER_MEMORY_MAX = 256 << 20  # of the parsed headers of all of a model's files
_OBJECT_BYTES = 64  # the overhead of a string or an array


@dataclass(frozen=True, slots=True)
class Kind:
    """A format of weights: `num_bytes` for every `group` of consecutive weights of a row."""

    name: str
    group: int
    num_bytes: int


_NAMES: Mapping[int, str] = MappingProxyType(
    {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K"}
    | {12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4"}
)
KINDS: Mapping[int, Kind] = MappingProxyType(
    {code: Kind(name, BLOCKS[name].size, BLOCKS[name].num_bytes) for code, name in _NAMES.items()}
)
# Named only to say what a file holds when we cannot serve it.
OTHER_KINDS: Mapping[int, str] = MappingProxyType(
    {9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S"}
    | {
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        34: "TQ1_0",
        35: "TQ2_0",
        40: "NVFP4",
    }
    | {41: "Q1_0"}
)

_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, struct.Struct] = MappingProxyType(
    {
        code: struct.Struct("<" + letter)
        for code, letter in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
    }
)
_DTYPES: Mapping[int, np.dtype[np.generic]] = MappingProxyType(
    {
        code: np.dtype(name)
        for code, name in zip(
            (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12),
            ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "u1", "<u8", "<i8", "<f8"),
            strict=True,
        )
    }
)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The parsed headers of all parts (one, unless the file is split). Tensors are views of the mapped files;
    `release` gives their pages back.
    """

    paths: tuple[Path, ...]
    version: int
    metadata: Mapping[str, MetaValue]  # the first part's
    tensors: Mapping[str, RawTensor]
    header_bytes: int  # everything before the tensor data, the maximum over parts
    files: Mapping[str, MappedFile] = field(repr=False)  # by tensor name

    @property
    def path(self) -> Path:
        """The first part, for messages."""
        return self.paths[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(raw.data.size for raw in self.tensors.values())

    def release(self, raw: RawTensor) -> None:
        """Give back the resident pages under a tensor of these files."""
        self.files[raw.name].release(raw.data)


def read_gguf(path: Path, problems: list[ModelError] | None = None) -> GgufFile:
    """Parse the header; of a split file, of which `path` is any part, the headers of all parts.

    Raises ModelNotFound (a part is missing), BadModelFile (damaged, lying, parts that are not of one set),
    UnsupportedModel (version, kind). With a list of `problems`, kinds that are not known are added there, and
    their tensors have no data. O(header bytes); the tensor data is not touched.
    """
    budget = _Budget(HEADER_MEMORY_MAX)
    given = _read_part(path, problems, budget)
    mark = read_split_mark(str(path), given.metadata, TENSORS_MAX)
    if mark is None:
        return given
    paths = part_paths(path, mark)
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        more = f" ({len(missing)} of its parts are missing)" if len(missing) > 1 else ""
        raise ModelNotFound(f"{path.with_name(missing[0])} does not exist, but {path} is split{more}")
    parts = [given if each == path else _read_part(each, problems, budget) for each in paths]
    for index, part in enumerate(parts):
        _check_part(parts[0], part, SplitMark(index, mark.count, mark.num_tensors))
    return _joined(parts, mark)


def _check_part(first: GgufFile, part: GgufFile, expected: SplitMark) -> None:
    found = read_split_mark(str(part.path), part.metadata, TENSORS_MAX)
    if found != expected:
        says = "it is a whole file" if found is None else _in_words(found)
        raise BadModelFile(f"{part.path}: its header says {says}; expected: {_in_words(expected)}")
    key = foreign_key(first.metadata, part.metadata)
    if key is not None:
        raise BadModelFile(f"{part.path} is a part of another model than {first.path}: their {key} differ")


def _in_words(mark: SplitMark) -> str:
    return f"part {mark.index + 1} of {mark.count}, {mark.num_tensors:,} tensors in all"


def _joined(parts: list[GgufFile], mark: SplitMark) -> GgufFile:
    tensors: dict[str, RawTensor] = {}
    files: dict[str, MappedFile] = {}
    for part in parts:
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            where = files[min(twice)].path
            raise BadModelFile(f"{part.path}: tensor {min(twice)!r:.100} is in {where} as well")
        tensors.update(part.tensors)
        files.update(part.files)
    if len(tensors) != mark.num_tensors:
        raise BadModelFile(
            f"{parts[0].path} and its other parts hold {len(tensors):,} tensors; their headers promise"
            f" {mark.num_tensors:,} (is a part of another download?)"
        )
    return GgufFile(
        tuple(part.path for part in parts),
        parts[0].version,
        parts[0].metadata,
        MappingProxyType(tensors),
        max(part.header_bytes for part in parts),
        MappingProxyType(files),
    )


def read_gguf_part(path: Path) -> GgufFile:
    """One file alone, even if it is a part or has tensors of unknown kinds. Raises as `read_gguf`."""
    return _read_part(path, [], _Budget(HEADER_MEMORY_MAX))


@dataclass(slots=True)
class _Budget:
    """Bytes of memory that headers may still take."""

    left: int


def _read_part(path: Path, problems: list[ModelError] | None, budget: _Budget) -> GgufFile:
    """One file by itself."""
    file = MappedFile(path)
    reader = _Reader(file, budget)
    version = _read_version(reader)
    num_tensors = reader.count("number of tensors", TENSORS_MAX, least_bytes=24)
    num_pairs = reader.count("number of metadata pairs", PAIRS_MAX, least_bytes=13)
    metadata: dict[str, MetaValue] = {}
    for _ in range(num_pairs):
        key = reader.text("metadata key", NAME_BYTES_MAX)
        if key in metadata:
            raise reader.bad(f"metadata key {key!r:.100} appears twice")
        metadata[key] = reader.value(reader.u32(f"type of {key!r:.100}"), f"metadata {key!r:.100}")
    alignment = _read_alignment(reader, metadata)
    infos = [_read_info(reader) for _ in range(num_tensors)]
    unknown = _unknown_kinds(reader)
    if unknown and problems is None:
        raise unknown[0]
    if problems is not None:
        problems += unknown
    data_start = -(-reader.position // alignment) * alignment
    tensors = MappingProxyType(_place_tensors(reader, infos, data_start, alignment))
    files = MappingProxyType(dict.fromkeys(tensors, file))
    return GgufFile((path,), version, MappingProxyType(metadata), tensors, data_start, files)


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]  # NumPy order: the file's reversed
    kind: Kind
    offset: int  # from the start of the tensor data
    num_bytes: int


class _Reader:
    """A cursor over the header: no read beyond the end, no allocation before it is known to fit."""

    def __init__(self, file: MappedFile, budget: _Budget) -> None:
        self._budget = budget
        self.path = file.path
        self.data: Bytes = file.data
        self._bytes = file.data.data
        self.size = file.size
        self.position = 0
        self.unknown_kinds: dict[str, list[str]] = {}  # tensors by kinds that are not in `KINDS`

    def bad(self, what: str) -> BadModelFile:
        return BadModelFile(f"{self.path} is not a sound GGUF file: {what} (at byte {self.position:,})")

    def take(self, num_bytes: int, what: str) -> int:
        """Advance over `num_bytes`, which must be in the file; returns where they start."""
        start = self.position
        if num_bytes > self.size - start:
            raise self.bad(f"it ends inside {what}: {num_bytes:,} bytes wanted, {self.size - start:,} left")
        self.position = start + num_bytes
        return start

    def charge(self, num_bytes: int, what: str) -> None:
        """Charge memory to the budget before it is allocated."""
        self._budget.left -= num_bytes
        if self._budget.left < 0:
            allowed = format_bytes(HEADER_MEMORY_MAX)
            raise self.bad(f"{what} takes its header beyond {allowed} of memory; allowed: up to that")

    def scalar(self, code: int, what: str) -> int | float | bool:
        layout = _SCALARS[code]
        value: int | float | bool = layout.unpack_from(self._bytes, self.take(layout.size, what))[0]
        return value

    def u32(self, what: str) -> int:
        return int(self.scalar(4, what))

    def u64(self, what: str) -> int:
        return int(self.scalar(10, what))

    def count(self, what: str, most: int, least_bytes: int) -> int:
        """A u64 count of things that take at least `least_bytes` each."""
        count = self.u64(what)
        if count > most or count * least_bytes > self.size - self.position:
            left = self.size - self.position
            raise self.bad(f"{what} is {count:,}; allowed: up to {most:,}, and {left:,} bytes are left")
        return count

    def text(self, what: str, most: int = _STRING_BYTES_MAX) -> str:
        length = self.count(f"length of {what}", most, least_bytes=1)
        self.charge(_OBJECT_BYTES + length, what)
        start = self.take(length, what)
        try:
            return self.data[start : start + length].tobytes().decode()
        except UnicodeDecodeError as error:
            raise self.bad(f"{what} is not UTF-8") from error

    def value(self, code: int, what: str, depth: int = 0) -> MetaValue:
        if code in _SCALARS:
            return self.scalar(code, what)
        if code == _STRING:
            return self.text(what)
        if code == _ARRAY and depth < 2:
            return self._array(what, depth)
        raise self.bad(f"{what} has value type {code}" + (" nested too deeply" if code == _ARRAY else ""))

    def _array(self, what: str, depth: int) -> MetaValue:
        code = self.u32(f"element type of {what}")
        if code in _DTYPES:
            dtype = _DTYPES[code]
            count = self.count(f"length of {what}", ARRAY_LENGTH_MAX, least_bytes=dtype.itemsize)
            self.charge(_OBJECT_BYTES + count * dtype.itemsize, what)
            start = self.take(count * dtype.itemsize, what)
            numbers = np.frombuffer(self.data[start : self.position].tobytes(), dtype)
            return numbers != 0 if code == 7 else numbers
        if code == _STRING:
            count = self.count(f"length of {what}", ARRAY_LENGTH_MAX, least_bytes=8)
            self.charge(_OBJECT_BYTES * count, what)
            # The strings may use no more than the rest of the budget.
            end = min(self.size, self.position + 8 * count + self._budget.left)
            try:
                strings, position = _native.read_string_array(self.data[:end], self.position, count)
            except (ValueError, IndexError, OverflowError) as error:
                raise self.bad(f"{what}: {error}") from error
            self.charge(position - self.position - 8 * count, what)
            self.position = position
            return tuple(strings)
        count = self.count(f"length of {what}", NESTED_LENGTH_MAX, least_bytes=12)
        self.charge(_OBJECT_BYTES * count, what)
        return [self.value(code, what, depth + 1) for _ in range(count)]


def _read_version(reader: _Reader) -> int:
    if reader.size < 24 or reader.data[:4].tobytes() != b"GGUF":
        raise reader.bad("it does not begin with the letters GGUF")
    reader.position = 4
    version = reader.u32("version")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0:
        raise UnsupportedModel(f"{reader.path} is a big-endian GGUF file; allowed: little-endian")
    raise UnsupportedModel(f"{reader.path} is GGUF version {version}; allowed: 2 and 3")


def _read_alignment(reader: _Reader, metadata: Mapping[str, MetaValue]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
        raise reader.bad(
            f"general.alignment is {alignment!r:.100}; allowed: a power of two from 8 to {ALIGNMENT_MAX:,}"
        )
    return alignment


def _read_info(reader: _Reader) -> _TensorInfo:
    name = reader.text("tensor name", NAME_BYTES_MAX)
    num_dimensions = reader.u32(f"dimensions of {name!r:.100}")
    if not 1 <= num_dimensions <= DIMENSIONS_MAX:
        raise reader.bad(
            f"tensor {name!r:.100} has {num_dimensions:,} dimensions; allowed: 1 to {DIMENSIONS_MAX}"
        )
    dimensions = [reader.u64(f"dimension of {name!r:.100}") for _ in range(num_dimensions)]
    if not all(1 <= dimension <= DIMENSION_MAX for dimension in dimensions):
        raise reader.bad(f"tensor {name!r:.100} has dimensions {dimensions}; allowed: 1 to {DIMENSION_MAX:,}")
    code = reader.u32(f"kind of {name!r:.100}")
    offset = reader.u64(f"offset of {name!r:.100}")
    kind = KINDS.get(code)
    if kind is None:
        kind = Kind(OTHER_KINDS.get(code, f"number {code}"), 1, 0)
        if math.prod(dimensions) > 8 * reader.size:  # no kind has less than a bit
            raise reader.bad(f"tensor {name!r:.100} has more weights than the file has bits")
        reader.unknown_kinds.setdefault(kind.name, []).append(name)
    if dimensions[0] % kind.group:
        raise reader.bad(
            f"rows of {name!r:.100} have {dimensions[0]:,} weights, not a multiple of {kind.group}"
            f" ({kind.name})"
        )
    num_bytes = math.prod(dimensions) // kind.group * kind.num_bytes
    return _TensorInfo(name, tuple(reversed(dimensions)), kind, offset, num_bytes)


def _unknown_kinds(reader: _Reader) -> list[ModelError]:
    """An error for each kind that is not known."""
    allowed = ", ".join(sorted(known.name for known in KINDS.values()))
    errors: list[ModelError] = []
    for kind, names in reader.unknown_kinds.items():
        others = f" (and {len(names) - 1:,} others)" if len(names) > 1 else ""
        errors.append(
            UnsupportedModel(
                f"{reader.path}: tensor {names[0]!r:.100}{others} is stored as {kind}; allowed: {allowed}"
            )
        )
    return errors


def _place_tensors(
    reader: _Reader, infos: list[_TensorInfo], data_start: int, alignment: int
) -> dict[str, RawTensor]:
    """Views of the file, after checking that each range is inside it, aligned, and overlaps no other."""
    tensors: dict[str, RawTensor] = {}
    for info in infos:
        start = data_start + info.offset
        if info.name in tensors:
            raise reader.bad(f"tensor {info.name!r:.100} appears twice")
        if info.offset % alignment:
            raise reader.bad(
                f"tensor {info.name!r:.100} starts at {info.offset:,}, not a multiple of {alignment}"
            )
        if start + info.num_bytes > reader.size:
            raise reader.bad(
                f"tensor {info.name!r:.100} ends at byte {start + info.num_bytes:,} of a file of"
                f" {reader.size:,} (was it downloaded to its end?)"
            )
        data = reader.data[start : start + info.num_bytes]
        tensors[info.name] = RawTensor(info.name, info.kind.name, info.shape, data)
    ordered = sorted(infos, key=lambda info: info.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.num_bytes > after.offset:
            raise reader.bad(f"tensors {before.name!r:.100} and {after.name!r:.100} overlap")
    return tensors
