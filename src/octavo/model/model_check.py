"""Checks a model before it is loaded, and collects all problems instead of only the first.

    header -> settings -> tensors    by the rules that load, over meta tensors
           -> vocabulary, chat template

A failed step does not stop later steps that do not need it. Problems in the bytes of weights (a NaN) are not
found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from octavo.errors import ModelError
from octavo.fields import Fields, read_json_fields
from octavo.kernels.contract import RawTensor
from octavo.model.families import Description, describe_config
from octavo.model.files.gguf import GgufFile, read_gguf
from octavo.model.files.safetensors_file import SafetensorsFiles, read_safetensors
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import OpenedFiles, describe_gguf_file, require_rows
from octavo.model.quantised.source import DequantisedFiles, dequantised_source
from octavo.model.weight_sizes import MeasuredModel, measure_model
from octavo.text.chat import ChatTemplate
from octavo.text.gguf_vocabulary import check_vocabulary
from octavo.text.model_templates import templates_of_gguf
from octavo.text.tokenizer import Tokenizer

T = TypeVar("T")
_DIFFERENT_MAX = 16  # reported problems of one part


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model does not run. `part`: "file", "settings", "tensors" or "tokenizer"."""

    part: str
    text: str


@dataclass(frozen=True, slots=True)
class VocabularyCheck:
    """The tokenizer in words, the files' chat template, and what was guessed ("": nothing)."""

    name: str
    size: int
    template: ChatTemplate | None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The findings. A field is None if a problem prevents it."""

    problems: tuple[Problem, ...]
    stored: Mapping[str, int]  # bytes of tensors by the files' kinds, the largest first
    opened: OpenedFiles | None
    measured: MeasuredModel | None
    vocabulary: VocabularyCheck | None


def check_model(path: ModelPath, weights: str, context_length: int | None = None) -> ModelCheck:
    """Check a model whose files are local, as it would be loaded in a mode of `--weights`.

    Raises ConfigError if the context is too long; any other error is a problem. O(header bytes).
    """
    found = _Problems()
    source = found.attempt("file", lambda: _open(path, found))
    description = None if source is None else found.attempt("settings", lambda: _describe(path, source))
    opened, measured = None, None
    if source is not None and description is not None:
        opened = OpenedFiles(path, source, _files(source).paths, description)
        measured = found.attempt("tensors", lambda: _measure(opened, weights, context_length, found))
    vocabulary = found.attempt("tokenizer", lambda: _vocabulary_of(path, source, description))
    stored = {} if source is None else _bytes_by_kind(source)
    return ModelCheck(tuple(found.all), MappingProxyType(stored), opened, measured, vocabulary)


class _Problems:
    """The problems found so far."""

    def __init__(self) -> None:
        self.all: list[Problem] = []

    def attempt(self, part: str, work: Callable[[], T]) -> T | None:
        """The work's result; or None, with its error added as a problem."""
        try:
            return work()
        except ModelError as error:
            self.add(part, [error])
            return None

    def add(self, part: str, errors: Iterable[ModelError]) -> None:
        """Add errors; those that differ only in numbers (layers, mostly) are reported once."""
        alike: dict[str, list[str]] = {}
        for error in errors:
            alike.setdefault(re.sub(r"\d+", "#", str(error)), []).append(str(error))
        kept = list(alike.values())[:_DIFFERENT_MAX]
        for first, *others in kept:
            more = f" ({len(others):,} more like it)" if others else ""
            self.all.append(Problem(part, first + more))
        if len(alike) > len(kept):
            self.all.append(Problem(part, f"and {len(alike) - len(kept):,} others"))


_Source = GgufFile | SafetensorsFiles | DequantisedFiles


def _open(path: ModelPath, found: _Problems) -> _Source:
    if path.kind == "gguf":
        unknown: list[ModelError] = []
        gguf = read_gguf(path.path, unknown)
        found.add("tensors", unknown)
        return gguf
    files = read_safetensors(path.path)
    config = read_json_fields(path.path / "config.json")
    return found.attempt("tensors", lambda: dequantised_source(files, config)) or files


def _describe(path: ModelPath, source: _Source) -> Description:
    if isinstance(source, GgufFile):
        return describe_gguf_file(source)
    return describe_config(read_json_fields(path.path / "config.json"))


def _measure(
    opened: OpenedFiles, weights: str, context_length: int | None, found: _Problems
) -> MeasuredModel:
    errors: list[ModelError] = []
    try:
        return measure_model(opened, weights, context_length, errors)
    finally:
        found.add("tensors", errors)


def _vocabulary_of(
    path: ModelPath, source: _Source | None, description: Description | None
) -> VocabularyCheck | None:
    if path.kind != "gguf":
        tokenizer = Tokenizer.from_folder(path.path)
        return VocabularyCheck("the folder's own", tokenizer.vocab_size, tokenizer.chat_template)
    if not isinstance(source, GgufFile):
        return None
    fields = Fields(str(path.path), source.metadata)
    facts, templates = check_vocabulary(fields), templates_of_gguf(fields)
    if description is not None:
        require_rows(path, description, facts.size)
    template = None
    if templates.default is not None:
        with_tools = None if templates.with_tools is None else ChatTemplate(templates.with_tools)
        template = ChatTemplate(templates.default, with_tools=with_tools)
    return VocabularyCheck(facts.name, facts.size, template, facts.doubt)


def _files(source: _Source) -> GgufFile | SafetensorsFiles:
    return source.files if isinstance(source, DequantisedFiles) else source


def _bytes_by_kind(source: _Source) -> dict[str, int]:
    files = _files(source)
    raws: list[RawTensor] = list(files.tensors.values())
    if isinstance(files, SafetensorsFiles):
        raws += files.codes.values()
    sizes: dict[str, int] = {}
    for raw in raws:
        sizes[raw.kind] = sizes.get(raw.kind, 0) + raw.data.size
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))
