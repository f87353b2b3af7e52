"""The goldens: the exchanges of all families as text, a file for each family.

    python -m tests.wire.record --why "what changes for clients, and why"

rewrites them, with a row in CHANGES.md that names what has changed. A test demands that the last row has
the digest of the files, so no golden changes without a row that a reviewer reads.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import hashlib
import itertools
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.wire.exchange import Scenario, run_scenario
from tests.wire.scenarios import FAMILIES
from tests.wire.servers import ServerThread

FOLDER = Path(__file__).parent
GOLDENS, CHANGES = FOLDER / "goldens", FOLDER / "CHANGES.md"
_TITLE = "### "
_NAMED_MAX = 8  # exchanges in a row
_LINES_MAX, _LINE_CHARS_MAX, _BEFORE_CHARS = 20, 240, 60  # of a difference


def record(scenario: Scenario, servers: ServerThread) -> dict[str, str]:
    """The exchanges of a scenario as they are now, by name."""
    with servers.serve(scenario.kind) as served:
        return run_scenario(scenario, served)


def read_goldens(family: str) -> dict[str, str]:
    """The exchanges of a family as they were recorded, by name; none where there is no file."""
    path = GOLDENS / f"{family}.txt"
    if not path.exists():
        return {}
    parts = re.split(rf"^{_TITLE}(.*)\n", path.read_text(), flags=re.MULTILINE)
    return {name: text.removesuffix("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def write_goldens(family: str, exchanges: Mapping[str, str]) -> None:
    """All of a family."""
    GOLDENS.mkdir(exist_ok=True)
    text = "".join(f"{_TITLE}{name}\n{text}\n" for name, text in exchanges.items())
    (GOLDENS / f"{family}.txt").write_text(text)


def difference(before: str, now: str) -> str:
    """What differs between two texts of an exchange, in few and short lines; "" for nothing."""
    lines = difflib.unified_diff(before.split("\n"), now.split("\n"), "golden", "now", lineterm="", n=1)
    shown = [
        line if len(line) <= _LINE_CHARS_MAX else line[:_LINE_CHARS_MAX] + " ..." for line in _near(lines)
    ]
    more = [f"... and {len(shown) - _LINES_MAX} lines more"] if len(shown) > _LINES_MAX else []
    return "\n".join([*shown[:_LINES_MAX], *more])


def _near(lines: Iterable[str]) -> list[str]:
    """The lines of a diff; of two long ones that are alike at first, what follows that."""
    found = list(lines)
    for place, (old, new) in enumerate(itertools.pairwise(found)):
        if old[:1] == "-" and new[:1] == "+" and len(old) > _LINE_CHARS_MAX:
            pairs = zip(old[1:], new[1:], strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            cut = max(0, same - _BEFORE_CHARS)
            found[place : place + 2] = [f"- ...{old[1 + cut :]}", f"+ ...{new[1 + cut :]}"]
    return found


def digest() -> str:
    """Of all goldens: it stands in the last row of CHANGES.md."""
    whole = hashlib.sha256()
    for path in sorted(GOLDENS.glob("*.txt")):
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def digest_in_table() -> str:
    """As the last row of CHANGES.md has it."""
    rows = [line for line in CHANGES.read_text().splitlines() if line.startswith("| 2")]
    return rows[-1].split("|")[4].strip() if rows else ""


def add_row(changed: list[str], why: str) -> None:
    """A row of CHANGES.md for the goldens as they are now."""
    named = ", ".join(changed[:_NAMED_MAX])
    more = f" and {len(changed) - _NAMED_MAX} more" if len(changed) > _NAMED_MAX else ""
    today = datetime.date.today().isoformat()
    why = " ".join(why.split()).replace("|", "/")
    with CHANGES.open("a") as table:
        table.write(f"| {today} | {named}{more} | {why} | {digest()} |\n")


def main() -> int:
    """Record all, and write what has changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.record", description=__doc__)
    parser.add_argument("--why", default="", help="what changes for clients, and why")
    why = parser.parse_args().why.strip()
    with tempfile.TemporaryDirectory() as folder:
        servers = ServerThread(Path(folder))
        try:
            now = {
                family: {
                    name: text for scenario in scenarios for name, text in record(scenario, servers).items()
                }
                for family, scenarios in FAMILIES.items()
            }
        finally:
            servers.close()
    changed = list[str]()
    for family, exchanges in now.items():
        before = read_goldens(family)
        names = [*exchanges, *(name for name in before if name not in exchanges)]
        for name in names:
            if shown := difference(before.get(name, ""), exchanges.get(name, "")):
                print(f"{name}\n{shown}\n")
                changed.append(name)
    if changed and not why:
        print(
            f"{len(changed)} exchanges differ; nothing was written: give --why, for the row in {CHANGES.name}"
        )
        return 1
    for family, exchanges in now.items():
        write_goldens(family, exchanges)
    if digest() != digest_in_table():
        add_row(changed or ["their order"], why or "the order of exchanges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
