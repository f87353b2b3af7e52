"""What the quick tests kill of the planted bugs and of seeded mutants, and what only the full tier kills.

    python -m tests.mutants                                  all parts, hours
    python -m tests.mutants record-quick --limit-minutes 10  record which lines the quick tests run
    python -m tests.mutants quick --part 2/4                 a quarter of the bugs and mutants, 30 s each
    python -m tests.mutants control                          the tests that killed one pass without any
    python -m tests.mutants record-full                      the same record of the full tier
    python -m tests.mutants full                             ten survivors that the seed draws, 5 minutes each
    python -m tests.mutants report                           each survivor and the two numbers
    python -m tests.mutants quick --again                    the survivors once more, after a test was added

Every part goes on where it stopped; the state is in build/kill-matrix, in a folder for each source tree.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import queue
import random
import re
import shlex
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType

from tests.mutants.mutating import ROOMS, Mutant, draw
from tests.mutants.plugin import PACKAGE, ROOT, file_of, record_path
from tests.mutants.running import Records, Tests, Tree, fitting
from tests.simulator.planted import BUGS
from tests.simulator.planting import PlantedBug

STAGES = ("record-quick", "quick", "control", "record-full", "full", "report")
LIMITS_S = {"quick": 30.0, "full": 300.0}
NUM_SAMPLED = 10
# Folders of the full tier that run the rooms in the test's own process.
FULL_TESTS = ("memory", "scheduler", "executor", "engine", "simulator", "sim", "inspect", "device", "real")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant, or planted bug, in one tier."""

    name: str
    tier: str
    verdict: str
    by: str  # the test that failed
    num_reaching: int
    num_chosen: int
    seconds: float

    @property
    def is_killed(self) -> bool:
        """In whatever way."""
        return self.verdict.startswith("killed")


def markers(tier: str) -> str:
    """The tier's expression for `-m`: the full tier is what the quick one leaves out with `not full`."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    words = shlex.split(options["addopts"])
    expression = words[words.index("-m") + 1]
    if tier == "quick":
        return expression
    assert "not full" in expression, f"there is no full tier: addopts has -m {expression!r}"
    return expression.replace("not full", "full")


def lines_of(bug: PlantedBug) -> tuple[str, int, int]:
    """File, first and last line of the function that a planted bug replaces."""
    original = inspect.getattr_static(bug.target, bug.attribute)
    function = original.fget if isinstance(original, property) else original
    assert isinstance(function, FunctionType), f"{bug.name}: no function"
    lines, first = inspect.getsourcelines(function)
    path = Path(function.__code__.co_filename).relative_to(PACKAGE)
    return str(path), first + 1, first + len(lines) - 1


class Matrix:
    """The bugs and mutants of one source tree and seed, and what is known of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        sources = sorted(path for room in ROOMS for path in (PACKAGE / room).glob("*.py"))
        content = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
        self._folder = ROOT / "build/kill-matrix" / content
        self._folder.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._deadline = time.monotonic() + 60 * options.limit_minutes
        self._bugs = {bug.name: bug for bug in BUGS}
        self._mutants = {mutant.name: mutant for mutant in draw(PACKAGE, options.seed, options.mutants)}
        self._names = sorted([*self._bugs, *self._mutants])
        self._results = self._folder / f"results-{options.seed}-{options.mutants}.jsonl"
        self._results.touch()
        outcomes = [Outcome(**json.loads(line)) for line in self._results.read_text().splitlines()]
        # The last one of each counts, unless the test that killed it has changed.
        self._outcomes = {(each.tier, each.name): each for each in outcomes if self._is_as_it_was(each)}

    def _is_as_it_was(self, outcome: Outcome) -> bool:
        records = self._folder / f"records-{outcome.tier}"
        return "::" not in outcome.by or record_path(records, file_of(outcome.by)).exists()

    def run(self, stage: str) -> None:
        """One part. Raises ValueError if one before it is not done."""
        if stage.startswith("record-"):
            self._record(stage.removeprefix("record-"))
        elif stage == "quick":
            part, parts = map(int, self._options.part.split("/"))
            self._try("quick", self._names[part - 1 :: parts])
        elif stage == "control":
            self._control()
        elif stage == "full":
            self._try("full", self._sample())
        else:
            self._report()

    def _record(self, tier: str) -> None:
        """The test files that have no record yet, or have changed since."""
        tree, folder = Tree(self._folder / "tree-record"), self._folder / f"records-{tier}"
        folder.mkdir(exist_ok=True)
        default = ["tests"] if tier == "quick" else [f"tests/{name}" for name in FULL_TESTS]
        selection = ["-m", markers(tier), *(self._options.tests or default)]
        tree.run_pytest(["--collect-only", *selection], 600)
        listed = (tree.folder / "output.txt").read_text()
        files = sorted(set(re.findall(r"^(tests/\S+?)::", listed, re.MULTILINE)))
        missing = [file for file in files if not record_path(folder, file).exists()]
        print(f"{tier}: {len(missing)} of {len(files)} test files to record", flush=True)
        if missing:
            arguments = ["-n", str(self._options.jobs), "--dist", "loadfile", "--timeout=300"]
            arguments += ["-m", markers(tier), *missing]
            tree.run_pytest(arguments, max(0, self._deadline - time.monotonic()), RECORD=str(folder))
        missing = [file for file in files if not record_path(folder, file).exists()]
        print(f"{tier}: {len(missing)} left {' '.join(missing[:5])}", flush=True)

    def _try(self, tier: str, names: list[str]) -> None:
        """Those that have no result yet, or survived if they are to run again."""
        records = Records(self._folder / f"records-{tier}")
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for job in range(self._options.jobs):
            trees.put(Tree(self._folder / f"tree-{job}"))

        def try_one(name: str) -> Outcome | None:
            if time.monotonic() > self._deadline:
                return None
            tree, begun = trees.get(), time.monotonic()
            mutant = self._mutants.get(name)
            reaching = self._reaching(records, name, mutant)
            chosen = fitting(reaching, LIMITS_S[tier])
            try:
                if mutant is None:
                    verdict, by = tree.judge(chosen, LIMITS_S[tier], markers(tier), PLANT=name)
                else:
                    with tree.mutated(mutant):
                        verdict, by = tree.judge(chosen, LIMITS_S[tier], markers(tier))
            finally:
                trees.put(tree)
            seconds = round(time.monotonic() - begun, 1)
            return Outcome(name, tier, verdict, by, len(reaching), len(chosen), seconds)

        known = {name: self._outcomes.get((tier, name)) for name in names}
        to_run = [n for n, o in known.items() if o is None or (self._options.again and not o.is_killed)]
        print(f"{tier}: {len(to_run)} to run", flush=True)
        with ThreadPoolExecutor(self._options.jobs) as pool, self._results.open("a") as results:
            for future in as_completed([pool.submit(try_one, name) for name in to_run]):
                if (outcome := future.result()) is not None:
                    self._outcomes[tier, outcome.name] = outcome
                    results.write(json.dumps(asdict(outcome)) + "\n")
                    results.flush()
                    print(f"{outcome.seconds:6.1f} s  {outcome.verdict:22s}  {outcome.name}", flush=True)

    def _reaching(self, records: Records, name: str, mutant: Mutant | None) -> Tests:
        if mutant is None:
            return records.reaching(*lines_of(self._bugs[name]))
        return records.reaching(mutant.path, mutant.first_line, mutant.last_line)

    def _control(self) -> None:
        """The tests that killed one, without any: the kills of one that fails are forgotten."""
        seconds = Records(self._folder / "records-quick").seconds()
        left = sorted({each.by for each in self._outcomes.values() if each.by in seconds})
        print(f"control: {len(left)} tests that killed a mutant, without any mutant", flush=True)
        tree, bad = Tree(self._folder / "tree-0"), set[str]()
        while (found := tree.judge([(test, seconds[test]) for test in left], 1800))[0] != "survived":
            print(f"control: {found[0]} {found[1]}: its kills do not count", flush=True)
            bad.add(found[1])
            left.remove(found[1])
        kept = [each for each in self._outcomes.values() if each.by not in bad]
        self._results.write_text("".join(json.dumps(asdict(each)) + "\n" for each in kept))
        self._outcomes = {(each.tier, each.name): each for each in kept}

    def _sample(self) -> list[str]:
        """Survivors of the quick tests that the seed draws: once, whatever a later test kills of them."""
        drawn = self._results.with_suffix(".sample.json")
        if not drawn.exists():
            self._require_quick()
            survivors = [name for name in self._names if not self._outcomes["quick", name].is_killed]
            sample = random.Random(self._options.seed).sample(survivors, min(NUM_SAMPLED, len(survivors)))
            drawn.write_text(json.dumps(sample))
        names: list[str] = json.loads(drawn.read_text())
        return names

    def _require_quick(self) -> None:
        unknown = [name for name in self._names if ("quick", name) not in self._outcomes]
        if unknown:
            raise ValueError(f"{len(unknown)} of {len(self._names)} have no result: run `quick` first")

    def _report(self) -> None:
        self._require_quick()
        full = [self._outcomes["full", name] for name in self._sample() if ("full", name) in self._outcomes]
        quick = [self._outcomes["quick", name] for name in self._names]
        for outcome in quick:
            if not outcome.is_killed:
                print(
                    f"{outcome.verdict}, {outcome.num_chosen} of {outcome.num_reaching} tests: {outcome.name}"
                )
        for verdict, count in sorted(Counter(outcome.verdict for outcome in quick).items()):
            print(f"{count:4d} {verdict}")
        for outcome in full:
            print(f"full tier: {outcome.verdict}: {outcome.name} {outcome.by}")
        killed = {each.name for each in quick if each.is_killed}
        more = {each.name for each in full if each.is_killed} - killed
        print(f"quick kills {len(killed)} of {len(quick)}")
        both = f"quick and full together {len(killed | more)} of {len(quick)}"
        print(f"{both}; the full tier was tried on {len(full)} survivors")


def main() -> int:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stages", nargs="*", metavar="part", help=f"of {', '.join(STAGES)}; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", default="1/1", help="of `quick`: 2/4 is the second quarter")
    parser.add_argument("--limit-minutes", type=float, default=600.0, help="begin nothing after that")
    parser.add_argument("--tests", nargs="+", help="record these folders or files only")
    parser.add_argument("--again", action="store_true", help="survivors too, though they have a result")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    matrix = Matrix(options)
    try:
        for stage in options.stages or STAGES:
            matrix.run(stage)
    except ValueError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
