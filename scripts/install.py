"""Installs Octavo from this clone into the virtual environment that runs it: `make serve`, `make test`.

    install.py [--isas SETS] [--model NAME]    Octavo; and a model
    install.py --extra NAME                    the packages of an extra, for what needs no kernels

It goes two ways at once:

    lane 1   the build's tools   ->  kernels are compiled  ->  a wheel
    lane 2   Python packages     ->  the model
    then     the wheel is installed

One waits for the processor, the other for the network. Tools have a folder of their own, because two pips may
not write to one; it stays, so that a later build compiles only what changed.
What programs print goes to build/log, and is shown of a program that failed.
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
# Python compiles a module when it is first imported. Most never are, and pip takes seconds to compile all.
PIP_INSTALL = [*PIP, "install", "--no-compile"]
TELL_EVERY_S = 10.0
CMAKE_LEAST = (3, 19)
COMPILED = re.compile(r"\[(\d+)/(\d+)\]")  # as ninja counts


running: list[subprocess.Popen[bytes]] = []


class Failed(Exception):
    """A program ended with an error: its output."""


@dataclass
class Progress:
    """What is going on, told on standard error: each change at once, how far it is every ten seconds."""

    started: float = field(default_factory=time.monotonic)
    now: dict[str, Callable[[], str]] = field(default_factory=dict)  # by lane, what it does at present
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, text: str) -> None:
        """A line, with the time since the start."""
        with self.lock:
            print(f"{time.monotonic() - self.started:4.0f} s  {text}", file=sys.stderr, flush=True)

    def tell_all(self) -> None:
        """What all lanes do."""
        doing = [text() for text in list(self.now.values())]
        if doing:
            self.tell("; ".join(doing))


def run(name: str, command: Sequence[str | Path], changed: Mapping[str, str] | None = None) -> None:
    """Run a program with its output in a log. Raises Failed."""
    log, words = LOGS / f"{name}.log", list(map(str, command))
    env = {**os.environ, **(changed or {})}
    with log.open("wb") as output:
        # In a group of its own, so that all its children can be ended with it.
        program = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=ROOT, process_group=0
        )
        running.append(program)
        status = program.wait()
    if status > 0:
        raise Failed(
            f"{log.read_text(errors='replace')[-8000:]}\n{name}: failed; all that was said is in {log}"
        )
    if status < 0:
        raise Failed(f"{name}: ended by signal {-status}")


def end_all() -> None:
    """End what still runs, and all that it has started."""
    for program in running:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGTERM)


def check_machine() -> None:
    """End with what the machine needs to compile kernels, and has not."""
    missing = {}
    if shutil.which("c++") is None and "CXX" not in os.environ:
        missing["g++"] = "a C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing["python{}.{}-dev".format(*sys.version_info)] = "Python's headers (Python.h)"
    if missing:
        needed = f"needs {' and '.join(missing.values())}; on Debian: apt-get install {' '.join(missing)}"
        sys.exit(f"Octavo is compiled for this machine, and {needed}")


def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def missing_tools() -> list[str]:
    """CMake and Ninja, as requirements, where the machine has none that will do."""
    wanted = []
    cmake = shutil.which("cmake")
    if cmake is None or version_of(cmake) < CMAKE_LEAST:
        wanted.append("cmake>=3.19")
    if shutil.which("ninja") is None:
        wanted.append("ninja")
    return wanted


def version_of(program: str) -> tuple[int, ...]:
    """(3, 25) of "cmake version 3.25.1"."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    except OSError:  # such as a script whose interpreter is gone
        return (0,)
    found = re.search(r"(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0,)


def compiled_so_far() -> str:
    """ "kernels: 7 of 30 files are compiled"."""
    log = LOGS / "kernels.log"
    counts = COMPILED.findall(log.read_text(errors="replace")) if log.is_file() else []
    return (
        f"kernels: {counts[-1][0]} of {counts[-1][1]} files are compiled"
        if counts
        else "kernels: configuring"
    )


def compile_kernels(progress: Progress, isas: str) -> None:
    """Lane 1: a wheel in build/wheels."""
    progress.now["kernels"] = lambda: "kernels: fetching the build's tools"
    shutil.rmtree(WHEELS, ignore_errors=True)  # first: no older one may be taken for what failed to come
    wanted = [*project()["build-system"]["requires"], *missing_tools()]
    listed = TOOLS / "wanted.txt"
    if not listed.is_file() or listed.read_text() != "\n".join(wanted):
        shutil.rmtree(TOOLS, ignore_errors=True)
        run("tools", [*PIP_INSTALL, "--target", TOOLS, *wanted])
        listed.write_text("\n".join(wanted))
    progress.now["kernels"] = compiled_so_far
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
    progress.tell("kernels: compiled")


def fetch(progress: Progress, model: str | None) -> None:
    """Lane 2: the packages that Octavo needs, and a model (an empty name: the default one)."""
    progress.now["packages"] = lambda: "packages: being fetched"
    run("packages", [*PIP_INSTALL, *project()["project"]["dependencies"]])
    del progress.now["packages"]
    progress.tell("packages: installed")
    if model is None:
        return
    progress.now["model"] = lambda: "model: being fetched"
    pull = [sys.executable, "-m", "octavo", "models", "pull", *([model] if model else [])]
    run("model", pull, {"PYTHONPATH": str(ROOT / "src")})
    del progress.now["model"]
    progress.tell("model: here")


def fetch_extra(progress: Progress, extra: str) -> None:
    """The packages that Octavo needs, and those of an extra: an Octavo that is installed stays as it is."""
    progress.now["packages"] = lambda: f"packages for {extra}: being fetched"
    wanted = project()["project"]
    run("packages", [*PIP_INSTALL, *wanted["dependencies"], *wanted["optional-dependencies"][extra]])
    del progress.now["packages"]
    progress.tell(f"packages for {extra}: installed")


def both(progress: Progress, lanes: Sequence[Callable[[], None]]) -> None:
    """Run lanes at the same time, to the end. Raises what the first lane raised that failed."""
    failures: list[BaseException] = []  # whatever it was: a lane that died must not look like one that ended

    def go(lane: Callable[[], None]) -> None:
        try:
            lane()
        except BaseException as failed:  # noqa: BLE001 (raised again, below)
            failures.append(failed)

    threads = [threading.Thread(target=go, args=(lane,), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    told = time.monotonic()
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(0.2)
            if time.monotonic() - told >= TELL_EVERY_S:
                progress.tell_all()
                told = time.monotonic()
    if failures:
        raise failures[0]


def install(progress: Progress, isas: str, model: str | None) -> None:
    """Compile and fetch, and install what was compiled. Raises Failed."""
    kernels = "for this processor" if isas == "native" else f"for instruction sets: {isas}"
    others = "packages and the model" if model is not None else "packages"
    progress.tell(f"compiling kernels {kernels}; {others} are fetched meanwhile")
    both(progress, [lambda: compile_kernels(progress, isas), lambda: fetch(progress, model)])
    (wheel,) = WHEELS.glob("octavo-*.whl")
    run("install", [*PIP_INSTALL, "--no-deps", "--force-reinstall", wheel])
    progress.tell("Octavo is installed")


def main() -> None:
    """Install, or end with status 1 and what failed."""
    parser = argparse.ArgumentParser(description="Install Octavo from this clone.")
    parser.add_argument(
        "--isas", default="all", help="instruction sets to compile kernels for: all, native, ..."
    )
    parser.add_argument("--model", help="a model to fetch meanwhile; an empty name is the default one")
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
    for ending in (signal.SIGTERM, signal.SIGHUP):  # or what was started would go on without us
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    progress = Progress()
    try:
        if given.extra is None:
            install(progress, given.isas, given.model)
        else:
            both(progress, [lambda: fetch_extra(progress, given.extra)])
    except Failed as failed:
        sys.exit(str(failed))
    except OSError as error:
        sys.exit(f"octavo cannot be installed: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")
    finally:
        end_all()


if __name__ == "__main__":
    main()
