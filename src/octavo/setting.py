"""One definition of a setting: a field of a dataclass, with its bounds and its words.

    max_seqs: int = setting(64, "Sequences that run at once.", bounds=(1, 4096))

         |-- Python        LLM("m", max_seqs=8), StartOptions(max_seqs=8)     name, type, default: the field's
         |-- flag          --max-seqs 8                                       `cli/given.py`
         |-- variable      OCTAVO_MAX_SEQS=8
         |-- key           max_seqs = 8, under [engine] of --config FILE
         |-- check         "max_seqs is 0; allowed: 1 to 4,096"               `check`
         `-- documentation a row of docs/settings.md                          `docs/reference.py`

The dataclasses are `config.StartOptions` (the engine) and `server.settings.ServerSettings`; `read` makes
values of other types. The unit stands at the end of a field (`kv_memory_bytes`, `session_ttl_s`) and is left
out of the other spellings, since their values are in words or in seconds: `--kv-memory 2GiB`. Nothing here
knows where a value comes from.

CONTRIBUTING.md says how to add one. To remove one, write `gone="what happens now"` in place of its words: the
field stays, for code and tests; flag, variable, key and Python's keyword are refused with these words.
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
# The types of one value, and how messages call what is allowed.
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
    """A setting: its words and bounds, as its definition has them, and what its field says."""

    help: str = ""  # a sentence for --help and the documentation
    _: KW_ONLY
    group: str = ""  # the title that it stands under there; where not given, that of the setting before it
    more: str = ""  # what the documentation adds to the sentence
    choices: tuple[object, ...] = ()
    bounds: tuple[float, float] | None = None  # of bytes, where not given: 0 and 1 PiB
    allowed: str = ""  # in the documentation, where choices and bounds do not say it
    unset: str = ""  # what None comes to
    name: str = ""  # of variable and key, and with dashes of the flag: the field without its unit
    metavar: str = ""  # what stands behind the flag, where it is not the type
    short: str = ""  # another spelling of the flag
    secret: bool = False  # no message shows the value
    read: Callable[[str, str], object] | None = None  # the value, of a text and where it came from
    gone: str = ""  # of what was a setting: what happens now

    # What `_all_of` fills in, from the field.
    field: str = ""
    unit: str = ""  # "bytes", "s", "days"
    kind: type = str  # of one value; text where `read` makes it of text
    is_many: bool = False  # a tuple of such values
    is_optional: bool = False
    default: object = None

    @property
    def flag(self) -> str:
        """ "--kv-memory"."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def off(self) -> str:
        """ "--no-pace", of one that is on or off."""
        return f"--no-{self.flag[2:]}"

    @property
    def variable(self) -> str:
        """ "OCTAVO_KV_MEMORY"."""
        return f"OCTAVO_{self.name.upper()}"

    def parse(self, given: object, source: str) -> object:
        """The value of a text, of a flag or a variable, or of each of several; what is none stays as it is.

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
        """A value of a config file or of a program, in the field's own type; its bounds are for `check`.

        Raises ConfigError that names the `source`. What `read` reads is text still. `on_or_off` is how these
        are written there.
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
        """The error for a caller who gives what is gone."""
        return ConfigError(f"{given_as} is no setting any more: {self.gone}; leave it out")

    @property
    def is_size(self) -> bool:
        """Whether it counts bytes, which are also given in words."""
        return self.unit == "bytes"

    def in_words(self, value: object) -> str:
        """A value for people: "16", "20 GiB", "off"; for None "a quarter of what is available"."""
        if self.secret and value:
            return "not told"
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


setting = _as_field(Setting)  # a field of that default; what else it takes are the attributes of `Setting`


def settings_of(cls: type[DataclassInstance]) -> tuple[Setting, ...]:
    """The settings among the fields of a dataclass, in their order."""
    return tuple(each for each in _all_of(cls) if not each.gone)


def gone_of(cls: type[DataclassInstance]) -> dict[str, Setting]:
    """What were settings among its fields, by name."""
    return {each.name: each for each in _all_of(cls) if each.gone}


def check(options: DataclassInstance) -> None:
    """Raise ConfigError for the first setting that is out of its bounds, called by its name."""
    for each in _all_of(type(options)):
        each.check(getattr(options, each.field), each.name)


def near(name: str, known: Iterable[str]) -> str:
    """What may have been meant by a name, for the end of a message; "" where nothing is near it."""
    import difflib  # which takes a millisecond, and is for mistakes

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
