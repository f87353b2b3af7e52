"""Typed, bounded reading of a model's settings (config.json, GGUF metadata); errors name the wrong one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.errors import BadModelFile, ModelNotFound, shown

JSON_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Fields:
    """`values` of `source` (a path, for messages). Null counts as absent, as in Hugging Face."""

    source: str
    values: Mapping[str, object]

    def bad(self, key: str, allowed: str) -> BadModelFile:
        """The error for a key whose value is not allowed."""
        given = shown(self.values.get(key))
        return BadModelFile(f"{self.source}: {key} is {given}; allowed: {allowed}")

    def has(self, key: str) -> bool:
        """True when the key is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]; absent without a default is BadModelFile."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(key, f"a whole number from {low:,} to {high:,}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in [low, high]."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.bad(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """A finite number in [low, high], or None when absent."""
        return self.number(key, low, high) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.bad(key, "a string")
        return value

    def is_list(self, key: str) -> bool:
        """True when the value is a list, or an array of a GGUF file."""
        return isinstance(self.values.get(key), list | tuple | np.ndarray)

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of `count` finite numbers in [low, high], flags counting as 0 and 1."""
        value = self.values.get(key)
        items = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
        if not isinstance(items, list) or len(items) != count:
            raise self.bad(key, f"a list of {count:,} numbers")
        if not all(isinstance(item, int | float) and low <= item <= high for item in items):
            raise self.bad(key, f"{count:,} numbers from {low:g} to {high:g}")
        return tuple(float(item) for item in items)

    def with_defaults(self, defaults: Mapping[str, object]) -> Fields:
        """These fields, with `defaults` for absent keys; null stays null."""
        return Fields(self.source, {**defaults, **self.values})

    def inner(self, key: str) -> Fields:
        """The settings nested under a key; empty when it is absent."""
        value = self.values.get(key)
        if value is None:
            return Fields(f"{self.source}: {key}", {})
        if not isinstance(value, dict):
            raise self.bad(key, "an object")
        return Fields(f"{self.source}: {key}", value)


def read_json_fields(path: Path) -> Fields:
    """A JSON object from a file. Raises ModelNotFound (no file) or BadModelFile (not sound JSON)."""
    try:
        if path.stat().st_size > JSON_BYTES_MAX:
            raise BadModelFile(f"{path} has {path.stat().st_size:,} bytes; allowed: up to {JSON_BYTES_MAX:,}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
    return Fields(str(path), parse_json_object(data, str(path)))


def parse_json_object(data: bytes, source: str) -> dict[str, object]:
    """A JSON object; duplicate keys, deep nesting, NaN and huge numbers are BadModelFile."""
    try:
        value = json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = "a number has too many digits" if "set_int_max_str_digits" in str(error) else str(error)
        raise BadModelFile(f"{source} is not sound JSON: {why}") from error
    if not isinstance(value, dict):
        raise BadModelFile(f"{source} is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return found


def _refuse_constant(name: str) -> float:
    """JSON has no such constants, but Python's reader and writer do; real configurations contain infinity."""
    if name == "NaN":
        raise ValueError("NaN is not a number")
    return math.copysign(math.inf, -1.0 if name.startswith("-") else 1.0)
