"""A seed draws small edits that compile; a killed mutant and a survivor get different verdicts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mutants.mutating import ROOMS, Mutant, draw, find
from tests.mutants.plugin import PACKAGE, ROOT
from tests.mutants.running import Records, Tree

TOY = b'''"""A docstring: 1 < 2."""

def largest(a: int, b: int = 7) -> int:
    """At most 3 words."""
    assert a < 100, "never 5"
    if a is None or b == 3:
        raise ValueError(f"{a + 1} is not 4")
    for _ in range(10):
        if not a:
            continue
    return max(a, b)
'''


@pytest.fixture(scope="module")
def drawn() -> list[Mutant]:
    return draw(PACKAGE, 7, 100)


def test_a_seed_draws_the_same_mutants_again(drawn: list[Mutant]) -> None:
    assert drawn == draw(PACKAGE, 7, 100)
    assert len({mutant.name for mutant in drawn}) == 100
    assert {mutant.path.partition("/")[0] for mutant in drawn} == set(ROOMS)


def test_each_mutant_compiles_and_differs_in_one_place(drawn: list[Mutant]) -> None:
    for mutant in drawn:
        source = (PACKAGE / mutant.path).read_bytes()
        mutated = mutant.applied(source)
        compile(mutated, mutant.path, "exec")
        assert mutated != source
        assert mutated.startswith(source[: mutant.start])
        assert mutated.endswith(source[mutant.stop :])


def test_only_what_a_test_could_notice_is_mutated() -> None:
    edits = [mutant.name.split(":", 3) for place in find("toy.py", TOY) for mutant in place]
    assert [(int(line), edit) for _, line, _, edit in edits] == [
        (3, "7->8"),
        (3, "7->6"),
        (6, "or->and"),
        (6, "is->is not"),
        (6, "==->!="),
        (6, "3->4"),
        (6, "3->2"),
        (8, "10->11"),
        (8, "10->9"),
        (9, "not a->a"),
        (10, "continue->break"),
        (11, "max(a, b)->None"),
        (11, "max->min"),
    ]


TOY_TEST = """
from octavo.step.timers import TimerKind, Timers

def test_of_two_the_due_one_is_popped():
    timers = Timers()
    timers.set(TimerKind.PIN, (1, ""), at=2.0)
    timers.set(TimerKind.PIN, (2, ""), at=4.0)
    assert timers.pop_due(2.0) == [(TimerKind.PIN, (1, ""))]

def test_without_any_none_is_due():
    assert Timers().next_time() is None
"""
TIMERS = "step/timers.py"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of this checkout: only such a test has a name with its file in it."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as name:
        yield Path(name)


def test_verdicts_are_killed_survived_and_not_reached(folder: Path) -> None:
    test_file = folder / "test_toy.py"
    test_file.write_text(TOY_TEST)
    source = (PACKAGE / TIMERS).read_bytes()
    mutants = [mutant for place in find(TIMERS, source) for mutant in place]
    tree, records = Tree(folder / "tree"), folder / "records"
    records.mkdir()
    assert tree.run_pytest([str(test_file)], 60, RECORD=str(records)) == 0
    verdicts = []
    for ending in (":<=-><", ":min->max", ":self._set.pop((due, key), None)->pass"):
        mutant = next(mutant for mutant in mutants if mutant.name.endswith(ending))
        tests = Records(records).reaching(mutant.path, mutant.first_line, mutant.last_line)
        with tree.mutated(mutant):
            verdicts.append(tree.judge(tests, 60)[0])
    assert verdicts == ["killed", "survived", "survived, not reached"]
    assert (tree.folder / "octavo" / TIMERS).read_bytes() == source
