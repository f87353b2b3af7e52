"""From a model's file to a GGUF file whose matrices are held in another kind; see `octavo convert`.

    GGUF          metadata and vectors are copied, matrices are encoded anew, each in its place: here
    safetensors   described and laid out as GGUF first: `convert_folder.py`

Peak memory is one tensor, and some of its rows in both forms. What the file holds afterwards is what
`--weights` of that name would have made of the source at start.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.errors import ConfigError, shown
from octavo.fields import Fields
from octavo.kernels.contract import RawTensor
from octavo.kernels.file_order import encoded
from octavo.kernels.held import kind_held
from octavo.kernels.packed import require_consistent
from octavo.model.families.table import row_of_gguf
from octavo.model.files.gguf import GgufFile, read_gguf
from octavo.model.files.gguf_writer import GgufWriter, Pair, PlannedTensor, require_target, u32_pair
from octavo.units import format_bytes

WEIGHTS = ("auto", "f32", "bf16", "int8", "q4")
SLAB_ELEMENTS = 1 << 24  # of a tensor, encoded at a time
# What `WeightOps.matrix` is told to be a table: embeddings, the output, routers.
_TABLES = ("token_embd.weight", "output.weight", "position_embd.weight", "ffn_gate_inp.weight")
_FILE_TYPES = {"f32": 0, "q4": 3, "int8": 7, "bf16": 32}  # as llama.cpp numbers them
_QUANTISATION_VERSION = 2  # of ggml's blocks
_PROGRESS_EVERY_S = 1.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """Where to write, and in which mode of `WEIGHTS`."""

    path: Path
    weights: str
    overwrite: bool = False

    def require_sound(self) -> None:
        """Raise ConfigError for a mode that is not known, or a file that may not be written."""
        if self.weights not in WEIGHTS:
            raise ConfigError(f"weights is {shown(self.weights)}; allowed: {', '.join(WEIGHTS)}")
        require_target(self.path, overwrite=self.overwrite)


def convert_gguf(path: Path, target: Target, progress: Progress) -> Sequence[PlannedTensor]:
    """Write the target; returns its tensors.

    Raises BadModelFile, UnsupportedModel (the source), ConfigError (the target, or a disk that is full).
    O(bytes), one tensor at a time.
    """
    target.require_sound()
    if target.weights == "auto":
        raise ConfigError("weights is auto, which would copy the file; allowed: f32, bf16, int8, q4")
    source = read_gguf(path)
    row_of_gguf(Fields(str(path), source.metadata))  # what cannot be served is not converted
    plan = [_plan(raw, target.weights) for raw in source.tensors.values()]
    alignment = source.metadata.get("general.alignment", 32)
    assert isinstance(alignment, int), "the reader checks it"
    with writing(target, [*_pairs(source, target.weights)], plan, alignment) as writer:
        report = Reporter(plan, progress)
        for raw, planned in zip(source.tensors.values(), plan, strict=True):
            write_encoded(writer, raw, planned)
            source.release(raw)
            report.add(planned.num_bytes)
    return plan


def write_encoded(writer: GgufWriter, raw: RawTensor, planned: PlannedTensor) -> None:
    """All of a tensor in the planned kind, some rows at a time."""
    if raw.kind == planned.kind:
        writer.write(planned.name, raw.data)
        return
    inputs = raw.shape[-1]
    rows = raw.data.reshape(math.prod(raw.shape[:-1]), -1)
    step = max(16, SLAB_ELEMENTS // inputs // 16 * 16)  # whole panels
    offset = 0
    for first in range(0, rows.shape[0], step):
        some = rows[first : first + step]
        slab = replace(raw, shape=(some.shape[0], inputs), data=some.reshape(-1))
        data = encoded(slab, planned.kind)
        writer.write(planned.name, data, offset)
        offset += data.size


@contextlib.contextmanager
def writing(
    target: Target, pairs: Sequence[Pair], plan: Sequence[PlannedTensor], alignment: int = 32
) -> Iterator[GgufWriter]:
    """A writer whose file is there, whole, when the block ends, and not at all when it raises."""
    try:
        writer = GgufWriter(target.path, pairs, plan, alignment)
        try:
            yield writer
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
    except OSError as error:
        needed = format_bytes(sum(planned.num_bytes for planned in plan))
        raise ConfigError(
            f"{target.path} cannot be written: {error.strerror}; about {needed} are needed there"
        ) from error


class Reporter:
    """Tells how far it is, about once a second."""

    def __init__(self, plan: Sequence[PlannedTensor], progress: Progress) -> None:
        self._total = sum(planned.num_bytes for planned in plan)
        self._done, self._progress = 0, progress
        self._told = time.monotonic()

    def add(self, num_bytes: int) -> None:
        """So many bytes more are written."""
        self._done += num_bytes
        now = time.monotonic()
        if now - self._told > _PROGRESS_EVERY_S:
            self._told = now
            self._progress(f"written: {format_bytes(self._done)} of {format_bytes(self._total)}")


def quantisation_pairs(weights: str) -> list[Pair]:
    """What a file says of its kinds as a whole; "auto" says nothing."""
    if weights not in _FILE_TYPES:
        return []
    pairs = [u32_pair("general.file_type", _FILE_TYPES[weights])]
    return [*pairs, u32_pair("general.quantization_version", _QUANTISATION_VERSION)]


def _pairs(source: GgufFile, weights: str) -> Iterator[Pair]:
    """The source's metadata, but for what it says of kinds and of parts of a split file."""
    anew = quantisation_pairs(weights)
    for key, data in source.pairs.items():
        if key not in {pair.key for pair in anew} and not key.startswith("split."):
            yield Pair(key, data.tobytes())
    yield from anew


def _plan(raw: RawTensor, weights: str) -> PlannedTensor:
    require_consistent(raw)
    is_matrix = len(raw.shape) > 1 and raw.name.endswith(".weight")
    if not is_matrix or "norm" in raw.name:
        return PlannedTensor(raw.name, raw.kind, raw.shape)
    is_table = raw.name.removeprefix("blk.").lstrip("0123456789.") in _TABLES
    return PlannedTensor(raw.name, kind_held(raw, weights, is_table), raw.shape)
