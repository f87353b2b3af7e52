"""The tables of docs/settings.md, printed from the definitions of the settings into the page.

    python docs/settings.py            write them
    python docs/settings.py --check    write nothing; exit status 1 where the page says something else

The page is written by hand, but for what stands between two marks:

    <!-- printed by docs/settings.py: engine -->
    | setting | ...
    <!-- end -->

It is no part of the package: whoever serves models needs no printer of pages.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.api.settings import VLLM_SETTINGS
from octavo.config import StartOptions
from octavo.server.settings import ServerSettings
from octavo.setting import Described, Unit, gone_of, settings_of
from octavo.units import format_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PAGE = Path(__file__).with_suffix(".md")
_PART = re.compile(r"(<!-- printed by docs/settings\.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def engine() -> Iterator[str]:
    """The engine's settings, a table for each group."""
    return _tables(StartOptions, in_python=True)


def server() -> Iterator[str]:
    """The server's."""
    return _tables(ServerSettings, in_python=False)


def gone() -> Iterator[str]:
    """What were settings."""
    yield from _row("was a setting", "what happens now")
    for cls in (StartOptions, ServerSettings):
        for name, about in gone_of(cls).items():
            yield from _row(f"`{name}`", about.instead)


def vllm() -> Iterator[str]:
    """vLLM's settings, in Python."""
    yield from _row("vLLM's name", "becomes", "what it does, or what there is instead")
    for each in VLLM_SETTINGS:
        yield from _row(f"`{each.name}`", each.treatment, each.words)


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "engine": engine,
    "server": server,
    "gone": gone,
    "vllm": vllm,
}


def printed(page: str) -> str:
    """The page, with its tables as the code has them now."""
    return _PART.sub(lambda part: f"{part[1]}{_text(PARTS[part[2]]())}{part[3]}", page)


def _tables(cls: type[DataclassInstance], *, in_python: bool) -> Iterator[str]:
    settings = settings_of(cls)
    for group in dict.fromkeys(each.about.group for each in settings):
        yield f"\n### {group}\n\n"
        names = ("setting", "in Python") if in_python else ("setting",)
        yield from _row(*names, "default", "allowed", "what it does")
        for each in (each for each in settings if each.about.group == group):
            own = (f"`{each.name}`", f"`{each.field}`") if in_python else (f"`{each.name}`",)
            yield from _row(*own, each.in_words(each.default), _allowed(each), _sentence(each))


def _allowed(setting: Described) -> str:
    about = setting.about
    if about.allowed:
        return about.allowed
    if about.choices:
        return ", ".join(about.choices)
    if setting.kind is bool:
        return "on, off"
    if about.low is None or about.high is None:
        return "a file" if setting.kind is Path else "text"
    bounds = (_number(setting, about.low), _number(setting, about.high))
    return " to ".join(bounds)


def _number(setting: Described, bound: float) -> str:
    if setting.about.unit is Unit.BYTES:
        return format_bytes(bound).replace("1024 TiB", "1 PiB").replace(".0 ", " ").replace("0 B", "0")
    return f"{bound:,}"


def _sentence(setting: Described) -> str:
    return (setting.about.docs or setting.about.help).removesuffix(".")


def _row(*cells: str) -> Iterator[str]:
    """A row; behind the first one of a table, which has no code in it, the line below titles."""
    yield f"| {' | '.join(cells)} |\n"
    if not cells[0].startswith("`"):
        yield f"|{' --- |' * len(cells)}\n"


def _text(lines: Iterator[str]) -> str:
    return "".join(lines)


def main() -> None:
    """Write the page, or look whether it is as it should be."""
    parser = argparse.ArgumentParser(description="Print the settings into docs/settings.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where it would change")
    is_check = parser.parse_args().check
    page = PAGE.read_text()
    text = printed(page)
    if is_check and text != page:
        sys.exit("docs/settings.md is not as the code has it; python docs/settings.py writes it")
    if not is_check:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
