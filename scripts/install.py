"""Installs Octavo from this clone into the virtual environment that runs it: `make serve`, `make test`.

    install.py [--isas SETS] [--model NAME]    Octavo, and a model
    install.py --extra NAME                    the packages of an extra, without Octavo itself

Two lanes run in parallel, since one waits for the processor and the other for the network:

    lane 1   fetch build tools     ->  compile kernels  ->  build a wheel
    lane 2   fetch Python packages ->  fetch the model
    then     install the wheel

The tools have their own folder, because two pips must not write to the same one. It is kept, so that a later
build compiles only changed files. The output of programs goes to build/log, and is shown if a program fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOGS, WHEELS = ROOT / "build" / "log", ROOT / "build" / "wheels"
TOOLS = Path(sys.prefix) / "build-tools"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
# Python compiles modules at their first import. pip would take seconds to compile all of them.
PIP_INSTALL = [*PIP, "install", "--no-compile"]
REPORT_EVERY_S = 10.0
CMAKE_MIN = (3, 19)
COMPILED = re.compile(r"\[(\d+)/(\d+)\]")  # ninja's progress


running: list[subprocess.Popen[bytes]] = []


class Failed(Exception):
    """A program failed; the text is its output."""


@dataclass
class Progress:
    """Progress on standard error: each change at once, and the state of all lanes every ten seconds."""

    started: float = field(default_factory=time.monotonic)
    now: dict[str, Callable[[], str]] = field(default_factory=dict)  # the state of each lane
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, text: str) -> None:
        """Print a line with the time since the start."""
        with self.lock:
            print(f"{time.monotonic() - self.started:4.0f} s  {text}", file=sys.stderr, flush=True)

    def report_lanes(self) -> None:
        """Print the state of all lanes."""
        states = [text() for text in list(self.now.values())]
        if states:
            self.report("; ".join(states))


def run(name: str, command: Sequence[str | Path], changed: Mapping[str, str] | None = None) -> None:
    """Run a program with its output in a log. Raises Failed."""
    log, words = LOGS / f"{name}.log", list(map(str, command))
    env = {**os.environ, **(changed or {})}
    with log.open("wb") as output:
        # In its own process group, so that all its children can be killed with it.
        program = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=ROOT, process_group=0
        )
        running.append(program)
        status = program.wait()
    if status > 0:
        raise Failed(
            f"{log.read_text(errors='replace')[-8000:]}\n{name}: failed; the whole output is in {log}"
        )
    if status < 0:
        raise Failed(f"{name}: killed by signal {-status}")


def end_all() -> None:
    """Kill the programs that still run, with their children."""
    for program in running:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGTERM)


def check_machine() -> None:
    """Exit with a message if the machine lacks a compiler or headers."""
    missing = {}
    if shutil.which("c++") is None and "CXX" not in os.environ:
        missing["g++"] = "a C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing["python{}.{}-dev".format(*sys.version_info)] = "Python's headers (Python.h)"
    if missing:
        needed = f"needs {' and '.join(missing.values())}; on Debian: apt-get install {' '.join(missing)}"
        sys.exit(f"Octavo is compiled on this machine, and {needed}")


def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def missing_tools() -> list[str]:
    """CMake and Ninja, as requirements, if the machine has no suitable ones."""
    wanted = []
    cmake = shutil.which("cmake")
    if cmake is None or version_of(cmake) < CMAKE_MIN:
        wanted.append("cmake>=3.19")
    if shutil.which("ninja") is None:
        wanted.append("ninja")
    return wanted


def version_of(program: str) -> tuple[int, ...]:
    """(3, 25) for "cmake version 3.25.1"."""
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    except OSError:  # such as a script whose interpreter is missing
        return (0,)
    found = re.search(r"(\d+)\.(\d+)", output)
    return tuple(map(int, found.groups())) if found else (0,)


def describe_compilation() -> str:
    """ "kernels: 7 of 30 files are compiled"."""
    log = LOGS / "kernels.log"
    counts = COMPILED.findall(log.read_text(errors="replace")) if log.is_file() else []
    return (
        f"kernels: {counts[-1][0]} of {counts[-1][1]} files are compiled"
        if counts
        else "kernels: configuring"
    )


def compile_kernels(progress: Progress, isas: str) -> None:
    """Lane 1: build a wheel in build/wheels."""
    progress.now["kernels"] = lambda: "kernels: fetching build tools"
    shutil.rmtree(WHEELS, ignore_errors=True)  # first: an old wheel must not be installed after a failure
    wanted = [*project()["build-system"]["requires"], *missing_tools()]
    listed = TOOLS / "wanted.txt"
    if not listed.is_file() or listed.read_text() != "\n".join(wanted):
        shutil.rmtree(TOOLS, ignore_errors=True)
        run("tools", [*PIP_INSTALL, "--target", TOOLS, *wanted])
        listed.write_text("\n".join(wanted))
    progress.now["kernels"] = describe_compilation
    paths = {"PYTHONPATH": str(TOOLS), "PATH": f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command: list[str | Path] = [
        *PIP,
        "wheel",
        "-v",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        WHEELS,
        ROOT,
    ]
    run("kernels", command, {**paths, "OCTAVO_ISAS": isas})
    del progress.now["kernels"]
    progress.report("kernels: compiled")


def fetch(progress: Progress, model: str | None) -> None:
    """Lane 2: fetch the required packages, and a model (an empty name: the default one)."""
    progress.now["packages"] = lambda: "packages: fetching"
    run("packages", [*PIP_INSTALL, *project()["project"]["dependencies"]])
    del progress.now["packages"]
    progress.report("packages: installed")
    if model is None:
        return
    progress.now["model"] = lambda: "model: fetching"
    pull = [sys.executable, "-m", "octavo", "models", "pull", *([model] if model else [])]
    run("model", pull, {"PYTHONPATH": str(ROOT / "src")})
    del progress.now["model"]
    progress.report("model: fetched")


def fetch_extra(progress: Progress, extra: str) -> None:
    """Fetch the required packages and those of an extra. An installed Octavo stays unchanged."""
    progress.now["packages"] = lambda: f"packages for {extra}: fetching"
    wanted = project()["project"]
    run("packages", [*PIP_INSTALL, *wanted["dependencies"], *wanted["optional-dependencies"][extra]])
    del progress.now["packages"]
    progress.report(f"packages for {extra}: installed")


def run_lanes(progress: Progress, lanes: Sequence[Callable[[], None]]) -> None:
    """Run lanes in parallel until all end or one fails. Raises the first failure."""
    failures: list[BaseException] = []  # any exception: a crashed lane must not look like a finished one

    def run_lane(lane: Callable[[], None]) -> None:
        try:
            lane()
        except BaseException as failed:  # noqa: BLE001 (raised again by `run_lanes`)
            failures.append(failed)

    threads = [threading.Thread(target=run_lane, args=(lane,), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    reported_at = time.monotonic()
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(0.2)
            if time.monotonic() - reported_at >= REPORT_EVERY_S:
                progress.report_lanes()
                reported_at = time.monotonic()
    if failures:
        raise failures[0]


def install(progress: Progress, isas: str, model: str | None) -> None:
    """Run both lanes, then install the wheel. Raises Failed."""
    kernels = "for this processor" if isas == "native" else f"for instruction sets: {isas}"
    others = "packages and the model" if model is not None else "packages"
    progress.report(f"compiling kernels {kernels}, fetching {others}")
    run_lanes(progress, [lambda: compile_kernels(progress, isas), lambda: fetch(progress, model)])
    (wheel,) = WHEELS.glob("octavo-*.whl")
    run("install", [*PIP_INSTALL, "--no-deps", "--force-reinstall", wheel])
    progress.report("Octavo is installed")


def main() -> None:
    """Install, or exit with status 1 and the error."""
    parser = argparse.ArgumentParser(description="Install Octavo from this clone.")
    parser.add_argument(
        "--isas", default="all", help="instruction sets to compile kernels for: all, native, ..."
    )
    parser.add_argument("--model", help="a model to fetch; an empty name is the default one")
    parser.add_argument(
        "--extra",
        choices=project()["project"]["optional-dependencies"],
        help="install its packages, not Octavo",
    )
    given = parser.parse_args()
    if given.extra is None:
        check_machine()
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in LOGS.glob("*.log"):
        old.unlink()
    for number in (signal.SIGTERM, signal.SIGHUP):  # otherwise started programs would keep running
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    progress = Progress()
    try:
        if given.extra is None:
            install(progress, given.isas, given.model)
        else:
            run_lanes(progress, [lambda: fetch_extra(progress, given.extra)])
    except Failed as failed:
        sys.exit(str(failed))
    except OSError as error:
        sys.exit(f"octavo cannot be installed: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")
    finally:
        end_all()


if __name__ == "__main__":
    main()
