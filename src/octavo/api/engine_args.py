"""Settings as a value, as vLLM's programs hand them around: `EngineArgs(model=..., ...)`, also from a command
line."""

from __future__ import annotations

import argparse
import typing
from typing import Self, Unpack

from octavo.api.settings import VLLM_SETTINGS, Settings
from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.setting import settings_of

_PLAIN = {int: int, float: float, str: str}


class EngineArgs:
    """A model and its settings. They are looked at when an engine is made of them."""

    def __init__(self, model: str | None = None, **settings: Unpack[Settings]) -> None:
        self.model = model
        self.settings = settings

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add `--model`, and an option for each setting that is a number, a text, or on or off."""
        parser.add_argument("--model")
        helps = {own.field: own.about.help for own in settings_of(StartOptions)}
        helps |= {theirs.name: theirs.words for theirs in VLLM_SETTINGS}
        for name, hint in typing.get_type_hints(Settings).items():
            kinds = set(typing.get_args(hint))
            flag, words = f"--{name.replace('_', '-')}", helps.get(name, "").replace("%", "%%")
            if bool in kinds:
                parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=words)
            elif kinds & _PLAIN.keys():
                kind = next(kind for kind in _PLAIN if kind in kinds)
                parser.add_argument(flag, type=kind, help=words)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Of what `add_cli_args` has added; what else is there is the program's own."""
        names = typing.get_type_hints(Settings)
        given = {name: value for name, value in vars(args).items() if name in names}
        model = vars(args).get("model")
        if not isinstance(model, str | None):
            raise ConfigError(f"model is {model!r:.80}; allowed: text")
        return cls(model, **typing.cast(Settings, given))


AsyncEngineArgs = EngineArgs
