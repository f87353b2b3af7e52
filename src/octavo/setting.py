"""One definition of a setting: a field of a dataclass, with its bounds and its help.

    max_seqs: int = setting(64, "Sequences that run at once.", bounds=(1, 4096))

         |-- Python        LLM("m", max_seqs=8), StartOptions(max_seqs=8)     name, type, default: the field's
         |-- flag          --max-seqs 8                                       `cli/flags.py`
         |-- variable      OCTAVO_MAX_SEQS=8
         |-- key           max_seqs = 8, under [engine] of --config FILE
         |-- check         "max_seqs is 0; allowed: 1 to 4,096"               `check`
         `-- documentation a row of docs/settings.md                          `docs/reference.py`

The dataclasses are `config.StartOptions` (the engine) and `server.settings.ServerSettings`; `read` parses
values of other types. A field ends with its unit (`kv_memory_bytes`, `session_ttl_s`); the other spellings
omit it, since their values have units or are in seconds: `--kv-memory 2GiB`. Nothing here knows the source of
a value.

CONTRIBUTING.md says how to add one. To remove one, replace its help by `removed="what happens now"`: the
field stays, for code and tests; flag, variable, key and Python's keyword are refused with that text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from octavo.errors import ConfigError, is_number, shown
from octavo.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
P = ParamSpec("P")
_DIGITS_MAX = 4_000  # Python refuses to read more than 4,300
_SWITCH = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
# The types of one value, and their names in messages.
_IN_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path, as text",
}
_KINDS = {kind.__name__: kind for kind in _IN_WORDS}  # by their names in annotations


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: help and bounds from its definition, and attributes from its field."""

    help: str = ""  # a sentence for --help and the documentation
    _: KW_ONLY
    group: str = ""  # its title there; by default that of the setting before it
    more: str = ""  # an addition to the sentence in the documentation
    choices: tuple[object, ...] = ()
    bounds: tuple[float, float] | None = None  # the default for bytes: 0 and 1 PiB
    allowed: str = ""  # in the documentation, if choices and bounds do not say it
    unset: str = ""  # the meaning of None
    name: str = ""  # of variable and key, and with dashes of the flag: the field without its unit
    metavar: str = ""  # the text after the flag, if it is not the type
    short: str = ""  # another spelling of the flag
    secret: bool = False  # no message shows the value
    read: Callable[[str, str], object] | None = None  # parses a text and its source to a value
    removed: str = ""  # of a removed setting: what happens now

    # `_all_of` fills these in from the field.
    field: str = ""
    unit: str = ""  # "bytes", "s", "days"
    kind: type = str  # of one value; text if `read` parses it
    is_many: bool = False  # a tuple of such values
    is_optional: bool = False
    default: object = None

    @property
    def flag(self) -> str:
        """ "--kv-memory"."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def off(self) -> str:
        """ "--no-pace", of a boolean."""
        return f"--no-{self.flag[2:]}"

    @property
    def variable(self) -> str:
        """ "OCTAVO_KV_MEMORY"."""
        return f"OCTAVO_{self.name.upper()}"

    def parse(self, given: object, source: str) -> object:
        """Parse the text of a flag or a variable, or each of several; other values are returned unchanged.

        Raises ConfigError that names the `source`.
        """
        if isinstance(given, list | tuple):
            return tuple(self.parse(each, f"{source} number {place}") for place, each in enumerate(given, 1))
        if not isinstance(given, str):
            return given
        if self.read is not None:
            return self.read(given, source)
        if self.kind is bool and given.lower() in _SWITCH:
            return _SWITCH[given.lower()]
        if self.kind is int and re.fullmatch(rf"[+-]?[0-9]{{1,{_DIGITS_MAX}}}", given) and not self.is_size:
            return int(given)
        if self.kind is float:
            with suppress(ValueError):
                return float(given)
        return self.take(given, source)

    def take(self, given: object, source: str, on_or_off: str = "true or false") -> object:
        """A value of a config file or of a program, in the field's own type; `check` checks its bounds.

        Raises ConfigError that names the `source`. Values for `read` are still text. `on_or_off` is the
        spelling of booleans there.
        """
        if self.is_many and isinstance(given, list | tuple):
            return tuple(self.take(each, f"{source} number {place}") for place, each in enumerate(given, 1))
        if self.is_size and isinstance(given, str):
            return parse_bytes(given, source)
        is_right = {bool: isinstance(given, bool), int: is_number(given, whole=True), float: is_number(given)}
        if is_right.get(self.kind, isinstance(given, str | Path)):
            return self.kind(given)
        given_as = "something else" if self.secret else shown(given)
        allowed = on_or_off if self.kind is bool else _IN_WORDS[self.kind]
        if self.is_size:
            allowed = "a size such as 2GiB, or bytes"
        raise ConfigError(f"{source} is {given_as}; allowed: {allowed}")

    def check(self, value: object, name: str) -> None:
        """Raise ConfigError, under that name, for a value out of the bounds."""
        if isinstance(value, tuple):
            for each in value:
                self.check(each, name)
            return
        choices = (None,) * self.is_optional + self.choices
        if self.choices and value not in choices:
            raise ConfigError(f"{name} is {shown(value)}; allowed: {', '.join(map(str, choices))}")
        if self.bounds is None or value is None:
            return
        low, high = self.bounds
        if not isinstance(value, int | float):
            raise ConfigError(f"{name} is {shown(value)}; allowed: {_IN_WORDS[self.kind]}")
        if not low <= value <= high:
            raise ConfigError(f"{name} is {shown(value)}; allowed: {low:,} to {high:,}")

    def refusal(self, given_as: str) -> ConfigError:
        """The error for a caller who gives a removed setting."""
        return ConfigError(f"{given_as} is no longer a setting: {self.removed}; leave it out")

    @property
    def is_size(self) -> bool:
        """Whether it counts bytes, which may be given with units."""
        return self.unit == "bytes"

    def in_words(self, value: object) -> str:
        """A value for people: "16", "20 GiB", "off"; for None "a quarter of the available memory"."""
        if self.secret and value:
            return "not shown"
        if value is None or value == ():
            return self.unset or "none"
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.is_size and isinstance(value, int):
            return format_bytes(value).removesuffix(" B").replace(".0 ", " ")
        return f"{value:g}" if isinstance(value, float) else str(value)


def _as_field(make: Callable[P, Setting]) -> Callable[Concatenate[T, P], T]:
    def field(default: T, /, *words: P.args, **more: P.kwargs) -> T:
        return dataclasses.field(default=default, metadata={"setting": make(*words, **more)})

    return field


setting = _as_field(Setting)  # a field with that default; other arguments are the attributes of `Setting`


def settings_of(cls: type[DataclassInstance]) -> tuple[Setting, ...]:
    """The settings among the fields of a dataclass, in their order."""
    return tuple(each for each in _all_of(cls) if not each.removed)


def removed_settings_of(cls: type[DataclassInstance]) -> dict[str, Setting]:
    """The removed settings among its fields, by name."""
    return {each.name: each for each in _all_of(cls) if each.removed}


def check(options: DataclassInstance) -> None:
    """Raise ConfigError, with its name, for the first setting out of its bounds."""
    for each in _all_of(type(options)):
        each.check(getattr(options, each.field), each.name)


def suggestions(name: str, known: Iterable[str]) -> str:
    """Suggestions for a misspelt name, for the end of a message; "" if there are none."""
    import difflib  # takes a millisecond, and is needed only for mistakes

    found = difflib.get_close_matches(name, list(known), 3)
    return f"; near it: {', '.join(found)}" if found else ""


@cache
def _all_of(cls: type[DataclassInstance]) -> tuple[Setting, ...]:
    found, group = [], ""
    for field in dataclasses.fields(cls):
        if (each := field.metadata.get("setting")) is None:
            continue
        group = each.group or group
        stem = re.sub("_(bytes|s|days)$", "", field.name)
        unit = field.name[len(stem) + 1 :]
        words = re.findall(r"\w+", str(field.type))  # "tuple[str, ...]", "int | None"
        kinds = [_KINDS[word] for word in words if word in _KINDS] or [str]
        assert each.read is not None or len(kinds) == 1, f"{field.name} has no type of a setting"
        whole = replace(
            each,
            field=field.name,
            name=each.name or stem,
            unit=unit,
            group=group,
            bounds=each.bounds or ((0, 2**50) if unit == "bytes" else None),
            kind=kinds[0],
            is_many="tuple" in words,
            is_optional="None" in words,
            default=field.default,
        )
        found.append(whole)
    return tuple(found)
