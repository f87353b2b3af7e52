"""A table that a command printed, read back: what stands under each title."""

from __future__ import annotations

import re


def rows(output: str) -> list[dict[str, str]]:
    """A row for each line below the titles; lines that begin no row of the table are read as if they did."""
    head, *lines = output.splitlines()
    begins = [(match.start(), match.group()) for match in re.finditer(r"\S+(?: \S+)*", head)]
    ends = [begin for begin, _ in begins[1:]] + [None]
    return [
        {title: line[begin:end].strip() for (begin, title), end in zip(begins, ends, strict=True)}
        for line in lines
    ]


def row(output: str) -> dict[str, str]:
    """The only one."""
    (found,) = rows(output)
    return found
