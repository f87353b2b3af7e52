"""Split GGUF: what a part's header says of its set, and where the other parts are.

    model-00001-of-00003.gguf   split.no 0, split.count 3, split.tensors.count 290, and all other metadata
    model-00002-of-00003.gguf   split.no 1, split.count 3, split.tensors.count 290
    model-00003-of-00003.gguf   split.no 2, ...

Names count from 1 and headers from 0. Where the two disagree the file was renamed, or belongs to another
set, and is refused. It opens no file.

Source: llama.cpp's gguf-split, whose names and keys the `gguf` package writes as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import BadModelFile
from octavo.fields import Fields

PARTS_MAX = 1 << 10
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_OWN_KEYS = ("split.no", "split.count", "split.tensors.count", "general.alignment")


@dataclass(frozen=True, slots=True)
class PartName:
    """The parsed file name of a part: "model-00002-of-00003.gguf" is number 2 of 3 of "model"."""

    stem: str
    number: int  # from 1
    count: int

    def of(self, number: int) -> str:
        """The file name of another part of the same set."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}.gguf"


@dataclass(frozen=True, slots=True)
class SplitMark:
    """The split settings in a part's header."""

    index: int  # from 0
    count: int
    num_tensors: int  # of all parts together


def parse_part_name(name: str) -> PartName | None:
    """None for a file name that is no part's."""
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return None
    found = PartName(match["stem"], int(match["number"]), int(match["count"]))
    return found if 1 <= found.number <= found.count <= PARTS_MAX else None


def read_split_mark(source: str, metadata: Mapping[str, object], tensors_max: int) -> SplitMark | None:
    """The mark in the header of `source`, or None for a whole file. Raises BadModelFile."""
    fields = Fields(source, metadata)
    count = fields.integer("split.count", 0, PARTS_MAX, default=1)
    if count <= 1:
        return None
    index = fields.integer("split.no", 0, count - 1)
    return SplitMark(index, count, fields.integer("split.tensors.count", 0, tensors_max))


def part_paths(path: Path, mark: SplitMark) -> tuple[Path, ...]:
    """All parts in order, of which `path` is one. Raises BadModelFile if its name contradicts that."""
    name = parse_part_name(path.name)
    if name is None or (name.number, name.count) != (mark.index + 1, mark.count):
        expected = PartName(path.stem if name is None else name.stem, 1, mark.count)
        raise BadModelFile(
            f"{path} is part {mark.index + 1} of {mark.count} by its header; allowed: that its name says so"
            f" as well, such as {expected.of(mark.index + 1)}, next to the other parts"
        )
    return tuple(path.with_name(name.of(number)) for number in range(1, mark.count + 1))


def foreign_key(first: Mapping[str, object], other: Mapping[str, object]) -> str | None:
    """A setting in which a later part differs from the first; it belongs to another model then."""
    for key, value in other.items():
        if key in _OWN_KEYS or key not in first or not isinstance(value, str | int | float):
            continue
        if not isinstance(first[key], str | int | float) or first[key] != value:
            return key
    return None
