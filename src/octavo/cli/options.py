"""What commands share of their command line: the model, how it samples, and a few ways to read words.

The settings of an engine and of a server are none of them: `flags.with_settings` makes their flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from octavo.cli.completion import complete_model
from octavo.params import SamplerParams
from octavo.setting import About, setting

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

SAMPLING = "Sampling"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a command's tokens are drawn; `SamplerParams` checks the bounds."""

    max_tokens: int | None = setting(
        None, About("Tokens to generate at most.", SAMPLING, default="until the model ends")
    )
    temperature: float = setting(1.0, About("0 takes the likeliest token.", SAMPLING))
    top_p: float = setting(
        1.0, About("Draw from the likeliest tokens that have this share together; 1 keeps all.", SAMPLING)
    )
    top_k: int = setting(0, About("Draw from the k likeliest tokens; 0 keeps all.", SAMPLING))
    seed: int | None = setting(None, About("The same seed, the same text.", SAMPLING, default="drawn afresh"))
    stop: tuple[str, ...] = setting((), About("End before this text; repeatable.", SAMPLING))

    @property
    def params(self) -> SamplerParams:
        """The same for an engine. Raises InvalidRequest."""
        return SamplerParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop,
        )


def named(model: str | None, file: str | None) -> str | None:
    """The model, with the file that `--file` names. Raises ConfigError where it could not be one of its."""
    if file is None:
        return model
    from octavo.model.hub.paths import with_file

    return with_file(model, file)


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """ "1,8,32" as (1, 8, 32). Raises ConfigError unless all are integers from 1 to 999,999,999."""
    from octavo.errors import ConfigError, shown

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) >= 1 for part in parts):
        raise ConfigError(f"{flag} is {shown(text)}; allowed: numbers of at least 1, such as 1,8,32")
    return tuple(int(part) for part in parts)
