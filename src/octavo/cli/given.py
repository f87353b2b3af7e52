"""What a command was given, and by what: the first of these that says a setting decides it.

    --max-seqs 8               a flag
    OCTAVO_MAX_SEQS=8          a variable of the environment
    max_seqs = 8               a key of the file that --config names
                               the command's own default

A variable that is set and empty is refused: whether it means nothing or "no" cannot be told. Of a repeatable
setting a variable gives one value. Values become those of the dataclass here, which checks them as a whole.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from octavo.cli.config_file import ConfigFile
from octavo.errors import ConfigError
from octavo.setting import Described, settings_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CONFIG_VARIABLE = "OCTAVO_CONFIG"
_OURS = "OCTAVO_"  # how they all begin
# What is read elsewhere: by commands, by kernels, by the build.
_READ_ELSEWHERE = {CONFIG_VARIABLE, "OCTAVO_CACHE", "OCTAVO_URL", "OCTAVO_ISA", "OCTAVO_ISAS"}
# Kubernetes sets the first in every pod beside a service that is called octavo, or octavo-something; the last
# are those of `bench/compare`.
_OF_OTHERS = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_|$)|^OCTAVO_PEER")
Options = TypeVar("Options", bound="DataclassInstance")
Flag = bool | str | Sequence[str] | None  # as it was typed; None: it was not


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """A setting that was given, and by what."""

    setting: Described
    value: object
    source: str  # "--max-seqs", "OCTAVO_MAX_SEQS" or "octavo.toml, [engine] max_seqs"

    @property
    def words(self) -> str:
        """The value, for people."""
        return self.setting.in_words(self.value)


@dataclass(frozen=True, slots=True)
class Resolved(Generic[Options]):
    """Settings, checked, and what of them was given."""

    options: Options
    origins: tuple[SettingOrigin, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """What may say a setting that no flag says: a table of the file, and the environment."""

    table: str
    config: ConfigFile | None
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)


def resolve(default: Options, flags: Mapping[str, Flag], beside: Beside | None) -> Resolved[Options]:
    """The settings that `flags` name, by their fields; all others stay as in `default`. Raises ConfigError.

    `beside` None: flags alone decide.
    """
    origins: list[SettingOrigin] = []
    values: dict[str, object] = {}
    for setting in settings_of(type(default)):
        if setting.field not in flags:
            continue
        found = _of_flag(setting, flags[setting.field])
        if found is None and beside is not None:
            found = _of_variable(setting, beside.environment) or _of_file(setting, beside)
        if found is not None:
            setting.check(found.value, found.source)
            origins.append(found)
            values[setting.field] = found.value
    return Resolved(dataclasses.replace(default, **values), tuple(origins))


def strange_variables(environment: Mapping[str, str], settings: Iterable[Described]) -> Iterator[str]:
    """A sentence for each variable that begins as ours do and that nothing here reads."""
    known = {setting.variable for setting in settings} | _READ_ELSEWHERE
    for name in sorted(environment):
        if not name.startswith(_OURS) or name in known or _OF_OTHERS.search(name):
            continue
        near = difflib.get_close_matches(name[len(_OURS) :], [each[len(_OURS) :] for each in known], 1)
        meant = f"; did you mean {_OURS}{near[0]}?" if near else ""
        yield f"{name} is set, and means nothing to octavo{meant} (docs/settings.md lists what does)"


def _of_flag(setting: Described, typed: Flag) -> SettingOrigin | None:
    if typed is None or typed == [] or typed == ():
        return None
    flag = setting.flag
    if isinstance(typed, bool):
        return SettingOrigin(setting, typed, flag if typed else setting.off)
    if isinstance(typed, str):
        return SettingOrigin(setting, setting.parse(typed, flag), flag)
    values = [setting.parse(text, f"{flag} number {place}") for place, text in enumerate(typed, 1)]
    return SettingOrigin(setting, tuple(values), flag)


def _of_variable(setting: Described, environment: Mapping[str, str]) -> SettingOrigin | None:
    variable = setting.variable
    text = environment.get(variable)
    # Kubernetes sets OCTAVO_PORT=tcp://10.0.0.1:8000 in every pod beside a service that is called octavo.
    if text is None or (setting.name == "port" and text.startswith("tcp://")):
        return None
    if not text and setting.about.read is None:
        raise ConfigError(f"{variable} is set, and empty; allowed: a value, or a variable that is not set")
    value = setting.parse(text, variable)
    return SettingOrigin(setting, (value,) if setting.is_many else value, variable)


def _of_file(setting: Described, beside: Beside) -> SettingOrigin | None:
    if beside.config is None:
        return None
    table = beside.config.tables.get(beside.table, {})
    if setting.field not in table:
        return None
    source, value, read = (
        beside.config.source(beside.table, setting),
        table[setting.field],
        setting.about.read,
    )
    if setting.is_many:
        assert isinstance(value, list)
        items = [
            item if read is None else read(item, f"{source} number {place}")
            for place, item in enumerate(value, 1)
        ]
        return SettingOrigin(setting, tuple(items), source)
    return SettingOrigin(setting, value if read is None else read(str(value), source), source)
