"""A command's parameter that is a dataclass of settings becomes a flag for each of them.

    @app.command()
    @with_settings
    def chat(model: opt.Model, *, engine: Annotated[StartOptions, Only("weights", "kv")] = PLAIN) -> None:

    --weights, --kv --> flags, variables, the file of --config, PLAIN --> engine=StartOptions(...)

Without `Only` a command takes all settings of the dataclass. The parameter's default holds the defaults, also
of what has no flag. Two more parameters are filled here: a `Told` gets what was given and by what; `--config`
is there where a dataclass has a table in the file. Help, types, choices and completion come from `About`.

What was a flag once is still known, hidden, and refused with what happens now (`setting.Gone`).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeGuard, cast, get_args, get_origin

import typer

from octavo.cli.config_file import TABLES, read_config
from octavo.cli.given import CONFIG_VARIABLE, Beside, Flag, SettingOrigin, resolve, strange_variables
from octavo.setting import Described, Gone, Unit, gone_of, settings_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CONFIG = "config"
_OFF = "no_"  # before the field, for the flag that turns it off
_SHORT = 16  # characters of choices that stand behind a flag; more stand in its help
_TYPES = {int: "N", float: "NUMBER", str: "TEXT", Path: "FILE"}
_UNITS = {Unit.BYTES: "SIZE", Unit.SECONDS: "SECONDS", Unit.DAYS: "DAYS"}


class Only:
    """The fields of a dataclass that a command has flags for."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Told:
    """What a command was told beside the values of its parameters."""

    model: str | None  # that of the file that --config names
    origins: tuple[SettingOrigin, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """A parameter of a command that holds settings."""

    parameter: str
    default: DataclassInstance
    settings: tuple[Described, ...]

    @property
    def table(self) -> str | None:
        """Its table in a config file; None: it has none, and no variables."""
        return next((name for name, cls in TABLES.items() if isinstance(self.default, cls)), None)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is to see it: with a parameter for each flag."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups = [group for group in map(_group_of, parameters) if group is not None]
    told = next((each.name for each in parameters if each.annotation is Told), None)
    hidden = {name: gone for group in groups for name, gone in gone_of(type(group.default)).items()}
    has_table = any(group.table for group in groups)
    own = [each for each in parameters if each.name not in {told, *(group.parameter for group in groups)}]

    @functools.wraps(command)
    def run(**given: object) -> None:  # as typer calls it: each flag by its field
        for name, gone in hidden.items():
            if given.pop(name, None) is not None:
                raise gone.refusal(f"--{name.replace('_', '-')}")
        if has_table:
            _check_environment(hidden)
        path = cast("str | None", given.pop(CONFIG, None))
        config = None if path is None else read_config(Path(path))
        origins: list[SettingOrigin] = []
        for group in groups:
            flags = {each.field: _typed(each.field, given) for each in group.settings}
            beside = None if group.table is None else Beside(group.table, config)
            resolved = resolve(group.default, flags, beside)
            given[group.parameter] = resolved.options
            origins += resolved.origins
        if told is not None:
            given[told] = Told(None if config is None else config.model, tuple(origins))
        command(**given)

    flags = [_config_flag()] if has_table else []
    flags += [flag for group in groups for each in group.settings for flag in _flags(each, group.default)]
    flags += [_gone_flag(name) for name in hidden]
    shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *flags)]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # which `inspect` looks for
    return run


def parameters_of(cls: type[DataclassInstance]) -> set[str]:
    """The names of all parameters that stand for settings of a dataclass, as typer's context has them."""
    fields = [setting.field for setting in settings_of(cls)]
    return {CONFIG, *fields, *(_OFF + field for field in fields)}


def _group_of(parameter: inspect.Parameter) -> _Group | None:
    """The settings that a parameter holds; None: it is one of typer's own."""
    hint, only = parameter.annotation, None
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        only = next((each for each in rest if isinstance(each, Only)), None)
    if not _has_settings(hint):
        return None
    fields = [each.field for each in settings_of(hint)] if only is None else only.fields
    settings = tuple(each for each in settings_of(hint) if each.field in fields)
    assert len(settings) == len(fields), f"{parameter.name} names what is no setting: {fields}"
    default = hint() if parameter.default is parameter.empty else parameter.default
    return _Group(parameter.name, default, settings)


def _has_settings(hint: object) -> TypeGuard[type[DataclassInstance]]:
    return isinstance(hint, type) and hasattr(hint, "__dataclass_fields__") and bool(settings_of(hint))


def _check_environment(hidden: Mapping[str, Gone]) -> None:
    """Refuse a variable of a setting that is gone; warn of one that means nothing."""
    gone_variables = {f"OCTAVO_{name.upper()}": gone for name, gone in hidden.items()}
    for variable, gone in gone_variables.items():
        if variable in os.environ:
            raise gone.refusal(variable)
    settings = [setting for cls in TABLES.values() for setting in settings_of(cls)]
    for sentence in strange_variables(os.environ, settings):
        typer.echo(f"octavo: {sentence}", err=True)


def _typed(field: str, given: dict[str, object]) -> Flag:
    is_off = given.pop(_OFF + field, None)
    typed = cast(Flag, given.pop(field, None))
    return False if is_off else typed


def _flags(setting: Described, default: DataclassInstance) -> Iterator[inspect.Parameter]:
    """Parameters of typer's for a setting; their values are texts, or None where they are not typed."""
    value = getattr(default, setting.field)
    if setting.kind is bool:
        yield from _switches(setting, is_on=bool(value))
        return
    about, choices = setting.about, "|".join(setting.about.choices)
    behind = about.metavar or (choices if len(choices) <= _SHORT else "KIND")
    words = [about.help]
    if choices and behind != choices and not all(choice in about.help for choice in about.choices):
        words.append(f"One of {', '.join(about.choices)}.")
    if not setting.is_many:
        words.append(f"Default: {setting.in_words(value)}.")
    option = typer.Option(
        setting.flag,
        help=" ".join(words),
        metavar=behind or _UNITS.get(about.unit) or _TYPES[setting.kind],
        show_default=False,
        rich_help_panel=about.group,
        autocompletion=_completion(about.choices) if choices else None,
    )
    yield _parameter(setting.field, list[str] | None if setting.is_many else str | None, option)


def _switches(setting: Described, *, is_on: bool) -> Iterator[inspect.Parameter]:
    """The flag that turns it on and the one that turns it off; shown is the one that changes the default."""
    sentence, group = setting.about.help, setting.about.group
    off_words = f"Do not {sentence[0].lower()}{sentence[1:]}"
    on = typer.Option(setting.flag, help=sentence, hidden=is_on, show_default=False, rich_help_panel=group)
    off = typer.Option(
        setting.off, help=off_words, hidden=not is_on, show_default=False, rich_help_panel=group
    )
    yield _parameter(setting.field, bool | None, on)
    yield _parameter(_OFF + setting.field, bool | None, off)


def _completion(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _config_flag() -> inspect.Parameter:
    option = typer.Option(
        "--config",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        show_envvar=False,
        help="Settings in TOML. What is set here, or as OCTAVO_<NAME> in the environment, comes before it.",
        show_default=False,
    )
    return _parameter(CONFIG, str | None, option)


def _gone_flag(name: str) -> inspect.Parameter:
    return _parameter(name, str | None, typer.Option(f"--{name.replace('_', '-')}", hidden=True))


def _parameter(name: str, kind: object, option: object) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )
