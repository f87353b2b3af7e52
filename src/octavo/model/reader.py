"""Reads a file's tensors by role: finds them by name, checks shapes, converts them, and records their use.

Quantised rows are moved as bytes, never decoded here. A tensor's pages are released once it is converted. The
reader knows the family's names, and no layer.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import BadModelFile, ModelError, UnsupportedModel
from octavo.kernels.contract import Bytes, Floats, Linear, Matrix, RawTensor, Vector, WeightOps
from octavo.kernels.packed import FLOAT_KINDS, stored_bytes, unpack_vector
from octavo.model.families.names import GGUF_TENSORS, Names
from octavo.model.families.row import Description
from octavo.model.spec import Norm
from octavo.model.split import Split
from octavo.units import format_part

RowOrder = npt.NDArray[np.intp]

# Buffers in files that are no weights: causal masks, tables of frequencies.
_IGNORED = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias|attn_rot_embd.*)"
    r"|rope_freqs\.weight|rope_factors_(short|long)\.weight"
)
# All but the text part of a model for several kinds of input.
_OTHER_PARTS = re.compile(r"(model\.)?(vision_tower|vision_model|multi_modal_projector)\..*")
# The prefixes of such files for a text model's "model." and "lm_head.", the older form first.
_WHOLES = (
    {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    {"model.": "model.language_model."},
)
_PROGRESS_EVERY_S = 1.0
_PROBLEMS_MAX = 500


class TensorSource(Protocol):
    """A `GgufFile` or `SafetensorsFiles`."""

    @property
    def tensors(self) -> Mapping[str, RawTensor]: ...

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, for progress."""

    def release(self, raw: RawTensor) -> None: ...


class WeightReader:
    """Returns converted tensors by role, and records which names were used.

    An error of a tensor is raised. With a list of `problems` it is added there instead, and zeros replace the
    tensor, so that all errors of a file are found at once, over meta tensors. `label` names the file in
    messages.
    """

    def __init__(
        self,
        source: TensorSource,
        label: str,
        is_gguf: bool,
        description: Description,
        ops: WeightOps,
        progress: Callable[[str], None] = lambda text: None,
        problems: list[ModelError] | None = None,
        split: Split | None = None,
    ) -> None:
        self.split = split or Split()  # the rank whose part of each weight is read
        self.is_gguf, self.description = is_gguf, description
        self.used: set[str] = set()
        self._problems = problems
        self._source, self._label, self._ops, self._progress = source, label, ops, progress
        self._family = description.family
        of_gguf = {**GGUF_TENSORS, **self._family.gguf_tensors}
        self._names = of_gguf if is_gguf else self._family.tensors
        self._is_part = description.is_part
        self._copy: RawTensor | None = None  # of a tensor that was transposed or reordered
        self._prefixes = {} if is_gguf else _prefixes_in(source.tensors, self._names, description)
        self._reported, self._bytes_read, self._bytes_all = time.monotonic(), 0, source.num_bytes

    @property
    def kind(self) -> str:
        """ "gguf" or "safetensors"."""
        return "gguf" if self.is_gguf else "safetensors"

    def sinks(self, layer: int, num_heads: int) -> Vector:
        """(own heads,): the logits that join each head's softmax."""
        name, own = self.name("sinks", layer), self.split.heads(num_heads)
        whole = self._vector(name + ".weight" if self.is_gguf else name, num_heads)
        return self._ops.vector(np.ascontiguousarray(whole[own.start : own.stop]))

    def name(self, role: str, layer: int) -> str:
        """The file's name of the tensor of that role, without ".weight"."""
        usual = self._names[role].format(layer)
        for prefix, here in self._prefixes.items():
            if f"{usual}.".startswith(prefix):
                return (here + f"{usual}.".removeprefix(prefix)).removesuffix(".")
        return usual

    def has(self, role: str, layer: int) -> bool:
        """Whether the file has weights of that role."""
        return role in self._names and self.name(role, layer) + ".weight" in self._source.tensors

    def matrix(
        self, role: str, layer: int, shape: tuple[int, int], skipped: int = 0, own: range | None = None
    ) -> Matrix:
        """A table, stored (outputs, inputs) in every file, without its first `skipped` rows: all rows of the
        shape, or the rank's own."""
        raw = self.take(self.name(role, layer) + ".weight", (shape[0] + skipped, shape[1]))
        own = range(shape[0]) if own is None else own
        is_all = not skipped and len(own) == shape[0]
        matrix = self._ops.matrix(
            raw if is_all else slice_rows(raw, skipped + own.start, skipped + own.stop), table=True
        )
        self._source.release(raw)
        return matrix

    def optional_norm(self, role: str, layer: int, size: int) -> Norm | None:
        """The norm of that role, if the family has one."""
        return self.norm(role, layer, size) if role in self._family.tensors else None

    def norm(self, role: str, layer: int, size: int) -> Norm:
        name = self.name(role, layer)
        weight = self._vector(name + ".weight", size)
        if self._family.norm_offset and not self.is_gguf:
            weight = weight + np.float32(self._family.norm_offset)
        bias = self._vector(name + ".bias", size) if self._family.norm == "layer" else None
        return Norm(self._ops.vector(weight), self._own(bias))

    def linear(
        self,
        role: str,
        layer: int,
        shape: tuple[int, int],
        order: RowOrder | None = None,
        table: bool = False,
        own: range | None = None,
    ) -> Linear:
        """A projection: its rows reordered if an order is given, then the rank's own; `table` as in
        `WeightOps.matrix`."""
        [linear] = self._linears(role, layer, shape, [range(shape[0]) if own is None else own], order, table)
        return linear

    def split_linear(
        self,
        role: str,
        layer: int,
        sizes: Sequence[int],
        inputs: int,
        own: Sequence[range],
        order: RowOrder | None = None,
    ) -> list[Linear]:
        """Projections stored as one tensor, concatenated by rows (after reordering); of each the rank's own
        rows."""
        starts = itertools.accumulate(sizes, initial=0)
        parts = [
            range(start + rows.start, start + rows.stop) for start, rows in zip(starts, own, strict=False)
        ]
        return self._linears(role, layer, (sum(sizes), inputs), parts, order)

    def _linears(
        self,
        role: str,
        layer: int,
        shape: tuple[int, int],
        parts: Sequence[range],
        order: RowOrder | None,
        table: bool = False,
    ) -> list[Linear]:
        """Ranges of a tensor's rows in that order, each a projection."""
        raw = self._oriented(role, layer, shape)
        bias = self._bias(role, layer, shape[0])
        if order is not None:
            wanted = np.concatenate([order[rows.start : rows.stop] for rows in parts])
            raw = self._detached(raw, take_rows(raw, wanted))
            bias = None if bias is None else bias[wanted]
            stops = list(itertools.accumulate(map(len, parts)))
            parts = [range(stop - len(rows), stop) for rows, stop in zip(parts, stops, strict=True)]
        linears = []
        for rows in parts:
            part = raw if len(rows) == raw.shape[0] else slice_rows(raw, rows.start, rows.stop)
            own = None if bias is None else np.ascontiguousarray(bias[rows.start : rows.stop])
            linears.append(Linear(self._ops.matrix(part, table), self._own(own)))
        self._release_pages(raw)
        return linears

    def converted(self, raw: RawTensor) -> Matrix:
        """The backend's form of a matrix, or of a part of one."""
        return self._ops.matrix(raw)

    def vector_of(self, values: Floats) -> Vector:
        """The backend's form of these numbers."""
        return self._ops.vector(values)

    def is_coded(self, name: str) -> bool:
        """Whether the tensor exists and has a grouped kind."""
        raw = self._source.tensors.get(name)
        return raw is not None and raw.kind not in FLOAT_KINDS

    def floats(self, name: str, shape: tuple[int, ...]) -> Floats:
        """A tensor's numbers, of its own shape."""
        raw = self.take(name, shape)
        values = self._unpacked(raw)
        self._source.release(raw)
        return values

    def release(self, raw: RawTensor) -> None:
        """Release its pages."""
        self._source.release(raw)

    def refuse_leftovers(self) -> None:
        """Require that every tensor of the file was used, or is known to be no weight."""
        unused = [
            name for name in self._source.tensors if name not in self.used and not _IGNORED.fullmatch(name)
        ]
        if self._is_part:
            others = [name for name in unused if _OTHER_PARTS.fullmatch(name)]
            unused = [name for name in unused if not _OTHER_PARTS.fullmatch(name)]
            self._progress(f"left out: {len(others):,} tensors of images; the model is served for text alone")
        if unused:
            some = ", ".join(name[:100] for name in unused[:3]) + (" ..." if len(unused) > 3 else "")
            self._refuse(
                UnsupportedModel(
                    f"{self._label} has {len(unused)} tensors unknown to family {self._family.name}: {some}"
                )
            )

    def _oriented(self, role: str, layer: int, shape: tuple[int, int]) -> RawTensor:
        name = self.name(role, layer) + ".weight"
        if not self._family.transposed or self.is_gguf:
            return self.take(name, shape)
        raw = self.take(name, (shape[1], shape[0]))
        return self._detached(raw, transpose(raw))

    def _bias(self, role: str, layer: int, size: int) -> Floats | None:
        name = self.name(role, layer) + ".bias"
        if role not in self._family.biases and name not in self._source.tensors:
            return None
        return self._vector(name, size)

    def _own(self, vector: Floats | None) -> Vector | None:
        """The tensor in the backend's form."""
        return None if vector is None else self._ops.vector(vector)

    def _vector(self, name: str, size: int) -> Floats:
        raw = self.take(name, (size,))
        vector = self._unpacked(raw)
        self._source.release(raw)
        return vector

    def take(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """The tensor of that name, recorded as used. Raises BadModelFile: missing, or of another shape."""
        raw = self._source.tensors.get(name)
        if raw is None:
            error = BadModelFile(f"{self._label} has no tensor {name!r} (expected shape {shape})")
            return self._stand_in(error, name, shape)
        self.used.add(name)
        if raw.shape != shape:
            error = BadModelFile(f"{self._label}: tensor {name!r} has shape {raw.shape}; expected {shape}")
            return self._stand_in(error, name, shape)
        now = time.monotonic()
        if now - self._reported > _PROGRESS_EVERY_S:
            self._reported = now
            self._progress(f"loading weights: {format_part(self._bytes_read, self._bytes_all)}")
        self._bytes_read += raw.data.size
        return raw

    def _unpacked(self, raw: RawTensor) -> Floats:
        """A tensor's numbers; zeros for a meta tensor, which is read only to find problems."""
        if self._problems is not None and is_meta(raw):
            return np.zeros(raw.shape, np.float32)
        return unpack_vector(raw)

    def _stand_in(self, error: ModelError, name: str, shape: tuple[int, ...]) -> RawTensor:
        """Zeros in place of a tensor with an error."""
        self._refuse(error)
        return meta_tensor(name, "F32", shape)

    def _refuse(self, error: ModelError) -> None:
        if self._problems is None or len(self._problems) >= _PROBLEMS_MAX:
            raise error
        self._problems.append(error)

    def _detached(self, raw: RawTensor, copy: RawTensor) -> RawTensor:
        """The copy, after releasing its source."""
        self._release_pages(raw)
        self._copy = copy
        return copy

    def _release_pages(self, raw: RawTensor) -> None:
        """Release a tensor of the source. A copy needs no release, and a lookup in the source could decode it
        again."""
        if raw is self._copy:
            self._copy = None
        else:
            self._source.release(raw)


def _prefixes_in(tensors: Mapping[str, RawTensor], names: Names, description: Description) -> dict[str, str]:
    """The file's prefixes in place of the usual ones."""
    if description.is_part:
        for whole in _WHOLES:
            if f"{whole['model.']}{names['embedding'].removeprefix('model.')}.weight" in tensors:
                return dict(whole)
    # Some repositories saved the bare decoder, without the prefix of the whole model.
    prefix = names["embedding"].partition(".")[0] + "."
    bare = names["embedding"].removeprefix(prefix) + ".weight"
    prefixes = {prefix: ""} if bare in tensors else {}
    # GPT-NeoX's output has the name of other families' in newer files.
    if f"{names['output']}.weight" not in tensors and "lm_head.weight" in tensors:
        prefixes[names["output"] + "."] = "lm_head."
    return prefixes


def halves_order(num_rows: int, num_heads: int, dims: int) -> RowOrder:
    """The stored row for each row i, to convert heads from interleaved rope to rope in halves.

    Stored: x0 y0 x1 y1 ... of each head, pair (x, y) being rotated together; result: x0 x1 ... y0 y1 ...;
    rows of a head beyond the first `dims` are not rotated, and stay.
    """
    rows = np.arange(num_rows, dtype=np.intp).reshape(num_heads, -1)
    turned = rows[:, :dims].reshape(num_heads, dims // 2, 2).swapaxes(1, 2).reshape(num_heads, dims)
    return np.concatenate([turned, rows[:, dims:]], axis=1).reshape(-1)


def by_head_order(num_heads: int, head_size: int) -> RowOrder:
    """The stored row for each row i, to separate q, k and v that are stacked head by head."""
    rows = np.arange(num_heads * 3 * head_size, dtype=np.intp).reshape(num_heads, 3, head_size)
    return rows.swapaxes(0, 1).reshape(-1)


def take_rows(raw: RawTensor, order: RowOrder) -> RawTensor:
    """The tensor with these rows in that order, moved as bytes, so of any kind. Copies, except a meta tensor,
    whose bytes are all one."""
    shape = (order.size, *raw.shape[1:])
    if is_meta(raw):
        return raw if shape == raw.shape else meta_tensor(raw.name, raw.kind, shape)
    rows = raw.data.reshape(raw.shape[0], -1)
    return dataclasses.replace(raw, shape=shape, data=rows[order].reshape(-1))


def slice_rows(raw: RawTensor, start: int, stop: int) -> RawTensor:
    """Rows [start, stop) as a view."""
    rows = raw.data.reshape(raw.shape[0], -1)
    return dataclasses.replace(raw, shape=(stop - start, *raw.shape[1:]), data=rows[start:stop].reshape(-1))


def transpose(raw: RawTensor) -> RawTensor:
    """(a, b) -> (b, a), for kinds that are not grouped. Copies, except a meta tensor."""
    if is_meta(raw):
        return dataclasses.replace(raw, shape=(raw.shape[1], raw.shape[0]))
    items: Bytes = raw.data.reshape(*raw.shape, -1)
    return dataclasses.replace(
        raw, shape=(raw.shape[1], raw.shape[0]), data=np.ascontiguousarray(items.swapaxes(0, 1)).reshape(-1)
    )


def meta_tensor(name: str, kind: str, shape: tuple[int, ...]) -> RawTensor:
    """A tensor of a kind of `BLOCKS` whose bytes all alias one zero byte: it takes no memory.

    The rules that read weights move rows and slices of bytes without reading them, so they work on meta
    tensors as on real ones."""
    data = np.broadcast_to(np.zeros(1, np.uint8), (stored_bytes(kind, shape),))
    return RawTensor(name, kind, shape, data)


def is_meta(raw: RawTensor) -> bool:
    """Whether all its bytes alias one: then they are the same in any order."""
    return raw.data.strides == (0,)
