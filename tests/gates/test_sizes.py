"""Sizes: a file is one noun, a function fits a screen."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest

import octavo
from octavo.memory.ledger import Ledger
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.speculation.speculator import Speculation, Speculator
from octavo.step.context import SchedulerConfig

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*Path(octavo.__file__).parent.rglob("*.py"), *(ROOT / "csrc").rglob("*.[ch]pp")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_file_has_under_700_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 700


def test_a_function_has_under_70_lines() -> None:
    long = [
        f"{path.name}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in SOURCES
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 >= 70
    ]
    assert long == []


def test_a_part_of_the_scheduler_is_made_from_at_most_five_others() -> None:
    """What `Scheduler` makes and `octavo.scheduler` defines; the context counts as one."""
    speculator = Speculator(Speculation.AUTO)
    scheduler = Scheduler(Ledger(8, 4), SchedulerConfig(), lambda tenant: b"", speculator=speculator)
    parts = {type(part) for part in vars(scheduler).values()}
    counts = {
        part.__name__: len(inspect.signature(part).parameters)
        for part in parts
        if part.__module__.startswith("octavo.scheduler.")
    }
    assert {"Admission", "Reclaimer", "Planner", "Committer"} <= counts.keys()
    assert {name: count for name, count in counts.items() if count > 5} == {}


def test_a_sequence_has_at_most_30_fields() -> None:
    """A feature attaches a part (`sequence_parts.py`), and a plain request has none."""
    assert len(dataclasses.fields(Sequence)) <= 30


def test_every_module_and_public_function_says_what_it_does() -> None:
    silent = []
    for path in SOURCES:
        if path.suffix != ".py":
            continue
        tree = ast.parse(path.read_text())
        if ast.get_docstring(tree) is None:
            silent.append(str(path))
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if public and not node.name.startswith("_") and ast.get_docstring(node) is None:
                silent.append(f"{path.name}: {node.name}")
    assert silent == []


PAGE = sorted((ROOT / "src/octavo/server/ui").glob("*.js"))


@pytest.mark.parametrize("path", PAGE, ids=lambda path: path.name)
def test_the_pages_modules_are_short_and_say_what_they_do(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 700
    assert max(map(len, lines)) <= 120  # markup is wide
    assert lines[0].startswith("// ")
