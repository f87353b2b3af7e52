"""A test waits for a condition, in `tests/waiting.py`, and never for a time."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
MAY_SAY_SO = {TESTS / "waiting.py", Path(__file__)}
# They run real programs under load, by commands of their own.
ELSEWHERE = {"attack", "clients", "endurance", "operations", "packaging", "schemas", "ui"}


def sleeps_in(source: str) -> list[int]:
    """The lines that call `time.sleep` or `asyncio.sleep`, or import one by its name; also in programs that
    the source holds as text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio"}:
            found += [node.lineno for each in node.names if each.name == "sleep"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.lineno for word in ("time", "asyncio") if f"{word}.sleep(" in node.value]
    return found


def test_no_test_of_the_default_selection_sleeps() -> None:
    paths = [
        path
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).parts[0] not in ELSEWHERE and path not in MAY_SAY_SO
    ]
    sleeping = [f"{path.relative_to(TESTS)}:{line}" for path in paths for line in sleeps_in(path.read_text())]
    assert sleeping == [], "wait for a condition: tests/waiting.py"


def test_a_sleep_is_found_however_it_is_written() -> None:
    assert sleeps_in("import time\ntime.sleep(1)") == [2]
    assert sleeps_in("async def f():\n    await asyncio.sleep(0)") == [2]
    assert sleeps_in("from time import monotonic, sleep") == [1]
    assert sleeps_in("SERVE = 'import time; time.sleep(1)'") == [1]
    assert sleeps_in("self._sleep(1)\nmock.patch('octavo.conversations.sessions.asyncio.sleep', pause)") == []
