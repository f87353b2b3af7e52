"""What commands share of their command line: the model, how it samples, and a few ways to read words.

The settings of an engine and of a server are none of them: `given.with_settings` makes their flags. A shell
runs the command at each tab to complete a model: nothing heavy is loaded, and no network is asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Annotated

import typer

from octavo.errors import ConfigError, OctavoError, shown
from octavo.params import SamplerParams
from octavo.setting import setting


def complete_model(incomplete: str) -> list[str]:
    """The aliases and the fetched models that a name begins with."""
    from octavo.model.hub.alias import ALIASES

    names = dict.fromkeys([*ALIASES, *complete_cached(incomplete)])
    return [name for name in names if name.startswith(incomplete)]


def complete_cached(incomplete: str) -> list[str]:
    """The fetched models that a name begins with; none where the cache cannot be read."""
    from octavo.model.hub.cache import cached_models

    with contextlib.suppress(OctavoError, OSError):
        return [model.name for model in cached_models() if model.name.startswith(incomplete)]
    return []


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Alias, .gguf file, folder, or Hugging Face id; folder:Q4_K_M and owner/name:Q4_K_M name one of "
        "several. Default: smollm2-135m.",
        show_default=False,
        autocompletion=complete_model,
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        metavar="NAME.gguf",
        help="The file to take, where MODEL is a folder or repository with several.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, and nothing else.")]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a command's tokens are drawn; `SamplerParams` checks the bounds."""

    max_tokens: int | None = setting(
        None, "Tokens to generate at most.", unset="until the model ends", group="Sampling"
    )
    temperature: float = setting(1.0, "0 takes the likeliest token.")
    top_p: float = setting(1.0, "Draw from the likeliest tokens that have this share together; 1 keeps all.")
    top_k: int = setting(0, "Draw from the k likeliest tokens; 0 keeps all.")
    seed: int | None = setting(None, "The same seed, the same text.", unset="drawn afresh")
    stop: tuple[str, ...] = setting((), "End before this text; repeatable.")

    @property
    def params(self) -> SamplerParams:
        """The same for an engine. Raises InvalidRequest."""
        return SamplerParams(**dataclasses.asdict(self))


def named(model: str | None, file: str | None) -> str | None:
    """The model, with the file that `--file` names. Raises ConfigError where it could not be one of its."""
    if file is None:
        return model
    from octavo.model.hub.paths import with_file

    return with_file(model, file)


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """ "1,8,32" as (1, 8, 32). Raises ConfigError unless all are integers from 1 to 999,999,999."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) >= 1 for part in parts):
        raise ConfigError(f"{flag} is {shown(text)}; allowed: numbers of at least 1, such as 1,8,32")
    return tuple(int(part) for part in parts)
