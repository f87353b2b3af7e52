"""The tables of docs/settings.md, printed from the definitions of the settings into the page.

    python docs/settings.py            write them
    python docs/settings.py --check    write nothing; exit status 1 where the page says something else

The page is written by hand, but for what stands between two marks:

    <!-- printed by docs/settings.py: engine -->
    | setting | ...
    <!-- end -->

It is no part of the package: a server needs no printer of pages.
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
from octavo.setting import Setting, gone_of, settings_of
from octavo.units import format_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PAGE = Path(__file__).with_suffix(".md")
_PART = re.compile(r"(<!-- printed by docs/settings\.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def gone() -> Iterator[str]:
    """What were settings."""
    yield from _row("was a setting", "what happens now")
    for name, each in gone_of(StartOptions).items():
        yield from _row(f"`{name}`", each.gone)


def vllm() -> Iterator[str]:
    """vLLM's settings, in Python."""
    yield from _row("vLLM's name", "becomes", "what it does, or what there is instead")
    for name, each in VLLM_SETTINGS.items():
        yield from _row(f"`{name}`", each.treatment, each.words)


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "engine": lambda: _tables(StartOptions, in_python=True),
    "server": lambda: _tables(ServerSettings, in_python=False),
    "gone": gone,
    "vllm": vllm,
}


def printed(page: str) -> str:
    """The page, with its tables as the code has them now."""
    return _PART.sub(lambda part: f"{part[1]}{''.join(PARTS[part[2]]())}{part[3]}", page)


def _tables(cls: type[DataclassInstance], *, in_python: bool) -> Iterator[str]:
    settings = settings_of(cls)
    for group in dict.fromkeys(each.group for each in settings):
        yield f"\n### {group}\n\n"
        names = ("setting", "in Python") if in_python else ("setting",)
        yield from _row(*names, "default", "allowed", "what it does")
        for each in (each for each in settings if each.group == group):
            own = (f"`{each.name}`", f"`{each.field}`") if in_python else (f"`{each.name}`",)
            sentence = each.help.removesuffix(".") + each.more
            yield from _row(*own, each.in_words(each.default), _allowed(each), sentence)


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


def _row(*cells: str) -> Iterator[str]:
    """A row; behind the first one of a table, which has no code in it, the line below titles."""
    yield f"| {' | '.join(cells)} |\n"
    if not cells[0].startswith("`"):
        yield f"|{' --- |' * len(cells)}\n"


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
