"""What `octavo doctor` says of weights that are kept packed on disk."""

from __future__ import annotations

import time
from pathlib import Path

from octavo.executor.disk_folder import bytes_free
from octavo.model.files.packed_file import Pack, survey
from octavo.units import format_age, format_bytes


def packed_lines(folder: Path, own: Path, is_on: bool) -> list[tuple[str, str]]:
    """The folder, this model's file in it (`own`), and what other models and settings left there."""
    found, free = survey(folder), bytes_free(folder)
    mine = [pack for pack in found if pack.path == own]
    others = [pack for pack in found if pack.path != own]
    first = "off: --packed-cache keeps the weights as they are in memory, for a quick start"
    if is_on:
        first = f"{folder}, {'an unknown size' if free is None else format_bytes(free)} free there"
    lines = [("packed weights", first)]
    if is_on or mine:
        lines.append(("  this model", pack_line(mine[0]) if mine else "nothing yet: the next start makes it"))
    lines += [("  another", pack_line(pack)) for pack in others]
    if others:
        lines.append(
            ("", "never removed by itself; each may be deleted, and is made again where it is wanted")
        )
    return lines


def pack_line(pack: Pack) -> str:
    """ "/cache/packed/3f0c...-1.packed: 4.3 GiB, last used 3 days ago"."""
    used = format_age(time.time() - pack.used_at)
    return f"{pack.path}: {format_bytes(pack.num_bytes)}, last used {used} ago"
