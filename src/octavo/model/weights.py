"""From a file's tensors to `ModelWeights`: find each by name, check its shape, bring it into one form.

One form means: linears are (outputs, inputs); q, k and v apart; rope in halves; norms with their offset
added. Quantised rows are moved as bytes, never decoded here. A tensor's pages are released once it is
converted, and a tensor that no rule consumed is an error: an unknown variation must not be served as if it
were not there.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.kernels.contract import Bytes, Floats, Matrix, RawTensor, Vector, WeightOps
from octavo.kernels.packed import unpack_vector
from octavo.model.families import GGUF_TENSORS, Description
from octavo.model.spec import LayerWeights, Linear, ModelWeights, Norm

# Buffers that files carry along and that are no weights: causal masks, tables of frequencies.
_IGNORED = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias|attn_rot_embd.*|rope_freqs\.weight)"
)
_PROGRESS_EVERY_S = 1.0


class TensorSource(Protocol):
    """A `GgufFile` or `SafetensorsFiles`."""

    @property
    def tensors(self) -> Mapping[str, RawTensor]: ...

    def release(self, raw: RawTensor) -> None: ...


def read_weights(
    source: TensorSource,
    label: str,
    is_gguf: bool,
    description: Description,
    ops: WeightOps,
    progress: Callable[[str], None],
) -> ModelWeights:
    """Convert all. Raises BadModelFile (a tensor missing or of a wrong shape), UnsupportedModel (unknown).

    `label` names the file in messages. O(weights), one tensor at a time.
    """
    reader = _Reader(source, label, is_gguf, description, ops, progress)
    spec = description.spec
    embedding = reader.matrix("embedding", 0, (spec.vocab_size, spec.hidden_size))
    positions = None
    if description.family.learned_positions:
        positions = reader.matrix("positions", 0, (spec.context_length, spec.hidden_size))
    layers = tuple(_read_layer(reader, description, layer) for layer in range(spec.num_layers))
    final_norm = reader.norm("final_norm", 0, spec.hidden_size)
    if description.tied:
        output = embedding
        reader.used.add(reader.name("output", 0) + ".weight")  # some files repeat it
    else:
        output = reader.matrix("output", 0, (spec.vocab_size, spec.hidden_size))
    reader.refuse_leftovers()
    return ModelWeights(embedding, layers, final_norm, output, positions)


def _read_layer(reader: _Reader, description: Description, layer: int) -> LayerWeights:
    spec, family = description.spec, description.family
    queries, keys = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    if family.fused_qkv:
        q, k, v = reader.split_linear("qkv", layer, (queries, keys, keys), spec.hidden_size)
    else:
        interleaved = reader.is_gguf and family.interleaved_in_gguf
        q = reader.linear("q", layer, (queries, spec.hidden_size), spec.num_heads if interleaved else 0)
        k = reader.linear("k", layer, (keys, spec.hidden_size), spec.num_kv_heads if interleaved else 0)
        v = reader.linear("v", layer, (keys, spec.hidden_size))
    has = family.tensors.keys()
    return LayerWeights(
        attention_norm=reader.norm("attention_norm", layer, spec.hidden_size),
        q=q,
        k=k,
        v=v,
        o=reader.linear("o", layer, (spec.hidden_size, queries)),
        ffn_norm=reader.norm("ffn_norm", layer, spec.hidden_size),
        gate=reader.linear("gate", layer, (spec.ffn_size, spec.hidden_size)) if family.gated else None,
        up=reader.linear("up", layer, (spec.ffn_size, spec.hidden_size)),
        down=reader.linear("down", layer, (spec.hidden_size, spec.ffn_size)),
        q_norm=reader.norm("q_norm", layer, spec.head_size) if "q_norm" in has else None,
        k_norm=reader.norm("k_norm", layer, spec.head_size) if "k_norm" in has else None,
        attention_post_norm=(
            reader.norm("attention_post_norm", layer, spec.hidden_size)
            if "attention_post_norm" in has
            else None
        ),
        ffn_post_norm=reader.norm("ffn_post_norm", layer, spec.hidden_size)
        if "ffn_post_norm" in has
        else None,
    )


class _Reader:
    """Hands out converted tensors by role, and remembers which names were used."""

    def __init__(
        self,
        source: TensorSource,
        label: str,
        is_gguf: bool,
        description: Description,
        ops: WeightOps,
        progress: Callable[[str], None],
    ) -> None:
        self.is_gguf = is_gguf
        self.used: set[str] = set()
        self._source, self._label, self._ops, self._progress = source, label, ops, progress
        self._family = description.family
        self._names = GGUF_TENSORS if is_gguf else self._family.tensors
        # Some repositories saved the bare decoder, without the prefix of the whole model.
        prefix = self._names["embedding"].partition(".")[0] + "."
        bare = self._names["embedding"].removeprefix(prefix) + ".weight"
        self._drop = prefix if not is_gguf and bare in source.tensors else ""
        self._reported = time.monotonic()

    def name(self, role: str, layer: int) -> str:
        return self._names[role].format(layer).removeprefix(self._drop)

    def matrix(self, role: str, layer: int, shape: tuple[int, int]) -> Matrix:
        """A tensor that is stored (outputs, inputs) in every file: embeddings and the output."""
        raw = self._take(self.name(role, layer) + ".weight", shape)
        matrix = self._ops.matrix(raw, table=True)
        self._source.release(raw)
        return matrix

    def norm(self, role: str, layer: int, size: int) -> Norm:
        name = self.name(role, layer)
        weight = self._vector(name + ".weight", size)
        if self._family.norm_offset and not self.is_gguf:
            weight = weight + np.float32(self._family.norm_offset)
        bias = self._vector(name + ".bias", size) if self._family.norm == "layer" else None
        return Norm(self._ops.vector(weight), self._own(bias))

    def linear(self, role: str, layer: int, shape: tuple[int, int], interleaved_heads: int = 0) -> Linear:
        """A projection; with `interleaved_heads`, its rows go from rope's interleaved order to halves."""
        raw = self._oriented(role, layer, shape)
        bias = self._bias(role, layer, shape[0])
        if interleaved_heads:
            order = halves_order(shape[0], interleaved_heads)
            raw = _detached(self._source, raw, take_rows(raw, order))
            bias = None if bias is None else bias[order]
        matrix = self._ops.matrix(raw)
        self._release_if_mapped(raw)
        return Linear(matrix, self._own(bias))

    def split_linear(self, role: str, layer: int, sizes: tuple[int, int, int], inputs: int) -> list[Linear]:
        """Projections stored as one tensor, one below the other."""
        raw = self._oriented(role, layer, (sum(sizes), inputs))
        bias = self._bias(role, layer, sum(sizes))
        linears, start = [], 0
        for size in sizes:
            part = slice_rows(raw, start, start + size)
            part_bias = None if bias is None else np.ascontiguousarray(bias[start : start + size])
            linears.append(Linear(self._ops.matrix(part), self._own(part_bias)))
            start += size
        self._release_if_mapped(raw)
        return linears

    def refuse_leftovers(self) -> None:
        """Every tensor of the file must have been used, or be known to be no weight."""
        unused = [
            name for name in self._source.tensors if name not in self.used and not _IGNORED.fullmatch(name)
        ]
        if unused:
            some = ", ".join(unused[:3]) + (" ..." if len(unused) > 3 else "")
            raise UnsupportedModel(
                f"{self._label} has {len(unused)} tensors unknown to family {self._family.name}: {some}"
            )

    def _oriented(self, role: str, layer: int, shape: tuple[int, int]) -> RawTensor:
        name = self.name(role, layer) + ".weight"
        if not self._family.transposed or self.is_gguf:
            return self._take(name, shape)
        raw = self._take(name, (shape[1], shape[0]))
        return _detached(self._source, raw, transpose(raw))

    def _bias(self, role: str, layer: int, size: int) -> Floats | None:
        name = self.name(role, layer) + ".bias"
        if role not in self._family.biases and name not in self._source.tensors:
            return None
        return self._vector(name, size)

    def _own(self, vector: Floats | None) -> Vector | None:
        """In the backend's form."""
        return None if vector is None else self._ops.vector(vector)

    def _vector(self, name: str, size: int) -> Floats:
        raw = self._take(name, (size,))
        vector = unpack_vector(raw)
        self._source.release(raw)
        return vector

    def _take(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        raw = self._source.tensors.get(name)
        if raw is None:
            raise BadModelFile(f"{self._label} has no tensor {name!r} (expected shape {shape})")
        if raw.shape != shape:
            raise BadModelFile(f"{self._label}: tensor {name!r} has shape {raw.shape}; expected {shape}")
        self.used.add(name)
        now = time.monotonic()
        if now - self._reported > _PROGRESS_EVERY_S:
            self._reported = now
            self._progress(f"loading weights: {len(self.used)} of {len(self._source.tensors)} tensors")
        return raw

    def _release_if_mapped(self, raw: RawTensor) -> None:
        if raw is self._source.tensors.get(raw.name):
            self._source.release(raw)


def halves_order(num_rows: int, num_heads: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Which stored row becomes row i, when heads stored for rope on neighbours are put in halves.

    Stored: x0 y0 x1 y1 ... of each head, pair (x, y) being rotated together; wanted: x0 x1 ... y0 y1 ...
    """
    rows = np.arange(num_rows, dtype=np.intp)
    return rows.reshape(num_heads, num_rows // num_heads // 2, 2).swapaxes(1, 2).reshape(-1)


def take_rows(raw: RawTensor, order: np.ndarray[tuple[int], np.dtype[np.intp]]) -> RawTensor:
    """The tensor with its rows in another order: whole rows of bytes, so any kind will do. Copies."""
    rows = raw.data.reshape(raw.shape[0], -1)
    return dataclasses.replace(raw, data=rows[order].reshape(-1))


def slice_rows(raw: RawTensor, start: int, stop: int) -> RawTensor:
    """Rows [start, stop) as a view."""
    rows = raw.data.reshape(raw.shape[0], -1)
    return dataclasses.replace(raw, shape=(stop - start, *raw.shape[1:]), data=rows[start:stop].reshape(-1))


def transpose(raw: RawTensor) -> RawTensor:
    """(a, b) -> (b, a), for kinds that are not grouped. Copies."""
    items: Bytes = raw.data.reshape(*raw.shape, -1)
    return dataclasses.replace(
        raw, shape=(raw.shape[1], raw.shape[0]), data=np.ascontiguousarray(items.swapaxes(0, 1)).reshape(-1)
    )


def _detached(source: TensorSource, raw: RawTensor, copy: RawTensor) -> RawTensor:
    """The copy, after the pages of what it was made from were given back."""
    source.release(raw)
    return copy
