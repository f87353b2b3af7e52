"""GGUF files: a header parser that trusts nothing, over a mapped file.

    "GGUF" | u32 version | u64 tensors | u64 pairs | pairs ... | infos ... | padding | tensor data
        pair: key, u32 type, value
        info: name, u32 dims, u64 dim x dims, u32 kind, u64 offset into the tensor data

Every count, length and offset is checked against the file's size before anything is read or allocated, so a
damaged file is an error that says where, in time proportional to its header. String arrays (vocabularies) are
read by the native module and numeric arrays by NumPy: nothing loops in Python over tokens.

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
from octavo.errors import BadModelFile, UnsupportedModel
from octavo.kernels.contract import Bytes, RawTensor
from octavo.kernels.packed import BLOCKS
from octavo.model.mapped import MappedFile

NumberArray = npt.NDArray[np.generic]
MetaValue = bool | int | float | str | NumberArray | tuple[bytes, ...] | list["MetaValue"]

# Far above any real file, far below what would hurt.
PAIRS_MAX = 1 << 16
TENSORS_MAX = 1 << 16
NAME_BYTES_MAX = 1 << 16
STRING_BYTES_MAX = 1 << 24
ARRAY_LENGTH_MAX = 1 << 23
NESTED_LENGTH_MAX = 1 << 12
DIMENSIONS_MAX = 4
DIMENSION_MAX = 1 << 40
ALIGNMENT_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """How weights are stored: `num_bytes` for every `group` of consecutive weights of a row."""

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
    """A parsed header. Tensors are views of the mapped file; `release` gives their pages back."""

    path: Path
    version: int
    metadata: Mapping[str, MetaValue]
    tensors: Mapping[str, RawTensor]
    header_bytes: int  # everything before the tensor data
    file: MappedFile = field(repr=False)

    def release(self, raw: RawTensor) -> None:
        """Give back the resident pages under a tensor of this file."""
        self.file.release(raw.data)


def read_gguf(path: Path) -> GgufFile:
    """Parse the header. Raises BadModelFile (damaged, lying), UnsupportedModel (version, kind, split).

    O(header bytes); the tensor data is not touched.
    """
    file = MappedFile(path)
    reader = _Reader(file)
    version = _read_version(reader)
    num_tensors = reader.count("number of tensors", TENSORS_MAX, least_bytes=24)
    num_pairs = reader.count("number of metadata pairs", PAIRS_MAX, least_bytes=13)
    metadata: dict[str, MetaValue] = {}
    for _ in range(num_pairs):
        key = reader.text("metadata key", NAME_BYTES_MAX)
        if key in metadata:
            raise reader.bad(f"metadata key {key!r} appears twice")
        metadata[key] = reader.value(reader.u32(f"type of {key!r}"), f"metadata {key!r}")
    if metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedModel(f"{path} is one part of a split GGUF; merge the parts into one file first")
    alignment = _read_alignment(reader, metadata)
    infos = [_read_info(reader) for _ in range(num_tensors)]
    data_start = -(-reader.position // alignment) * alignment
    tensors = _place_tensors(reader, infos, data_start, alignment)
    return GgufFile(path, version, MappingProxyType(metadata), MappingProxyType(tensors), data_start, file)


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]  # NumPy order: the file's reversed
    kind: Kind
    offset: int  # from the start of the tensor data
    num_bytes: int


class _Reader:
    """A cursor over the header: no read beyond the end, no allocation before it is known to fit."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.data: Bytes = file.data
        self._bytes = file.data.data
        self.size = file.size
        self.position = 0

    def bad(self, what: str) -> BadModelFile:
        return BadModelFile(f"{self.path} is not a sound GGUF file: {what} (at byte {self.position:,})")

    def take(self, num_bytes: int, what: str) -> int:
        """Advance over `num_bytes`, which must be in the file; returns where they start."""
        start = self.position
        if num_bytes > self.size - start:
            raise self.bad(f"it ends inside {what}: {num_bytes:,} bytes wanted, {self.size - start:,} left")
        self.position = start + num_bytes
        return start

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

    def text(self, what: str, most: int = STRING_BYTES_MAX) -> str:
        length = self.count(f"length of {what}", most, least_bytes=1)
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
            start = self.take(count * dtype.itemsize, what)
            numbers = np.frombuffer(self.data[start : self.position].tobytes(), dtype)
            return numbers != 0 if code == 7 else numbers
        if code == _STRING:
            count = self.count(f"length of {what}", ARRAY_LENGTH_MAX, least_bytes=8)
            try:
                strings, self.position = _native.read_string_array(self.data, self.position, count)
            except (ValueError, IndexError, OverflowError) as error:
                raise self.bad(f"{what}: {error}") from error
            return tuple(strings)
        count = self.count(f"length of {what}", NESTED_LENGTH_MAX, least_bytes=12)
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
            f"general.alignment is {alignment!r}; allowed: a power of two from 8 to {ALIGNMENT_MAX:,}"
        )
    return alignment


def _read_info(reader: _Reader) -> _TensorInfo:
    name = reader.text("tensor name", NAME_BYTES_MAX)
    num_dimensions = reader.u32(f"dimensions of {name!r}")
    if not 1 <= num_dimensions <= DIMENSIONS_MAX:
        raise reader.bad(f"tensor {name!r} has {num_dimensions:,} dimensions; allowed: 1 to {DIMENSIONS_MAX}")
    dimensions = [reader.u64(f"dimension of {name!r}") for _ in range(num_dimensions)]
    if not all(1 <= dimension <= DIMENSION_MAX for dimension in dimensions):
        raise reader.bad(f"tensor {name!r} has dimensions {dimensions}; allowed: 1 to {DIMENSION_MAX:,}")
    code = reader.u32(f"kind of {name!r}")
    offset = reader.u64(f"offset of {name!r}")
    kind = KINDS.get(code)
    if kind is None:
        allowed = ", ".join(sorted(known.name for known in KINDS.values()))
        found = OTHER_KINDS.get(code, f"number {code}")
        raise UnsupportedModel(f"{reader.path}: tensor {name!r} is stored as {found}; allowed: {allowed}")
    if dimensions[0] % kind.group:
        raise reader.bad(
            f"rows of {name!r} have {dimensions[0]:,} weights, not a multiple of {kind.group} ({kind.name})"
        )
    num_bytes = math.prod(dimensions) // kind.group * kind.num_bytes
    return _TensorInfo(name, tuple(reversed(dimensions)), kind, offset, num_bytes)


def _place_tensors(
    reader: _Reader, infos: list[_TensorInfo], data_start: int, alignment: int
) -> dict[str, RawTensor]:
    """Views of the file, once each range is known to be in it, aligned, and not another's."""
    tensors: dict[str, RawTensor] = {}
    for info in infos:
        start = data_start + info.offset
        if info.name in tensors:
            raise reader.bad(f"tensor {info.name!r} appears twice")
        if info.offset % alignment:
            raise reader.bad(f"tensor {info.name!r} starts at {info.offset:,}, not a multiple of {alignment}")
        if start + info.num_bytes > reader.size:
            raise reader.bad(
                f"tensor {info.name!r} ends at byte {start + info.num_bytes:,} of a file of {reader.size:,}"
                " (was it downloaded to its end?)"
            )
        data = reader.data[start : start + info.num_bytes]
        tensors[info.name] = RawTensor(info.name, info.kind.name, info.shape, data)
    ordered = sorted(infos, key=lambda info: info.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.num_bytes > after.offset:
            raise reader.bad(f"tensors {before.name!r} and {after.name!r} overlap")
    return tensors
