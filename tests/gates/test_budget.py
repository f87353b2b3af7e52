"""Lines: each room of the package has a maximum, and so has the whole. A change that needs more says so here.

python -m tests.gates.test_budget     the table, with the difference to the maxima
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src/octavo"
TOP = "(top)"  # modules in no room
# Of Python, blank lines included.
MAX_LINES = {
    TOP: 3_147,
    "api": 2_334,
    "bench": 4_666,
    "cli": 6_623,
    "cluster": 3_415,
    "conversations": 1_804,
    "device": 8_103,
    "dynamo": 574,
    "engine": 4_370,
    "executor": 2_980,
    "inspect": 1_086,
    "kernels": 2_845,
    "kv_events": 841,
    "memory": 2_119,
    "model": 7_844,
    "retention": 2_621,
    "routing": 989,
    "sampling": 2_155,
    "scheduler": 5_470,
    "server": 13_872,
    "serving": 2_333,
    "sim": 877,
    "speculation": 473,
    "step": 856,
    "text": 3_706,
    "tools": 2_568,
}
MAX_TOTAL = sum(MAX_LINES.values())


def lines_by_room(package: Path = PACKAGE) -> dict[str, int]:
    """Lines of Python, by the folder under the package."""
    lines = dict.fromkeys(MAX_LINES, 0)
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else TOP
        lines[room] = lines.get(room, 0) + len(path.read_text().splitlines())
    return lines


def table(lines: dict[str, int], *, changed_only: bool = False) -> str:
    """A row for each room, and one for all: lines, maximum, difference."""
    rows = [(room, lines[room], MAX_LINES.get(room, 0)) for room in sorted(lines)]
    rows.append(("all", sum(lines.values()), MAX_TOTAL))
    shown = [row for row in rows if row[1] != row[2] or not changed_only]
    return "\n".join(f"{room:14} {count:7,} of {most:7,} {count - most:+6,}" for room, count, most in shown)


def test_no_room_has_more_lines_than_its_maximum() -> None:
    lines = lines_by_room()
    over = [room for room, count in lines.items() if count > MAX_LINES.get(room, 0)]
    assert over == [], f"lines of src/octavo by room:\n{table(lines, changed_only=True)}"


def test_the_table_shows_what_differs(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "a.py").write_text("a\nb\n")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "b.py").write_text("a\n")
    lines = lines_by_room(tmp_path)
    assert lines["api"] == 2
    assert lines["new"] == 1
    assert "new                  1 of       0     +1" in table(lines, changed_only=True)


if __name__ == "__main__":
    print(table(lines_by_room()))
