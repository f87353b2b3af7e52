"""`--config FILE`: settings in TOML, read and checked before anything starts.

    model = "smollm2-135m"          # where the command line names none
    [engine]                        # StartOptions
    kv_memory = "2GiB"              # the flag's name, with underscores
    [server]                        # ServerSettings
    api_key = ["one", "two"]        # flags that are repeatable take a list

A table or a key that is not known is refused, with what is near it; so is a value of another type. Bounds are
checked where the values meet those of flags and variables (`cli/given.py`). A key that a command has no flag
for is not that command's, and is left: one file serves all of them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import StartOptions
from octavo.errors import ConfigError, shown
from octavo.files import read_regular_file
from octavo.server.settings import ServerSettings
from octavo.setting import Described, gone_of, settings_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TABLES: Mapping[str, type[DataclassInstance]] = {"engine": StartOptions, "server": ServerSettings}
_BYTES_MAX = 1 << 20
_ITEMS_MAX = 1024
_ON_OR_OFF = "true or false"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says; `tables` hold values by the names of fields."""

    path: Path
    model: str | None
    tables: Mapping[str, Mapping[str, object]]

    def source(self, table: str, setting: Described) -> str:
        """Where a value of it stands, for messages."""
        return f"{self.path}, [{table}] {setting.name}"


def read_config(path: Path) -> ConfigFile:
    """A file's settings. Raises ConfigError for one that cannot be read, or says what is not known."""
    told = _parsed(path)
    model = told.pop("model", None)
    if not isinstance(model, str | None) or model == "":
        raise ConfigError(f"{path}, model is {shown(model)}; allowed: a model, as for octavo serve")
    tables = {}
    for name, table in told.items():
        if name not in TABLES:
            raise ConfigError(
                f"{path}: there is no table {name!r:.80}{_near(name, TABLES)}; allowed: model, "
                f"{', '.join(f'[{known}]' for known in TABLES)}"
            )
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} is {shown(table)}; allowed: a table, [{name}]")
        tables[name] = _table(path, name, table)
    return ConfigFile(path, model, tables)


def _parsed(path: Path) -> dict[str, object]:
    try:
        data = read_regular_file(path, _BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; --config names another") from None
    if len(data) > _BYTES_MAX:
        raise ConfigError(f"{path} is too large; allowed: up to {_BYTES_MAX:,} bytes")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8; allowed: TOML (docs/settings.md)") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no TOML: {str(error)[:200]} (docs/settings.md shows one)") from None


def _table(path: Path, table: str, given: Mapping[str, object]) -> Mapping[str, object]:
    known = {setting.name: setting for setting in settings_of(TABLES[table])}
    gone = gone_of(TABLES[table])
    found = {}
    for name, value in given.items():
        if name in gone:
            raise gone[name].refusal(f"{path}, [{table}] {name}")
        if name not in known:
            raise ConfigError(
                f"{path}: there is no setting {name!r:.80} in [{table}]{_elsewhere(name, table)}"
            )
        found[known[name].field] = _value(known[name], value, f"{path}, [{table}] {name}")
    return found


def _value(setting: Described, given: object, source: str) -> object:
    """A value, or the list of a repeatable one."""
    if not setting.is_many:
        return setting.take(given, source, _ON_OR_OFF)
    items = given if isinstance(given, list) else [given]
    if len(items) > _ITEMS_MAX:
        raise ConfigError(f"{source} has {len(items):,} items; allowed: up to {_ITEMS_MAX:,}")
    return [setting.take(item, f"{source} number {place}", _ON_OR_OFF) for place, item in enumerate(items, 1)]


def _elsewhere(name: str, table: str) -> str:
    """What may have been meant by a name that the table does not have."""
    for other, cls in TABLES.items():
        if other != table and name in {setting.name for setting in settings_of(cls)}:
            return f"; it stands in [{other}]"
    near = _near(name, [setting.name for setting in settings_of(TABLES[table])])
    return f"{near}; docs/settings.md lists all"


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 3)
    return f"; near it: {', '.join(near)}" if near else ""
