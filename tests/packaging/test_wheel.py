"""What `make wheel` has left in dist/: its contents, and a server from it where there is no compiler.

Run by `make test-wheel`; without a dist/ each test is skipped, and says so. OCTAVO_TEST_PYTHONS names the
interpreters (command names, with spaces between them) that install the wheels.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.processes import running

import octavo._native

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
SIZE_MAX = 12 << 20
ROOMS = {"src", "csrc", "CMakeLists.txt", "pyproject.toml", ".gitignore", "PKG-INFO"}
ROOMS |= {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
PYTHONS = os.environ.get("OCTAVO_TEST_PYTHONS", "python3").split()


def wheels() -> list[Path]:
    found = sorted(DIST.glob("octavo-*.whl"))
    if not found:
        pytest.skip("there is no wheel in dist/: make wheel")
    return found


def source() -> list[str]:
    found = sorted(DIST.glob("octavo-*.tar.gz"))
    if not found:
        pytest.skip("there is no source distribution in dist/: make wheel")
    with tarfile.open(found[0]) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


def test_the_source_has_what_a_build_needs_and_no_more() -> None:
    names = source()
    for needed in ("CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "PKG-INFO"):
        assert needed in names
    assert sum(name.startswith("csrc/kernels/") for name in names) > 30
    assert {name.partition("/")[0] for name in names} <= ROOMS
    assert [name for name in names if name.endswith(".so")] == []


def test_a_wheel_has_the_package_and_no_more() -> None:
    for wheel in wheels():
        assert wheel.stat().st_size < SIZE_MAX
        names = zipfile.ZipFile(wheel).namelist()
        assert {name.partition("/")[0] for name in names} <= {
            "octavo",
            "octavo.libs",
            f"octavo-{octavo.__version__}.dist-info",
        }
        native = [name for name in names if name.endswith(".so") and name.startswith("octavo/")]
        assert len(native) == 1, native
        for needed in ("octavo/py.typed", "octavo/_native.pyi", "octavo/server/ui/index.html"):
            assert needed in names
        found = (path for kind in ("py", "jinja", "toml") for path in (ROOT / "src").rglob(f"*.{kind}"))
        in_package = {path.relative_to(ROOT / "src").as_posix() for path in found}
        assert in_package <= set(names)


def test_wheels_are_of_an_old_enough_system_and_of_the_stable_interface() -> None:
    for wheel in wheels():
        _, _, python, abi, platform = wheel.stem.split("-")
        assert (python, abi) in {("cp311", "cp311"), ("cp312", "abi3")}
        newest = max(int(found) for found in re.findall(r"manylinux_2_(\d+)_x86_64", platform))
        assert newest <= 34


@contextmanager
def served(octavo_command: Path, environment: dict[str, str], log: Path) -> Iterator[str]:
    command = [octavo_command, "serve", "--port", "0", "--kv-memory", "256MiB"]
    with log.open("w") as told, running(command, env=environment, stdout=None, stderr=told) as server:
        while (found := re.search(r" serves \S+ at (http://\S+)/v1", log.read_text())) is None:
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        yield found[1]
        server.terminate()
        assert server.wait(60) == 0


@pytest.mark.parametrize("python", PYTHONS)
def test_a_wheel_serves_where_there_is_no_compiler(python: str, tmp_path: Path) -> None:
    if shutil.which(python) is None:
        pytest.skip(f"{python} is not on this machine")
    made = subprocess.run([python, "-m", "venv", tmp_path / "venv"], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"{python} makes no virtual environment: {(made.stdout + made.stderr)[-200:]}")
    cache = os.environ.get("OCTAVO_CACHE") or str(Path("~/.cache/octavo").expanduser())
    environment = {"PATH": str(tmp_path / "venv" / "bin"), "HOME": str(tmp_path), "OCTAVO_CACHE": cache}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    for compiler in ("c++", "g++", "gcc", "cc", "clang", "cmake", "ninja"):
        assert shutil.which(compiler, path=environment["PATH"]) is None
    wheels()
    pip = [tmp_path / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    # By name, so that pip takes the wheel that is made for this interpreter.
    install = [*pip, "--find-links", str(DIST), f"octavo=={octavo.__version__}"]
    subprocess.run(install, env=environment, check=True)
    probe = "import octavo._native as native; print(*native.simd_probe()['usable'])"
    usable = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", probe], capture_output=True, text=True
    )
    assert usable.stdout.split() == octavo._native.simd_probe()["usable"], usable.stderr
    with served(tmp_path / "venv" / "bin" / "octavo", environment, tmp_path / "log") as url:
        body = {"messages": [{"role": "user", "content": "How many days are in a week?"}], "max_tokens": 8}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
    assert answer["usage"]["completion_tokens"] == 8
