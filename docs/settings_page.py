"""The tables of docs/settings.md, which docs/reference.py prints, from the definitions of the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.api.settings import VLLM_SETTINGS
from octavo.config import StartOptions
from octavo.server.settings import ServerSettings
from octavo.setting import Setting, removed_settings_of, settings_of
from octavo.units import format_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def gone() -> Iterator[tuple[str, ...]]:
    """Removed settings."""
    yield "removed setting", "what happens now"
    for name, each in removed_settings_of(StartOptions).items():
        yield f"`{name}`", each.removed


def vllm() -> Iterator[tuple[str, ...]]:
    """vLLM's settings, in Python."""
    yield "vLLM's name", "becomes", "what it does, or the alternative"
    for name, each in VLLM_SETTINGS.items():
        yield f"`{name}`", each.treatment, each.words


def _tables(cls: type[DataclassInstance], *, in_python: bool) -> Iterator[tuple[str, ...]]:
    """A table for each group, after its title."""
    settings = settings_of(cls)
    for group in dict.fromkeys(each.group for each in settings):
        yield (f"### {group}",)
        yield "setting", *(["in Python"] if in_python else []), "default", "allowed", "what it does"
        for each in (each for each in settings if each.group == group):
            names = [f"`{each.name}`", *([f"`{each.field}`"] if in_python else [])]
            sentence = each.help.removesuffix(".") + each.more
            yield *names, each.in_words(each.default), _allowed(each), sentence


def _allowed(setting: Setting) -> str:
    if setting.allowed or setting.choices:
        return setting.allowed or ", ".join(map(str, setting.choices))
    if setting.kind is bool:
        return "on, off"
    if setting.bounds is None:
        return "a file" if setting.kind is Path or setting.metavar == "FILE" else "text"
    return " to ".join(_number(setting, bound) for bound in setting.bounds)


def _number(setting: Setting, bound: float) -> str:
    if setting.is_size:
        return format_bytes(bound).replace("1024 TiB", "1 PiB").replace(".0 ", " ").replace("0 B", "0")
    return f"{bound:,}"


TABLES: Mapping[str, Callable[[], Iterator[tuple[str, ...]]]] = {
    "engine_settings": lambda: _tables(StartOptions, in_python=True),
    "server_settings": lambda: _tables(ServerSettings, in_python=False),
    "gone_settings": gone,
    "vllm_settings": vllm,
}
