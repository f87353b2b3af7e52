"""A file of packed weights: the panels of every matrix in the order of loading, then an index of them.

    preamble (4 KiB): magic | version | index offset, index bytes | file size | blake2b of index and samples
    panels, each at a multiple of 64 bytes ...
    index: JSON {"identity": {...}, "sources": [...], "entries": [...]}

A file is written under another name and renamed when it is complete and synced. It is mapped for reading:
panels are views, whose pages are loaded on first use and shared by all processes. Opening checks the sizes,
the digest of the index, and 4 KiB of every 4 MiB; a bit that flips elsewhere is not detected, as in a model's
own file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from octavo.errors import BadModelFile, ModelNotFound
from octavo.fields import Fields, parse_json_object
from octavo.kernels.contract import Bytes
from octavo.kernels.packed import CACHE_LINE
from octavo.kernels.panels import panel_bytes
from octavo.model.files.mapped import MappedFile

MAGIC = b"OCTAVOPK"
FORMAT_VERSION = 1
SUFFIX, PART_SUFFIX = ".packed", ".part"
PREAMBLE_BYTES = 4096
INDEX_BYTES_MAX = 64 << 20
ENTRIES_MAX = 1 << 18
SIZE_MAX = 1 << 40
SAMPLE_BYTES = 4096
SAMPLE_EVERY = 4 << 20
_PIECE = 4 << 20
_PARTS_TRIED = 10
_PREAMBLE = struct.Struct("<8sQQQQ32s")


class UnusablePack(Exception):
    """Why a file of packed weights cannot be used; the weights are then packed again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One matrix, in the order of loading: its source tensor, its conversion, and where its panels lie."""

    name: str  # of the tensor
    source_kind: str
    table: bool
    shape: tuple[int, int]  # of the matrix: some rows of the tensor, or all
    kind: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the model's file that matrices were made from."""

    name: str
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedFile:
    """An open file whose index has been checked."""

    path: Path
    sources: Mapping[str, Source]
    entries: Sequence[Entry]
    file: MappedFile = field(repr=False)

    def panels(self, entry: Entry) -> Bytes:
        """A view of the mapped file, read-only."""
        return self.file.data[entry.offset : entry.offset + entry.size]


def open_packed(path: Path, identity: Mapping[str, str]) -> PackedFile | None:
    """The file, or None if there is none. Raises UnusablePack if it is damaged or of something else.

    O(index), and a page of every 4 MiB.
    """
    if not path.is_file():
        return None
    try:
        file = MappedFile(path)
        index = _read_index(file)
        if dict(index.inner("identity").values) != dict(identity):
            raise UnusablePack("it was made of another model, in another way, or by another version")
        sources = [_read_source(fields) for fields in _objects(index, "sources")]
        entries = [_read_entry(fields, file.size) for fields in _objects(index, "entries")]
    except (BadModelFile, ModelNotFound) as error:
        raise UnusablePack(str(error)) from None
    return PackedFile(path, {source.name: source for source in sources}, entries, file)


def _read_index(file: MappedFile) -> Fields:
    """The index, after checking the preamble, the sizes and the digest."""
    if file.size < PREAMBLE_BYTES:
        raise UnusablePack(f"it has {file.size:,} bytes, too few for a preamble")
    magic, version, start, size, total, digest = _PREAMBLE.unpack_from(file.data.data)
    if magic != MAGIC:
        raise UnusablePack("it is no file of packed weights")
    if version != FORMAT_VERSION:
        raise UnusablePack(f"its format is {version}; known: {FORMAT_VERSION}")
    if total != file.size or size > INDEX_BYTES_MAX or start < PREAMBLE_BYTES or start + size != total:
        raise UnusablePack(f"it has {file.size:,} bytes where {total:,} were written (a full disk?)")
    text = file.data[start : start + size].tobytes()
    if _digest(text, file.data[:start]) != digest:
        raise UnusablePack("its bytes are not those that were written")
    return Fields(str(file.path), parse_json_object(text, str(file.path)))


def _digest(index: bytes, data: Bytes) -> bytes:
    """The digest of the index, and of samples of the bytes before it without the preamble."""
    found = hashlib.blake2b(index, digest_size=32)
    for first in range(PREAMBLE_BYTES, data.size, SAMPLE_EVERY):
        found.update(data[first : first + SAMPLE_BYTES].data)
    return found.digest()


def _objects(index: Fields, key: str) -> list[Fields]:
    values = index.values.get(key)
    if not isinstance(values, list) or len(values) > ENTRIES_MAX:
        raise index.bad(key, f"a list of at most {ENTRIES_MAX:,} objects")
    if not all(isinstance(value, dict) for value in values):
        raise index.bad(key, "a list of objects")
    return [Fields(f"{index.source}: {key}", value) for value in values]


def _shape(fields: Fields, dimensions: range) -> tuple[int, ...]:
    sizes = fields.values.get("shape")
    if not isinstance(sizes, list) or len(sizes) not in dimensions:
        raise fields.bad("shape", "a list of sizes")
    if not all(type(size) is int and 1 <= size <= SIZE_MAX for size in sizes):
        raise fields.bad("shape", f"sizes from 1 to {SIZE_MAX:,}")
    return tuple(sizes)


def _read_source(fields: Fields) -> Source:
    return Source(fields.text("name", ""), fields.text("kind", ""), _shape(fields, range(2, 5)))


def _read_entry(fields: Fields, file_bytes: int) -> Entry:
    outputs, inputs = _shape(fields, range(2, 3))
    kind, offset = fields.text("kind", ""), fields.integer("offset", PREAMBLE_BYTES, file_bytes)
    size = fields.integer("size", 1, file_bytes - offset)
    try:
        needed = panel_bytes(kind, (outputs, inputs))
    except ValueError as error:
        raise BadModelFile(f"{fields.source}: {error}") from None
    if size != needed or offset % CACHE_LINE:
        raise BadModelFile(f"{fields.source}: {size:,} bytes at {offset:,}; needed: {needed:,} at a line")
    return Entry(
        fields.text("name", ""),
        fields.text("source_kind", ""),
        fields.flag("table", False),
        (outputs, inputs),
        kind,
        offset,
        size,
    )


class PackWriter:
    """Writes a file as matrices are made. Every call may raise OSError; the file appears in `finish`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        self.path = path
        self._fd, self._part = _locked_part(path.parent)
        self._entries: list[Entry] = []
        self._position = PREAMBLE_BYTES

    def add(self, entry: Entry, panels: Bytes) -> None:
        """Append a matrix, and fill in `offset` and `size` of the entry. O(bytes), no copy."""
        offset = -(-self._position // CACHE_LINE) * CACHE_LINE
        self._write(panels, offset)
        known = asdict(entry) | {"offset": offset, "size": panels.size}
        self._entries.append(Entry(**known))
        self._position = offset + panels.size

    def finish(self, identity: Mapping[str, str], sources: Sequence[Source]) -> int:
        """Write the index, sync, rename into place; returns the bytes of the file."""
        index = {
            "identity": dict(identity),
            "sources": [asdict(source) for source in sources],
            "entries": [asdict(entry) for entry in self._entries],
        }
        text = json.dumps(index, separators=(",", ":")).encode()
        start, total = self._position, self._position + len(text)
        self._write(np.frombuffer(text, np.uint8), start)
        written = mmap.mmap(self._fd, start, access=mmap.ACCESS_READ)
        digest = _digest(text, np.frombuffer(written, np.uint8))
        head = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, start, len(text), total, digest)
        self._write(np.frombuffer(head.ljust(PREAMBLE_BYTES, b"\0"), np.uint8), 0)
        os.fsync(self._fd)
        os.replace(self._part, self.path)
        os.close(self._fd)
        return total

    def abandon(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _write(self, data: Bytes, offset: int) -> None:
        done = 0
        while done < data.size:
            done += os.pwrite(self._fd, data[done : done + _PIECE].data, offset + done)


@dataclass(frozen=True, slots=True)
class Pack:
    """A file of packed weights in a folder."""

    path: Path
    num_bytes: int
    used_at: float  # seconds since 1970 when it was made or last mapped


def survey(folder: Path) -> list[Pack]:
    """The files of packed weights in a folder, longest unused first; none if there is no such folder."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{SUFFIX}"):
            stat = path.stat()
            found.append(Pack(path, stat.st_size, max(stat.st_mtime, stat.st_atime)))
    return sorted(found, key=lambda pack: pack.used_at)


def _locked_part(folder: Path) -> tuple[int, Path]:
    """A new open file and its name, locked, so that other processes do not take it for abandoned."""
    for _ in range(_PARTS_TRIED):
        fd, name = tempfile.mkstemp(prefix=".", suffix=PART_SUFFIX, dir=folder)
        part = Path(name)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            part.unlink(missing_ok=True)
            os.close(fd)
            raise
        if part.exists():
            return fd, part
        os.close(fd)  # another process removed it before it was locked
    raise OSError(f"new files in {folder} are removed at once")


def _remove_abandoned(folder: Path) -> None:
    """Remove parts whose writer was killed: no process holds their lock."""
    for path in folder.glob(f".*{PART_SUFFIX}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
