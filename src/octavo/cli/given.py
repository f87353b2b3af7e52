"""A command's parameter that is a dataclass of settings becomes flags; flags, variables and a file fill it.

    @app.command()
    @with_settings
    def chat(model: opt.Model, *, engine: Annotated[StartOptions, Only("weights", "kv")] = PLAIN) -> None:

    --kv int8                  a flag: the first of these that says a setting decides it
    OCTAVO_KV=int8             a variable of the environment
    kv = "int8"                a key of the file that --config names
    PLAIN                      the command's own defaults, also of what has no flag

Without `Only` a command takes all settings of the dataclass. A `ResolvedFlags` is filled with what was given
and by what. Variables, keys and `--config` are for the dataclasses of `TABLES`. Of a repeatable setting a
variable gives one value; one that is set and empty is refused: whether it means nothing or "no" is unknown.

    model = "smollm2-135m"          # where the command line names none
    [engine]                        # StartOptions
    kv_memory = "2GiB"              # the flag's name, with underscores
    [server]                        # ServerSettings
    api_key = ["one", "two"]        # flags that are repeatable take a list

A table or a key that is not known is refused, with what is near it; so is a value of another type. Bounds are
checked where the values meet those of flags and variables. A key that a command has no flag for is not that
command's, and is left: one file serves all of them.
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
from octavo.setting import Setting, gone_of, near, settings_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TABLES: Mapping[str, type[DataclassInstance]] = {"engine": StartOptions, "server": ServerSettings}
CONFIG, CONFIG_VARIABLE = "config", "OCTAVO_CONFIG"
_BYTES_MAX = 1 << 20
_ITEMS_MAX = 1024
_OURS = "OCTAVO_"  # how variables all begin
# What is read elsewhere: by commands, by kernels, by the build.
_READ_ELSEWHERE = {CONFIG_VARIABLE, "OCTAVO_CACHE", "OCTAVO_URL", "OCTAVO_ISA", "OCTAVO_ISAS"}
# Kubernetes sets the first in every pod next to a service that is called octavo, or octavo-something; the
# last are those of `bench/compare`.
_OF_OTHERS = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_|$)|^OCTAVO_PEER")
_OFF = "no_"  # before the field, for the flag that turns it off
_SHORT = 16  # characters of choices that stand behind a flag; more stand in its help
_METAVARS = {"bytes": "SIZE", "s": "SECONDS", "days": "DAYS"}
_METAVARS |= {"int": "N", "float": "NUMBER", "str": "TEXT", "Path": "FILE"}
_option = partial(typer.Option, show_default=False)
Options = TypeVar("Options", bound="DataclassInstance")
Given = tuple[object, str]  # a value or its text, and by what it was given
Flag = bool | str | Sequence[str] | None  # as it was typed; None: it was not


class Only:
    """The fields of a dataclass that a command has flags for."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """A setting that was given, and by what."""

    setting: Setting
    value: object
    source: str  # "--max-seqs", "OCTAVO_MAX_SEQS" or "octavo.toml, [engine] max_seqs"


@dataclass(frozen=True, slots=True)
class ResolvedFlags:
    """What a command was given, in addition to the values of its parameters."""

    model: str | None  # that of the file that --config names
    origins: tuple[SettingOrigin, ...]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says: values and where they stand, by the names of settings."""

    model: str | None = None
    given: Mapping[str, Given] = dataclasses.field(default_factory=dict)


NO_FILE = ConfigFile()


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is to see it: with a parameter for each flag."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups = {name: group for name, each in parameters.items() if (group := _group_of(each)) is not None}
    has_table = any(_has_table(default) for default, _ in groups.values())
    gone = [each for default, _ in groups.values() for each in gone_of(type(default)).values()]
    resolved = next((name for name, each in parameters.items() if each.annotation is ResolvedFlags), None)

    @wraps(command)
    def run(**given: object) -> None:  # as typer calls it: each flag by its field
        for each in gone:
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
            flags = {each.field: _typed(each, given) for each in settings}
            given[name], of_group = resolve(default, flags, config)
            origins += of_group
        if resolved is not None:
            given[resolved] = ResolvedFlags(config.model, tuple(origins))
        command(**given)

    seen = [each for name, each in parameters.items() if name not in {resolved, *groups}]
    seen += [_config_flag()] if has_table else []
    for default, settings in groups.values():
        seen += [flag for each in settings for flag in _flags(each, getattr(default, each.field))]
    seen += [_parameter(each.field, str | None, _option(each.flag, hidden=True)) for each in gone]
    seen = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in seen]
    run.__signature__ = inspect.Signature(seen)  # type: ignore[attr-defined]  # which `inspect` looks for
    return run


def parameters_of(cls: type[DataclassInstance]) -> set[str]:
    """The names of all parameters that stand for settings of a dataclass, as typer's context has them."""
    fields = [setting.field for setting in settings_of(cls)]
    return {CONFIG, *fields, *(_OFF + field for field in fields)}


def resolve(
    default: Options,
    flags: Mapping[str, Flag],
    config: ConfigFile = NO_FILE,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Options, list[SettingOrigin]]:
    """The settings that `flags` name, by their fields, and what gave them; all others stay as in `default`.

    Raises ConfigError. Where the dataclass has no table, flags alone decide.
    """
    origins = []
    for setting in settings_of(type(default)):
        found: Given | None = None
        typed = flags.get(setting.field)
        if typed not in (None, [], ()):
            found = typed, setting.off if typed is False else setting.flag
        elif setting.field in flags and _has_table(default):
            found = _of_variable(setting, environment) or config.given.get(setting.name)
        if found is not None:
            given, source = found
            value = setting.parse(given, source)
            value = value if isinstance(value, tuple) or not setting.is_many else (value,)
            setting.check(value, source)
            origins.append(SettingOrigin(setting, value, source))
    return dataclasses.replace(default, **{each.setting.field: each.value for each in origins}), origins


def unknown_env_vars(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable that begins as ours do and that nothing here reads."""
    known = {each.variable for cls in TABLES.values() for each in settings_of(cls)} | _READ_ELSEWHERE
    for name in sorted(environment):
        if not name.startswith(_OURS) or name in known or _OF_OTHERS.search(name):
            continue
        found = difflib.get_close_matches(name[len(_OURS) :], [each[len(_OURS) :] for each in known], 1)
        meant = f"; did you mean {_OURS}{found[0]}?" if found else ""
        yield f"{name} is set, and means nothing to octavo{meant} (docs/settings.md lists what does)"


def read_config(path: Path) -> ConfigFile:
    """A file's settings. Raises ConfigError for one that cannot be read, or says what is not known."""
    tables = _parse_toml(path)
    model = tables.pop("model", None)
    if not isinstance(model, str | None) or model == "":
        raise ConfigError(f"{path}, model is {shown(model)}; allowed: a model, as for octavo serve")
    given: dict[str, Given] = {}
    for table, values in tables.items():
        if table not in TABLES:
            allowed = ", ".join(f"[{known}]" for known in TABLES)
            raise ConfigError(
                f"{path}: there is no table {table!r:.80}{near(table, TABLES)}; allowed: model, {allowed}"
            )
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {table} is {shown(values)}; allowed: a table, [{table}]")
        for name, value in values.items():
            source = f"{path}, [{table}] {name}"
            setting = _known(path, table, name, source)
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
        raise ConfigError(f"{path} is no text in UTF-8; allowed: TOML (docs/settings.md)") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no TOML: {str(error)[:200]} (docs/settings.md shows one)") from None


def _known(path: Path, table: str, name: str, source: str) -> Setting:
    """The setting of a table's key. Raises ConfigError where there is none."""
    gone = gone_of(TABLES[table])
    if name in gone:
        raise gone[name].refusal(source)
    known = {key: {each.name: each for each in settings_of(cls)} for key, cls in TABLES.items()}
    if name in known[table]:
        return known[table][name]
    elsewhere = next((f"; it stands in [{key}]" for key, names in known.items() if name in names), None)
    hint = elsewhere or f"{near(name, known[table])}; docs/settings.md lists all"
    raise ConfigError(f"{path}: there is no setting {name!r:.80} in [{table}]{hint}")


def _group_of(parameter: inspect.Parameter) -> tuple[DataclassInstance, tuple[Setting, ...]] | None:
    """The defaults and the settings that a parameter holds; None: it is one of typer's own."""
    hint, *rest = get_args(parameter.annotation) or [parameter.annotation]  # of Annotated
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint) and settings_of(hint)):
        return None
    settings = {each.field: each for each in settings_of(hint)}
    only = next((each.fields for each in rest if isinstance(each, Only)), tuple(settings))
    assert settings.keys() >= set(only), f"{parameter.name} names what is no setting: {only}"
    default = hint() if parameter.default is parameter.empty else parameter.default
    return default, tuple(each for field, each in settings.items() if field in only)


def _has_table(default: DataclassInstance) -> bool:
    return isinstance(default, tuple(TABLES.values()))


def _typed(setting: Setting, given: dict[str, object]) -> Flag:
    is_off = given.pop(_OFF + setting.field, None)
    typed = cast(Flag, given.pop(setting.field))
    return False if is_off else typed


def _of_variable(setting: Setting, environment: Mapping[str, str]) -> Given | None:
    variable = setting.variable
    text = environment.get(variable)
    # Kubernetes sets OCTAVO_PORT=tcp://10.0.0.1:8000 in every pod next to a service that is called octavo.
    if text is None or (setting.name == "port" and text.startswith("tcp://")):
        return None
    if not text and setting.read is None:
        raise ConfigError(f"{variable} is set, and empty; allowed: a value, or a variable that is not set")
    return text, variable


def _flags(setting: Setting, default: object) -> Iterator[inspect.Parameter]:
    """Parameters of typer's for a setting; their values are texts, or None where they are not typed. Of two
    that turn it on and off the one that changes the default is shown."""
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
    behind = setting.metavar or (all_choices if len(all_choices) <= _SHORT else "KIND")
    if choices and behind != all_choices and not all(choice in sentence for choice in choices):
        sentence += f" One of {', '.join(choices)}."
    if not setting.is_many:
        sentence += f" Default: {setting.in_words(default)}."
    flag = option(
        *filter(None, (setting.flag, setting.short)),
        help=sentence,
        metavar=behind or _METAVARS[setting.unit or setting.kind.__name__],
        autocompletion=complete if choices else None,
    )
    yield _parameter(setting.field, list[str] | None if setting.is_many else str | None, flag)


def _config_flag() -> inspect.Parameter:
    words = "Settings in TOML. What is set here, or as OCTAVO_<NAME> in the environment, comes before it."
    flag = _option("--config", metavar="FILE", envvar=CONFIG_VARIABLE, show_envvar=False, help=words)
    return _parameter(CONFIG, str | None, flag)


def _parameter(name: str, kind: object, option: object) -> inspect.Parameter:
    only_named = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, only_named, default=None, annotation=Annotated[kind, option])
