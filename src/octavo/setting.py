"""One definition of a setting: a field of a dataclass, with what is to be said of it.

    max_seqs: int = setting(64, About("Sequences that run at once.", COMPUTING, low=1, high=4096))

         |-- Python        LLM("m", max_seqs=8), StartOptions(max_seqs=8)     name, type, default: the field's
         |-- flag          --max-seqs 8                                       `cli/flags.py`
         |-- variable      OCTAVO_MAX_SEQS=8                                  `cli/given.py`
         |-- key           max_seqs = 8, under [engine] of --config FILE      `cli/config_file.py`
         |-- check         "max_seqs is 0; allowed: 1 to 4,096"               `check`
         `-- documentation a row of docs/settings.md                          `docs/settings.py`

The dataclasses are `config.StartOptions` (the engine) and `server.settings.ServerSettings`. The unit stands
at the end of a field (`kv_memory_bytes`, `session_ttl_s`) and is left out of the other spellings, since their
values are in words or in seconds: `--kv-memory 2GiB`. Nothing here knows where a value comes from.

How to add a setting:

1. Write its field, as above, where it belongs. Flag, variable, key, check and help are there with it.
   `ServerSettings` takes fields of any type: `read` makes the value of the text that is given.
2. `serve` and `doctor` take it by themselves. `chat`, `generate` and `bench` name the ones that they take,
   in `cli/main.py` and `cli/bench_app.py`: add it where it is of use there.
3. One of the engine: its line in `OwnSettings` of `api/settings.py`, which type checkers read.
4. `python docs/settings.py` writes its row. Tests tell when 3 or 4 is forgotten.

How to remove one: `gone(default, Gone(words))` in its place. The field stays, for code and tests; flag,
variable, key and Python's keyword are refused with the words, which say what happens now.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from octavo.errors import ConfigError, is_number, shown
from octavo.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
_KEY = "setting"
_DIGITS_MAX = 4_000  # Python refuses to read more than 4,300
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
# The types of one value, by their names in annotations, and how messages call what is allowed.
Kind = type[bool] | type[int] | type[float] | type[str] | type[Path]
_KINDS: Mapping[str, Kind] = {"bool": bool, "int": int, "float": float, "str": str, "Path": Path}
_IN_WORDS: Mapping[Kind, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path, as text",
}


class Unit(Enum):
    """What a number counts; the value is how the names of such fields end."""

    COUNT = ""
    BYTES = "_bytes"
    SECONDS = "_s"
    DAYS = "_days"


@dataclass(frozen=True, slots=True)
class About:
    """What is said of a setting beside its name, type and default."""

    help: str  # a sentence for --help
    group: str  # the title that it stands under there, and in the documentation
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    unit: Unit = Unit.COUNT
    name: str = ""  # where flag, variable and key are not the field without its unit
    metavar: str = ""  # what stands behind the flag, where it is not the type
    default: str = ""  # what None comes to
    allowed: str = ""  # in the documentation, where choices and bounds do not say it
    docs: str = ""  # the same as `help`, where the documentation has more room
    secret: bool = False  # no message tells the value
    read: Callable[[str, str], object] | None = None  # the value, of a text and where it came from


@dataclass(frozen=True, slots=True)
class Gone:
    """What is said of a field that was a setting, and is computed now."""

    instead: str  # what happens now
    unit: Unit = Unit.COUNT

    def refusal(self, given_as: str) -> ConfigError:
        """The error for a caller who gives it all the same."""
        return ConfigError(f"{given_as} is no setting any more: {self.instead}; leave it out")


@dataclass(frozen=True, slots=True)
class Described:
    """A setting: its field, and all that follows from it."""

    field: str
    about: About
    kind: Kind  # of one value; text where `About.read` makes it of text
    is_many: bool  # a tuple of such values
    is_optional: bool  # None: as `About.default` says
    default: object

    @property
    def name(self) -> str:
        """How messages, variables and config files call it: the field, without its unit."""
        return self.about.name or self.field.removesuffix(self.about.unit.value)

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

    def parse(self, text: str, source: str) -> object:
        """The value of a text, of a flag or a variable. Raises ConfigError that names the `source`."""
        if self.about.read is not None:
            return self.about.read(text, source)
        if self.about.unit is Unit.BYTES:
            return parse_bytes(text, source)
        if self.kind in (str, Path):
            return self.kind(text)
        if self.kind is bool and text.lower() in _YES + _NO:
            return text.lower() in _YES
        if self.kind is int and re.fullmatch(rf"[+-]?[0-9]{{1,{_DIGITS_MAX}}}", text):
            return int(text)
        if self.kind is float:
            try:
                return float(text)
            except ValueError:
                pass
        raise ConfigError(f"{source} is {shown(text)}; allowed: {_IN_WORDS[self.kind]}")

    def take(self, given: object, source: str, on_or_off: str = "True or False") -> object:
        """A value of a config file or of a program, in the field's own type; its bounds are for `check`.

        Raises ConfigError that names the `source`. What `read` reads is text still. `on_or_off` is how these
        are written there.
        """
        if self.about.unit is Unit.BYTES and isinstance(given, str):
            return parse_bytes(given, source)
        if self.kind is bool and isinstance(given, bool):
            return given
        if self.kind is int and is_number(given, whole=True):
            return int(cast(int, given))
        if self.kind is float and is_number(given):
            return float(cast(float, given))
        if self.kind in (str, Path) and isinstance(given, str | Path):
            return self.kind(given)
        told = "something else" if self.about.secret else shown(given)
        allowed = on_or_off if self.kind is bool else _IN_WORDS[self.kind]
        if self.about.unit is Unit.BYTES:
            allowed = "a size such as 2GiB, or bytes"
        raise ConfigError(f"{source} is {told}; allowed: {allowed}")

    def check(self, value: object, name: str) -> None:
        """Raise ConfigError, under that name, for a value out of the bounds."""
        about = self.about
        if isinstance(value, tuple):
            for each in value:
                self.check(each, name)
            return
        if about.choices:
            allowed = ((None,) if self.is_optional else ()) + about.choices
            if value not in allowed:
                raise ConfigError(f"{name} is {shown(value)}; allowed: {', '.join(map(str, allowed))}")
        if about.low is None or about.high is None or value is None:
            return
        if not isinstance(value, int | float):
            raise ConfigError(f"{name} is {shown(value)}; allowed: {_IN_WORDS[self.kind]}")
        if not about.low <= value <= about.high:
            raise ConfigError(f"{name} is {shown(value)}; allowed: {about.low:,} to {about.high:,}")

    def in_words(self, value: object) -> str:
        """A value for people: "16", "20 GiB", "off"; for None "a quarter of what is available"."""
        if self.about.secret and value:
            return "not told"
        if value is None or value == ():
            return self.about.default or "none"
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.about.unit is Unit.BYTES and isinstance(value, int):
            return format_bytes(value).removesuffix(" B").replace(".0 ", " ")
        return f"{value:g}" if isinstance(value, float) else str(value)


def setting(default: T, about: About) -> T:
    """A field that is a setting."""
    return dataclasses.field(default=default, metadata={_KEY: about})


def gone(default: T, about: Gone) -> T:
    """A field that was a setting."""
    return dataclasses.field(default=default, metadata={_KEY: about})


@cache
def settings_of(cls: type[DataclassInstance]) -> tuple[Described, ...]:
    """The settings among the fields of a dataclass, in their order."""
    fields = [(field, field.metadata.get(_KEY)) for field in dataclasses.fields(cls)]
    return tuple(_described(field, about) for field, about in fields if isinstance(about, About))


@cache
def gone_of(cls: type[DataclassInstance]) -> Mapping[str, Gone]:
    """What were settings among its fields, by the names that their flags had."""
    fields = [(field.name, field.metadata.get(_KEY)) for field in dataclasses.fields(cls)]
    return {name.removesuffix(about.unit.value): about for name, about in fields if isinstance(about, Gone)}


def check(options: DataclassInstance) -> None:
    """Raise ConfigError for the first setting that is out of its bounds, called by its name."""
    for each in settings_of(type(options)):
        each.check(getattr(options, each.field), each.name)


def _described(field: dataclasses.Field[object], about: About) -> Described:
    words = re.findall(r"\w+", str(field.type))  # "tuple[str, ...]", "int | None"
    found = [_KINDS[word] for word in words if word in _KINDS] or [str]
    assert about.read is not None or len(found) == 1, f"{field.name} has no type of a setting"
    return Described(field.name, about, found[0], "tuple" in words, "None" in words, field.default)
