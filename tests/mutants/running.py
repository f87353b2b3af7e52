"""Which tests reach a mutant, and what becomes of it when they run.

verdict                   the chosen tests
killed                    one failed
killed by a time limit    one took ten seconds, or five times as long as usual if that is more
killed at import          a test file or a conftest could not be imported
killed by a crash         the process died of a signal
survived                  all passed
survived, time spent      none had failed when the time for the mutant was over
survived, not reached     there are none: no recorded test runs the line
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutating import Mutant
from tests.mutants.plugin import PACKAGE, ROOT, file_of, record_path

# A hunt for planted bugs passes where something fails; two runs of one mutant are alike.
_NO_WITNESSES = ("planted", "test_determinism", "tests/mutants/")
_OWN_TESTS = {"memory": "tests/memory/", "executor": "tests/executor/"}  # others': tests/scheduler/
_SLOW_S = 5.0
_SLACK = 2.0  # a traced test takes about twice its time

Tests = list[tuple[str, float]]  # in the order in which they run, and their seconds


class Records:
    """What the plugin recorded of a tier."""

    def __init__(self, folder: Path) -> None:
        self._tests: list[tuple[str, float, dict[str, int]]] = []
        for path in sorted(folder.glob("*.json")):
            record = json.loads(path.read_text())
            # A test file that has changed since, or is gone, has other tests.
            if record and path == record_path(folder, file_of(record[0][0])):
                self._tests += [each for each in record if not any(word in each[0] for word in _NO_WITNESSES)]

    def seconds(self) -> dict[str, float]:
        """What each test took."""
        return {test: seconds for test, seconds, _ in self._tests}

    def reaching(self, path: str, first_line: int, last_line: int) -> Tests:
        """Tests that run one of these lines, file by file: slow files last, the room's and random lives first
        of the others, and the quickest test of a file first."""
        wanted = (1 << (last_line + 1)) - (1 << first_line)
        by_file: dict[str, Tests] = defaultdict(list)
        for test, seconds, lines in self._tests:
            if lines.get(path, 0) & wanted:
                by_file[file_of(test)].append((test, seconds))
        own = (_OWN_TESTS.get(path.partition("/")[0], "tests/scheduler/"), "tests/simulator/")

        def rank(file: str) -> tuple[bool, bool, float]:
            median = statistics.median(seconds for _, seconds in by_file[file])
            return median > _SLOW_S, not file.startswith(own), median

        files = sorted(by_file, key=rank)
        return [test for file in files for test in sorted(by_file[file], key=lambda test: test[1])]


def fitting(tests: Tests, limit_s: float) -> Tests:
    """The first of them, until the time is used up: only files of tests that could run are imported."""
    begins = itertools.accumulate((seconds for _, seconds in tests), initial=0.0)
    return [test for test, begin in zip(tests, begins, strict=False) if begin < limit_s * _SLACK]


class Tree:
    """A copy of the package, and the one place from which tests import it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._package = folder, folder / "octavo"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(PACKAGE, self._package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        for native in PACKAGE.glob("*.so"):
            (self._package / native.name).symlink_to(native)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """With the mutant in its file."""
        original = (PACKAGE / mutant.path).read_bytes()
        try:
            self._write(mutant.path, mutant.applied(original))
            yield
        finally:
            self._write(mutant.path, original)

    def _write(self, name: str, source: bytes) -> None:
        path = self._package / name
        path.write_bytes(source)
        # Bytecode goes by the time and size of its source, which an edit may leave as they were.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    def run_pytest(self, arguments: list[str], limit_s: float, **variables: str) -> int | None:
        """Its exit status, or None if the time was over. All that it started is killed afterwards. What it
        printed is in `output.txt` of the folder."""
        shutil.rmtree(self.folder / "hypothesis", ignore_errors=True)
        environment = {
            **os.environ,
            **{f"KILL_MATRIX_{name}": value for name, value in variables.items()},
            "KILL_MATRIX_PACKAGE": str(self._package),
            "PYTHONPATH": str(self.folder),
            "PYTHONHASHSEED": "0",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
        }
        options = [
            "-p",
            "tests.mutants.plugin",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            "-o",
            "addopts=",
        ]
        command = [sys.executable, "-m", "pytest", "-q", *options, f"--basetemp={self.folder / 'temporary'}"]
        with (self.folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def judge(self, tests: Tests, limit_s: float, markers: str = "", **variables: str) -> tuple[str, str]:
        """The verdict of these tests, and the one that failed. `markers`: of the tier, for `-m`."""
        if not tests:
            return "survived, not reached", ""
        selection = self.folder / "tests.json"
        selection.write_text(json.dumps(tests))
        result = selection.with_suffix(".result")
        result.unlink(missing_ok=True)
        files = dict.fromkeys(file_of(test) for test, _ in tests)
        status = self.run_pytest(["-m", markers, *files], limit_s, SELECT=str(selection), **variables)
        if result.exists():
            verdict, test = json.loads(result.read_text())
            return verdict, test
        if status in (None, 0, 5):  # 5: none of them is there any more
            return ("survived, time spent" if status is None else "survived"), ""
        last_line = (self.folder / "output.txt").read_text(errors="replace").strip().rpartition("\n")[2]
        if status < 0:
            return "killed by a crash", last_line
        if status in (1, 2):  # a conftest could not be imported, or a plugin of the tests broke
            return "killed at import", last_line
        raise RuntimeError(f"pytest ended with status {status}, which says nothing of a mutant: {last_line}")
