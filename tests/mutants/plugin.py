"""The pytest plugin of the kill matrix, `-p tests.mutants.plugin`. The environment says what it does:

KILL_MATRIX_RECORD=DIR   record the lines that each test runs: one JSON file for each test file that is done
KILL_MATRIX_SELECT=FILE  run these tests, in this order, until one fails: FILE.result says which
KILL_MATRIX_PLANT=NAME   run with a planted bug
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections import defaultdict
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from coverage import Coverage
from hypothesis import Phase, settings

import octavo

ROOT = Path(__file__).parents[2]
PACKAGE = Path(octavo.__file__).parent
RECORDED_ROOMS = ("memory", "step", "scheduler", "retention", "executor", "inspect")
BYTES_MAX = 8 << 30  # of private memory: an endless loop may not take the machine's


def file_of(test: str) -> str:
    """The test file of a test."""
    return test.partition("::")[0]


def record_path(folder: Path, test_file: str) -> Path:
    """Where the record of a test file is, which goes by the file's content too."""
    path = ROOT / test_file
    content = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.exists() else "gone"
    return folder / f"{test_file.replace('/', '.')}.{content}.json"


@dataclass(slots=True)
class _Recorded:
    """One test."""

    fixtures: list[str]
    seconds: float = 0.0
    has_passed: bool = True
    lines: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by file: bit n is line n


class Recorder:
    """Traces the rooms with `coverage`, one context for each test. What a fixture of a module runs has a
    context of its own, and counts for each test of the module that uses the fixture."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tests: dict[str, _Recorded] = {}
        self._coverage: Coverage | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        if self._coverage is None:
            include = [f"{PACKAGE}/{room}/*" for room in RECORDED_ROOMS]
            self._coverage = Coverage(data_file=None, include=include, config_file=False, messages=False)
            self._coverage.start()
        self._tests[item.nodeid] = _Recorded(getattr(item, "fixturenames", []))
        self._coverage.switch_context(item.nodeid)
        result = yield
        self._coverage.switch_context("")
        if nextitem is None or file_of(nextitem.nodeid) != file_of(item.nodeid):
            self._save(file_of(item.nodeid), self._coverage)
            self._tests, self._coverage = {}, None
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function" or self._coverage is None:
            return (yield)
        self._coverage.switch_context(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self._coverage.switch_context(next(reversed(self._tests)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self._tests:  # not so in the controller of xdist
            self._tests[report.nodeid].seconds += report.duration
            self._tests[report.nodeid].has_passed &= report.passed

    def _save(self, test_file: str, coverage: Coverage) -> None:
        coverage.stop()
        users = {name: [test] for name, test in self._tests.items()}
        for test in self._tests.values():
            for name in test.fixtures:
                users.setdefault(f"fixture {name}", []).append(test)
        data = coverage.get_data()
        for path in data.measured_files():
            name = str(Path(path).relative_to(PACKAGE))
            for line, contexts in data.contexts_by_lineno(path).items():
                for test in (test for context in contexts for test in users.get(context, ())):
                    test.lines[name] |= 1 << line
        passed = {name: test for name, test in self._tests.items() if test.has_passed}
        record = [(name, round(test.seconds, 3), test.lines) for name, test in passed.items()]
        record_path(self._folder, test_file).write_text(json.dumps(record))


class Selector:
    """Runs the chosen tests, and ends the process at the first failure. A test's limit is ten seconds, or
    five times what it took when it was recorded."""

    def __init__(self, path: Path) -> None:
        chosen: list[tuple[str, float]] = json.loads(path.read_text())
        self._rank = {test: rank for rank, (test, _) in enumerate(chosen)}
        self._limits_s = {test: max(10.0, 5 * seconds) for test, seconds in chosen}
        self._result = path.with_suffix(".result")
        settings.register_profile("no shrinking", phases=(Phase.explicit, Phase.generate))
        settings.load_profile("no shrinking")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._rank]
        items.sort(key=lambda item: self._rank[item.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(self._limits_s[item.nodeid]), append=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            timed_out = "from pytest-timeout" in report.longreprtext
            self._end("killed by a time limit" if timed_out else "killed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._end("killed at import", report.nodeid)

    def _end(self, verdict: str, test: str) -> None:
        self._result.write_text(json.dumps((verdict, test)))
        os._exit(1)


def pytest_configure(config: pytest.Config) -> None:
    """Before anything of a test is imported: a name that it imports is the broken one."""
    expected = os.environ.get("KILL_MATRIX_PACKAGE", str(PACKAGE))
    assert str(PACKAGE) == expected, f"Octavo is imported from {PACKAGE}: an editable installation"
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES_MAX, BYTES_MAX))
    if path := os.environ.get("KILL_MATRIX_RECORD"):
        config.pluginmanager.register(Recorder(Path(path)))
    if path := os.environ.get("KILL_MATRIX_SELECT"):
        config.pluginmanager.register(Selector(Path(path)))
    if name := os.environ.get("KILL_MATRIX_PLANT"):
        from tests.simulator.planted import BUGS

        planted = ExitStack()
        planted.enter_context(next(bug for bug in BUGS if bug.name == name).planted())
        config.add_cleanup(planted.close)
