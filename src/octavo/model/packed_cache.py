"""Loading through a packed copy on disk: the second start of a model maps panels instead of making them.

    first load    source -> reader -> RecordingOps -> backend's ops      panels are written as they are made
    second load   MetaSource -> reader -> MappedOps                      panels are views; no weight is read

The reader of weights and the families are unaware of the cache: matrices are made by calls in a fixed order,
and the n-th call of a second load returns the n-th matrix of the file, after tensor, kind and shape were
compared. The source tensors of matrices are then meta tensors: of the right kind and shape, over one zero
byte. Vectors (norms, biases) are read from the model's file either way.

A copy is named by all that decides its bytes: the model's fingerprint, the arithmetic (mode of weights and
instruction set) and `PACKING_VERSION`. It also holds the size and the time of change of each source file,
since a fingerprint samples large files. A copy that does not match is logged and replaced; if a copy cannot
be written, that is logged and the load goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.errors import ModelError
from octavo.kernels.contract import Bytes, Floats, Matrix, RawTensor, Vector, WeightOps
from octavo.kernels.packed import BLOCKS
from octavo.kernels.panels import matrix_of, panels_of
from octavo.model.files.packed_file import (
    SUFFIX,
    Entry,
    PackedFile,
    PackWriter,
    Source,
    UnusablePack,
    open_packed,
)
from octavo.model.reader import TensorSource, meta_tensor
from octavo.model.spec import ModelWeights
from octavo.units import format_bytes

log = logging.getLogger("octavo.packed")
PACKING_VERSION = 2  # raise it whenever panels, or the order or the rows of the reader's calls, change
PACKED = "packed"  # the folder inside the cache folder
_PAGE = 4096
_PAGED_IN_AT_ONCE = 16 << 20

ReadWeights = Callable[[TensorSource, WeightOps], ModelWeights]


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a copy: the model's fingerprint, and the stamps of its files."""

    fingerprint: bytes
    stamps: str


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """The folder of packed copies, and the arithmetic that they are for."""

    folder: Path
    arithmetic_id: str

    def path_of(self, fingerprint: bytes) -> Path:
        """The file of a model."""
        return self.folder / f"{fingerprint.hex()[:32]}-{self.arithmetic_id}-{PACKING_VERSION}{SUFFIX}"

    def identity_of(self, made_of: Origin) -> Mapping[str, str]:
        """The source and the arithmetic that the file must have."""
        return {
            "fingerprint": made_of.fingerprint.hex(),
            "stamps": made_of.stamps,
            "arithmetic": self.arithmetic_id,
            "packing": str(PACKING_VERSION),
        }


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights, and how many bytes of them are pages of a mapped file (which the system counts as free)."""

    weights: ModelWeights
    mapped_bytes: int = 0


def read_through(
    cache: PackedFolder,
    made_of: Origin,
    source: TensorSource,
    ops: WeightOps,
    read: ReadWeights,
    progress: Callable[[str], None],
) -> Weights:
    """The weights from the packed copy; else from the source, writing a copy.

    Raises what `read` raises. A hit is O(index); else O(weights), plus writing their bytes.
    """
    path, identity = cache.path_of(made_of.fingerprint), cache.identity_of(made_of)
    try:
        found = open_packed(path, identity)
        if found is not None:
            return _read_mapped(found, source, ops, read)
    except UnusablePack as why:
        log.warning("the packed weights in %s are not used: %s; they are packed again", path, why)
    recorder = RecordingOps(path, ops)
    progress(f"loading weights, and keeping them packed in {path}")
    try:
        recording = _RecordingSource(source)
        weights = read(recording, recorder)
        progress("waiting until the packed weights are on the disk")
        recorder.finish(identity, recording.seen)
    except BaseException:
        recorder.abandon()
        raise
    return Weights(weights)


def _read_mapped(found: PackedFile, source: TensorSource, ops: WeightOps, read: ReadWeights) -> Weights:
    """Raises UnusablePack if the calls are not those of the first load."""
    mapped = MappedOps(found, ops)
    try:
        weights = read(MetaSource(source, found.sources), mapped)
    except ModelError as error:  # if the source is at fault, reading it raises this again
        raise UnusablePack(str(error)) from None
    mapped.require_all_used()
    with contextlib.suppress(OSError):  # another user's file, or a read-only medium
        os.utime(found.path)
    size = sum(entry.size for entry in found.entries)
    log.info("%s of packed weights are mapped from %s", format_bytes(size), found.path)
    threading.Thread(target=_page_in, args=(found.file.data,), name="octavo-packed", daemon=True).start()
    return Weights(weights, size)


def _page_in(data: Bytes) -> None:
    """Touch every page, so that the first requests do not wait for the disk one page at a time."""
    started = time.perf_counter()
    for first in range(0, data.size, _PAGED_IN_AT_ONCE):
        np.max(data[first : first + _PAGED_IN_AT_ONCE : _PAGE])
    log.info("%s of packed weights are in memory after %.1f s", format_bytes(data.size), _since(started))


def _since(started: float) -> float:
    return time.perf_counter() - started


class MappedOps:
    """The `WeightOps` of a second load: matrices of the file, in its order; vectors by the backend's own."""

    def __init__(self, found: PackedFile, ops: WeightOps) -> None:
        self._found, self._ops = found, ops
        self._next = 0

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """The next matrix of the file; `raw.data` is not read. Raises UnusablePack."""
        if self._next == len(self._found.entries):
            raise UnusablePack(f"it ends before tensor {raw.name!r}")
        entry = self._found.entries[self._next]
        asked = raw.name, raw.kind, raw.shape, table
        if (entry.name, entry.source_kind, entry.shape, entry.table) != asked:
            raise UnusablePack(f"it has {entry.name!r} {entry.shape} where {raw.name!r} {raw.shape} is due")
        self._next += 1
        return matrix_of(entry.kind, entry.shape, self._found.panels(entry))

    def vector(self, values: Floats) -> Vector:
        """The backend's own."""
        return self._ops.vector(values)

    def require_all_used(self) -> None:
        """Raise UnusablePack unless every matrix was read."""
        if self._next != len(self._found.entries):
            raise UnusablePack(f"{self._next} of its {len(self._found.entries)} matrices were asked for")


class RecordingOps:
    """The `WeightOps` of a first load: the backend's own, and their panels are written to the copy."""

    def __init__(self, path: Path, ops: WeightOps) -> None:
        self._path, self._ops = path, ops
        self._names: dict[str, None] = {}
        self._writer: PackWriter | None = None
        try:
            self._writer = PackWriter(path)
        except OSError as error:
            self._give_up(error)

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """The backend's own."""
        matrix = self._ops.matrix(raw, table)
        if self._writer is not None:
            self._names[raw.name] = None
            entry = Entry(raw.name, raw.kind, table, matrix.shape, matrix.kind, 0, 0)
            try:
                self._writer.add(entry, panels_of(matrix))
            except OSError as error:
                self._give_up(error)
        return matrix

    def vector(self, values: Floats) -> Vector:
        """The backend's own."""
        return self._ops.vector(values)

    def finish(self, identity: Mapping[str, str], seen: Mapping[str, Source]) -> None:
        """Move the copy into place; `seen` are the tensors that were read."""
        if self._writer is None:
            return
        sources: Sequence[Source] = [seen[name] for name in self._names if name in seen]
        try:
            size = self._writer.finish(identity, sources)
        except OSError as error:
            self._give_up(error)
            return
        log.info("packed weights are kept in %s: %s on disk", self._path, format_bytes(size))

    def abandon(self) -> None:
        """Remove what was written, if anything."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _give_up(self, error: OSError) -> None:
        self.abandon()
        log.warning(
            "the packed weights cannot be kept in %s: %s; make room, or start without --packed-cache",
            self._path,
            error,
        )


class _RecordingSource:
    """A source that records the kind and the shape of each tensor read from it."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self.seen: dict[str, Source] = {}
        self.tensors: Mapping[str, RawTensor] = _TensorMap(source.tensors, self._hand_out)

    @property
    def num_bytes(self) -> int:
        """The source's own."""
        return self._source.num_bytes

    def release(self, raw: RawTensor) -> None:
        """The source's own."""
        self._source.release(raw)

    def _hand_out(self, name: str) -> RawTensor:
        raw = self._source.tensors[name]
        if len(raw.shape) > 1:
            self.seen[name] = Source(name, raw.kind, raw.shape)
        return raw


class MetaSource:
    """A source of meta tensors for matrices: they have kinds and shapes, and none is read."""

    def __init__(self, source: TensorSource, known: Mapping[str, Source]) -> None:
        self._source, self._known = source, known
        self.tensors: Mapping[str, RawTensor] = _TensorMap(source.tensors, self._hand_out)

    @property
    def num_bytes(self) -> int:
        """The source's own."""
        return self._source.num_bytes

    def release(self, raw: RawTensor) -> None:
        """The source's own; a meta tensor has nothing to release."""
        if raw.name not in self._known:
            self._source.release(raw)

    def _hand_out(self, name: str) -> RawTensor:
        known = self._known.get(name)
        if known is None or name not in self._source.tensors:
            return self._source.tensors[name]
        if known.kind not in BLOCKS:
            raise UnusablePack(f"tensor {name!r} is of kind {known.kind!r:.40}")
        return meta_tensor(name, known.kind, known.shape)


class _TensorMap(Mapping[str, RawTensor]):
    """The tensors of a source by name, each returned by a function; iterating over names calls nothing."""

    def __init__(self, tensors: Mapping[str, RawTensor], hand_out: Callable[[str], RawTensor]) -> None:
        self._tensors, self._hand_out = tensors, hand_out

    def __getitem__(self, name: str) -> RawTensor:
        return self._hand_out(name)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
