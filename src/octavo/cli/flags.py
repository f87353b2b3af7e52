"""Flags from dataclasses of settings, and the values of settings from flags, variables and a config file.

    @app.command()
    @with_settings
    def chat(model: opt.Model, *, engine: Annotated[StartOptions, Only("weights", "kv")] = DEFAULTS) -> None:

A setting has the value of the first of these that names it:

    --kv int8                  a flag
    OCTAVO_KV=int8             an environment variable
    kv = "int8"                a key of the file that --config names
    DEFAULTS                   the command's defaults, also for settings without a flag

Without `Only` a command has flags for all settings of the dataclass. A parameter of type `ResolvedFlags`
receives the given settings and their sources. Only the dataclasses of `TABLES` have variables, keys and
`--config`. A variable gives one value of a repeatable setting. A variable that is set and empty is refused:
it could mean the default or "no".

    model = "smollm2-135m"          # if the command line names none
    [engine]                        # StartOptions
    kv_memory = "2GiB"              # the flag's name, with underscores
    [server]                        # ServerSettings
    api_key = ["one", "two"]        # a list for a repeatable flag

Unknown tables and keys are refused, with similar names; values of the wrong type, too. Bounds are checked
when the values are resolved. All commands share one file: a command ignores keys that it has no flag for.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast, get_args

import typer

from octavo.config import StartOptions
from octavo.errors import ConfigError, shown
from octavo.files import read_named_file
from octavo.server.settings import ServerSettings
from octavo.setting import Setting, removed_settings_of, settings_of, suggestions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TABLES: Mapping[str, type[DataclassInstance]] = {"engine": StartOptions, "server": ServerSettings}
CONFIG, CONFIG_VARIABLE = "config", "OCTAVO_CONFIG"
_BYTES_MAX = 1 << 20
_ITEMS_MAX = 1024
_PREFIX = "OCTAVO_"  # of all variables
# Variables that commands, kernels and the build read.
_READ_ELSEWHERE = {CONFIG_VARIABLE, "OCTAVO_CACHE", "OCTAVO_URL", "OCTAVO_ISA", "OCTAVO_ISAS"}
# Kubernetes sets the first two for a service named octavo or octavo-something; `bench/compare` sets the last.
_SET_BY_OTHERS = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_|$)|^OCTAVO_PEER")
_OFF = "no_"  # prefix of the parameter that turns a boolean field off
_CHOICES_CHARS_MAX = 16  # longer lists of choices are in the flag's help, not its metavar
_METAVARS = {"bytes": "SIZE", "s": "SECONDS", "days": "DAYS"}
_METAVARS |= {"int": "N", "float": "NUMBER", "str": "TEXT", "Path": "FILE"}
_option = partial(typer.Option, show_default=False)
Options = TypeVar("Options", bound="DataclassInstance")
Given = tuple[object, str]  # a value or its text, and its source
Flag = bool | str | Sequence[str] | None  # as typed; None: not typed


class Only:
    """Restricts a command's flags to these fields of a dataclass."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """A setting that was given, and its source."""

    setting: Setting
    value: object
    source: str  # "--max-seqs", "OCTAVO_MAX_SEQS" or "octavo.toml, [engine] max_seqs"


@dataclass(frozen=True, slots=True)
class ResolvedFlags:
    """A command's model and settings with their sources, in addition to the parameters' values."""

    model: str | None  # from the config file
    origins: tuple[SettingOrigin, ...]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A config file: the values of settings and their places, by name."""

    model: str | None = None
    given: Mapping[str, Given] = dataclasses.field(default_factory=dict)


NO_FILE = ConfigFile()


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command in the form that typer reads: with a parameter for each flag."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups = {name: group for name, each in parameters.items() if (group := _group_of(each)) is not None}
    has_table = any(_has_table(default) for default, _ in groups.values())
    removed = [each for default, _ in groups.values() for each in removed_settings_of(type(default)).values()]
    resolved = next((name for name, each in parameters.items() if each.annotation is ResolvedFlags), None)

    @wraps(command)
    def run(**given: object) -> None:  # typer passes each flag by its field
        for each in removed:
            if given.pop(each.field) is not None:
                raise each.refusal(each.flag)
            if has_table and each.variable in os.environ:
                raise each.refusal(each.variable)
        for sentence in unknown_env_vars(os.environ) if has_table else ():
            typer.echo(f"octavo: {sentence}", err=True)
        path = given.pop(CONFIG, None)
        config = read_config(Path(path)) if isinstance(path, str) else NO_FILE
        origins: list[SettingOrigin] = []
        for name, (default, settings) in groups.items():
            flags = {each.field: _pop_flag(each, given) for each in settings}
            given[name], of_group = resolve(default, flags, config)
            origins += of_group
        if resolved is not None:
            given[resolved] = ResolvedFlags(config.model, tuple(origins))
        command(**given)

    shown = [each for name, each in parameters.items() if name not in {resolved, *groups}]
    shown += [_config_flag()] if has_table else []
    for default, settings in groups.values():
        shown += [flag for each in settings for flag in _flags(each, getattr(default, each.field))]
    shown += [_parameter(each.field, str | None, _option(each.flag, hidden=True)) for each in removed]
    shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # `inspect` reads it
    return run


def parameters_of(cls: type[DataclassInstance]) -> set[str]:
    """The names, in typer's context, of all parameters for the settings of a dataclass."""
    fields = [setting.field for setting in settings_of(cls)]
    return {CONFIG, *fields, *(_OFF + field for field in fields)}


def resolve(
    default: Options,
    flags: Mapping[str, Flag],
    config: ConfigFile = NO_FILE,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Options, list[SettingOrigin]]:
    """`default` with the given settings, and their sources. `flags` has the settings that can be given, by
    field. If the dataclass has no table, only flags count. Raises ConfigError."""
    origins = []
    for setting in settings_of(type(default)):
        found: Given | None = None
        typed = flags.get(setting.field)
        if typed not in (None, [], ()):
            found = typed, setting.off if typed is False else setting.flag
        elif setting.field in flags and _has_table(default):
            found = _read_variable(setting, environment) or config.given.get(setting.name)
        if found is not None:
            given, source = found
            value = setting.parse(given, source)
            value = value if isinstance(value, tuple) or not setting.is_many else (value,)
            setting.check(value, source)
            origins.append(SettingOrigin(setting, value, source))
    return dataclasses.replace(default, **{each.setting.field: each.value for each in origins}), origins


def unknown_env_vars(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable with our prefix that Octavo does not read."""
    known = {each.variable for cls in TABLES.values() for each in settings_of(cls)} | _READ_ELSEWHERE
    for name in sorted(environment):
        if not name.startswith(_PREFIX) or name in known or _SET_BY_OTHERS.search(name):
            continue
        found = difflib.get_close_matches(name[len(_PREFIX) :], [each[len(_PREFIX) :] for each in known], 1)
        meant = f"; did you mean {_PREFIX}{found[0]}?" if found else ""
        yield f"{name} is set, but octavo does not use it{meant} (docs/settings.md lists the variables)"


def read_config(path: Path) -> ConfigFile:
    """A file's settings. Raises ConfigError for an unreadable file, and for unknown names and wrong types."""
    tables = _parse_toml(path)
    model = tables.pop("model", None)
    if not isinstance(model, str | None) or model == "":
        raise ConfigError(f"{path}, model is {shown(model)}; allowed: a model, as for octavo serve")
    given: dict[str, Given] = {}
    for table, values in tables.items():
        if table not in TABLES:
            allowed = ", ".join(f"[{each}]" for each in TABLES)
            hint = suggestions(table, TABLES)
            raise ConfigError(f"{path}: there is no table {table!r:.80}{hint}; allowed: model, {allowed}")
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {table} is {shown(values)}; allowed: a table, [{table}]")
        for name, value in values.items():
            source = f"{path}, [{table}] {name}"
            setting = _find_setting(path, table, name, source)
            items = value if isinstance(value, list) else [value]
            if setting.is_many and len(items) > _ITEMS_MAX:
                raise ConfigError(f"{source} has {len(items):,} items; allowed: up to {_ITEMS_MAX:,}")
            given[name] = setting.take(items if setting.is_many else value, source), source
    return ConfigFile(model, given)


def _parse_toml(path: Path) -> dict[str, object]:
    data = read_named_file(path, _BYTES_MAX, "--config names another")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; allowed: TOML (docs/settings.md)") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not TOML: {str(error)[:200]} (docs/settings.md has an example)"
        ) from None


def _find_setting(path: Path, table: str, name: str, source: str) -> Setting:
    """The setting of a table's key. Raises ConfigError if there is none."""
    removed = removed_settings_of(TABLES[table])
    if name in removed:
        raise removed[name].refusal(source)
    known = {key: {each.name: each for each in settings_of(cls)} for key, cls in TABLES.items()}
    if name in known[table]:
        return known[table][name]
    elsewhere = next((f"; it belongs in [{key}]" for key, names in known.items() if name in names), None)
    hint = elsewhere or f"{suggestions(name, known[table])}; docs/settings.md lists all"
    raise ConfigError(f"{path}: there is no setting {name!r:.80} in [{table}]{hint}")


def _group_of(parameter: inspect.Parameter) -> tuple[DataclassInstance, tuple[Setting, ...]] | None:
    """The defaults and the settings of a parameter; None: it is a plain parameter of typer."""
    hint, *rest = get_args(parameter.annotation) or [parameter.annotation]  # those of Annotated
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint) and settings_of(hint)):
        return None
    settings = {each.field: each for each in settings_of(hint)}
    only = next((each.fields for each in rest if isinstance(each, Only)), tuple(settings))
    assert settings.keys() >= set(only), f"{parameter.name} names a field that is not a setting: {only}"
    default = hint() if parameter.default is parameter.empty else parameter.default
    return default, tuple(each for field, each in settings.items() if field in only)


def _has_table(default: DataclassInstance) -> bool:
    return isinstance(default, tuple(TABLES.values()))


def _pop_flag(setting: Setting, given: dict[str, object]) -> Flag:
    is_off = given.pop(_OFF + setting.field, None)
    typed = cast(Flag, given.pop(setting.field))
    return False if is_off else typed


def _read_variable(setting: Setting, environment: Mapping[str, str]) -> Given | None:
    variable = setting.variable
    text = environment.get(variable)
    # Kubernetes sets OCTAVO_PORT=tcp://10.0.0.1:8000 for a service named octavo.
    if text is None or (setting.name == "port" and text.startswith("tcp://")):
        return None
    if not text and setting.read is None:
        raise ConfigError(f"{variable} is set, and empty; allowed: a value, or an unset variable")
    return text, variable


def _flags(setting: Setting, default: object) -> Iterator[inspect.Parameter]:
    """Typer's parameters for a setting; a value is text, or None if the flag is not typed. A boolean has two,
    and --help shows the one that changes the default."""
    option = partial(_option, rich_help_panel=setting.group)
    sentence, choices = setting.help, tuple(map(str, setting.choices))
    if setting.kind is bool:
        off = f"Do not {sentence[0].lower()}{sentence[1:]}"
        yield _parameter(
            setting.field, bool | None, option(setting.flag, help=sentence, hidden=bool(default))
        )
        yield _parameter(_OFF + setting.field, bool | None, option(setting.off, help=off, hidden=not default))
        return

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    all_choices = "|".join(choices)
    metavar = setting.metavar or (all_choices if len(all_choices) <= _CHOICES_CHARS_MAX else "KIND")
    if choices and metavar != all_choices and not all(choice in sentence for choice in choices):
        sentence += f" One of {', '.join(choices)}."
    if not setting.is_many:
        sentence += f" Default: {setting.in_words(default)}."
    flag = option(
        *filter(None, (setting.flag, setting.short)),
        help=sentence,
        metavar=metavar or _METAVARS[setting.unit or setting.kind.__name__],
        autocompletion=complete if choices else None,
    )
    yield _parameter(setting.field, list[str] | None if setting.is_many else str | None, flag)


def _config_flag() -> inspect.Parameter:
    words = "Settings in TOML. Flags, and OCTAVO_<NAME> in the environment, override it."
    flag = _option("--config", metavar="FILE", envvar=CONFIG_VARIABLE, show_envvar=False, help=words)
    return _parameter(CONFIG, str | None, flag)


def _parameter(name: str, kind: object, option: object) -> inspect.Parameter:
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword_only, default=None, annotation=Annotated[kind, option])
