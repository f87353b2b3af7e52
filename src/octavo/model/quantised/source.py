"""Safetensors with quantised weights as tensors of kinds that the backends know, one decoded at a time.

    X.qweight + X.scales + X.qzeros  ->  X.weight of kind Q4_0, decoded when it is read

`dequantised_source` checks every shape from headers alone; a lookup then reads and decodes one weight, and
`release` frees it and the pages of its parts. Tensors that are not quantised are returned unchanged. This
module knows no family and no name of a layer: a matrix counts as quantised if its parts exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.kernels.contract import RawTensor
from octavo.kernels.packed import stored_bytes
from octavo.model.files.safetensors_file import SafetensorsFiles
from octavo.model.quantised.layouts import (
    Parts,
    QuantisedMatrix,
    find_awq,
    find_float8,
    find_gptq,
    find_int8,
    find_mxfp4,
    find_packed,
)
from octavo.model.quantised.settings import METHODS, Outcome, Quantisation, read_quantisation

# Scales of activations, and of K and V: they change no weight.
_UNUSED = re.compile(r".*\.((input|output|[qkv])_(scale|zero_point|global_scale)|input_scale_ub)")
_CODES = re.compile(r"(?P<module>.*)\.(qweight|weight_packed|weight)")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The kind and shape of a tensor, without its bytes."""

    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DequantisedFiles:
    """A `TensorSource` over files with quantised weights. For one thread."""

    files: SafetensorsFiles
    settings: Quantisation
    tensors: Mapping[str, RawTensor]  # decodes on lookup, and caches the last one
    matrices: Mapping[str, QuantisedMatrix]
    _kept: dict[str, RawTensor] = field(repr=False)

    def release(self, raw: RawTensor) -> None:
        """Free a decoded matrix, and the pages of its parts."""
        matrix = self.matrices.get(raw.name)
        if matrix is None:
            self.files.release(raw)
            return
        self._kept.clear()
        for part in matrix.parts:
            self.files.release(part)

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Expected kind and shape of every tensor, from headers alone; nothing is decoded."""
        found = {
            name: StoredTensor(matrix.expected.kind, matrix.shape) for name, matrix in self.matrices.items()
        }
        plain = [self.files.tensors[name] for name in self.tensors if name not in self.matrices]
        return found | {raw.name: StoredTensor(raw.kind, raw.shape) for raw in plain}

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors after decoding, as expected."""
        return sum(stored_bytes(each.kind, each.shape) for each in self.stored.values())

    @property
    def header_bytes(self) -> int:
        """Bytes of the largest header."""
        return self.files.header_bytes

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """The expected number of matrices by outcome, from headers alone."""
        found: dict[Outcome, int] = {}
        for matrix in self.matrices.values():
            found[matrix.expected] = found.get(matrix.expected, 0) + 1
        return found

    @property
    def identity(self) -> str:
        """For a fingerprint: what decides the weights in addition to the files' bytes."""
        return repr(replace(self.settings, notes=()))

    def in_words(self) -> str:
        """ "gptq: 28 matrices (4 bits, ...) are held as Q4_0; lost: nothing"."""
        lines = [
            f"{count} matrices ({outcome.layout}) are read as {outcome.kind}; lost: {outcome.loss}"
            for outcome, count in self.outcomes.items()
        ]
        return f"{self.settings.method}: " + "; ".join((*lines, *self.settings.notes))


def dequantised_source(files: SafetensorsFiles, config: Fields) -> SafetensorsFiles | DequantisedFiles:
    """The files unchanged, or wrapped in a decoder if config.json says that they are quantised.

    Raises BadModelFile (a part is missing or does not fit), UnsupportedModel (an unknown method, layout or
    number of bits). O(tensors); no weight is read.
    """
    settings = read_quantisation(config)
    label = str(files.paths[0].parent)
    if settings is None:
        _refuse_unexplained(files, label)
        return files
    parts = Parts(files, label)
    matrices: dict[str, QuantisedMatrix] = {}
    for raw in files.codes.values():
        found = _find(parts, raw, settings)
        if found is not None:
            matrices[found.name] = found
    used = {part.name for matrix in matrices.values() for part in matrix.parts}
    _refuse_leftovers(files, used, settings, label)
    plain = [name for name in files.tensors if name not in used and not _UNUSED.fullmatch(name)]
    both = next((name for name in plain if name in matrices), None)
    if both is not None:
        raise parts.bad(both, "is there both quantised and as it is")
    kept: dict[str, RawTensor] = {}
    return DequantisedFiles(files, settings, _Tensors(files, plain, matrices, kept), matrices, kept)


class _Tensors(Mapping[str, RawTensor]):
    """Plain tensors of the files and decoded ones, by name. Only a lookup decodes."""

    def __init__(
        self,
        files: SafetensorsFiles,
        plain: list[str],
        matrices: Mapping[str, QuantisedMatrix],
        kept: dict[str, RawTensor],
    ) -> None:
        self._files, self._matrices, self._kept = files, matrices, kept
        self._names = dict.fromkeys([*plain, *matrices])

    def __getitem__(self, name: str) -> RawTensor:
        if name not in self._names:
            raise KeyError(name)
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._files.tensors[name]
        if name not in self._kept:
            self._kept.clear()  # one at a time
            self._kept[name] = matrix.decode()
        return self._kept[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _find(parts: Parts, raw: RawTensor, settings: Quantisation) -> QuantisedMatrix | None:
    """The matrix that `raw` holds the codes of; None if it is another part, or no part."""
    if settings.method == "mxfp4":
        name = raw.name.removesuffix("_blocks")
        return None if name == raw.name else find_mxfp4(parts, name)
    match = _CODES.fullmatch(raw.name)
    if match is None:
        return None
    module, last = match["module"], raw.name.rpartition(".")[2]
    readers: Mapping[tuple[str, str], Callable[[Parts, str], QuantisedMatrix]] = {
        ("gptq", "qweight"): partial(_with_settings, find_gptq, settings),
        ("awq", "qweight"): partial(_with_settings, find_awq, settings),
        ("compressed-tensors", "weight_packed"): find_packed,
    }
    reader = readers.get((settings.method, last))
    if reader is not None:
        return reader(parts, module)
    if last == "weight" and raw.kind.startswith("F8") and settings.method not in ("gptq", "awq"):
        return find_float8(parts, module, settings.blocks)
    if last == "weight" and raw.kind == "I8" and settings.method == "compressed-tensors":
        return find_int8(parts, module)
    return None


def _with_settings(
    find: Callable[[Parts, str, Quantisation], QuantisedMatrix],
    settings: Quantisation,
    parts: Parts,
    module: str,
) -> QuantisedMatrix:
    return find(parts, module, settings)


def _refuse_unexplained(files: SafetensorsFiles, label: str) -> None:
    """Refuse 8-bit floats and packed weights without settings: they cannot be read or skipped."""
    for raw in files.codes.values():
        if raw.kind.startswith("F8") or _CODES.fullmatch(raw.name):
            raise UnsupportedModel(
                f"{label}: tensor {raw.name!r} is stored as {raw.kind}, and config.json has no "
                f"quantization_config that says how; known methods: {', '.join(METHODS)}"
            )


def _refuse_leftovers(files: SafetensorsFiles, used: set[str], settings: Quantisation, label: str) -> None:
    for raw in files.codes.values():
        if raw.name in used or not (raw.kind.startswith("F8") or _CODES.fullmatch(raw.name)):
            continue
        raise UnsupportedModel(
            f"{label}: tensor {raw.name!r} is stored as {raw.kind}, which is no layout of "
            f"{settings.method} that is known here"
        )
