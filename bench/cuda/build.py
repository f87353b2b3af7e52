"""Checks the machine, builds Octavo on it without a network, and runs the kernels. The first script to run.

    python bench/cuda/build.py [--wheels FOLDER] [--no-build] [--no-kernels]

    checks      Python, torch, CUDA, Triton (a kernel is compiled and started), compilers, the web stack
    builds      with wheels: `pip install --no-index`; else the native module alone, by cmake and nanobind,
                into src/octavo, where PYTHONPATH=src finds it
    kernels     kernels_on_device.py

Missing parts are printed, and the rest continues. The tests in tests/device/triton cannot run on a GPU: their
tensors are on the CPU, and their conftest sets TRITON_INTERPRET. `kernels_on_device.py` replaces them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("numpy", "torch", "triton")  # enough for the probes of kernels
ENGINE = ("tokenizers", "llguidance", "huggingface_hub", "jinja2", "httpx2", "rich", "octavo._native")
WEB = ("starlette", "pydantic", "uvicorn", "prometheus_client", "typer")
OTHERS = ("transformers", "pytest", "nanobind", "scikit_build_core", "psutil")
LAUNCHED = """
import torch, triton
from octavo.device.triton.elementwise import scale
x = torch.ones((3, 100), device="cuda")
scale(x, x, 2.5)
print(float(x.sum()))
"""


def emit(what: str, **values: object) -> None:
    """Print a line of results."""
    print(json.dumps({"probe": "build", "what": what, **values}), flush=True)


def run(command: list[str], timeout_s: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command, and capture its output."""
    print(f"[build] {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=ROOT,
            env={**os.environ, **variables},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def check_imports() -> list[str]:
    """The packages whose import fails in this process."""
    missing = []
    for group, names in {"kernels": KERNELS, "engine": ENGINE, "web": WEB, "others": OTHERS}.items():
        found, lost = {}, {}
        for name in names:
            try:
                module = importlib.import_module(name)
                found[name] = str(getattr(module, "__version__", "there"))
            except Exception as error:  # noqa: BLE001 - a broken package raises anything
                lost[name] = f"{type(error).__name__}: {error}"[:120]
        emit("imports", group=group, found=found, missing=lost)
        missing += list(lost)
    return missing


def check_tools() -> None:
    """Print the compilers and their versions."""
    for name in ("c++", "g++", "gcc", "clang++", "cmake", "ninja", "nvcc", "ptxas", "nvidia-smi", "make"):
        path = shutil.which(name)
        said = "" if path is None else run([path, "--version"], 20).stdout.strip().partition("\n")[0]
        emit("tool", name=name, path=path, version=said)
    header = Path(sysconfig.get_path("include")) / "Python.h"  # Triton builds its launcher with it
    emit("tool", name="Python.h", path=str(header) if header.exists() else None, version="")


def check_device() -> bool:
    """Whether a kernel can be started on the device; exits if there is no device."""
    import torch

    from octavo.device.devices import find_cuda_obstacle, words_of

    obstacle = find_cuda_obstacle()
    if obstacle is not None:
        raise SystemExit(f"build: no CUDA device: {obstacle}; to try the script: --device cpu --tiny")
    device = torch.device("cuda", 0)
    free, total = torch.cuda.mem_get_info(device)
    emit(
        "machine",
        device=words_of(device),
        capability=torch.cuda.get_device_capability(device),
        free_gb=round(free / 1e9, 1),
        total_gb=round(total / 1e9, 1),
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cores=os.cpu_count(),
    )
    started = time.perf_counter()
    made = run([sys.executable, "-c", LAUNCHED], 180)
    ok = made.stdout.strip() == "750.0"
    seconds = round(time.perf_counter() - started, 1)
    emit("first kernel", ok=ok, seconds=seconds, error="" if ok else made.stderr[-600:])
    return ok


def install(wheels: Path | None, target: Path, timeout_s: float) -> bool:
    """Install Octavo with its native module. Returns whether it can be imported."""
    if wheels is not None and any(wheels.glob("*.whl")):
        pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(wheels)]
        own = sorted(wheels.glob("octavo-*.whl"))
        what = [str(own[-1])] if own else ["--no-build-isolation", "."]
        if not own:
            run([*pip, "scikit-build-core", "nanobind", "cmake", "ninja"], 120)
        made = run([*pip, *what], timeout_s)
        if made.returncode:  # the web stack may be missing: the engine needs less
            others = sorted(str(wheel) for wheel in wheels.glob("*.whl") if wheel not in own)
            made = run([*pip, "--no-deps", *others, *what], timeout_s)
        error = made.stderr[-800:] if made.returncode else ""
        emit("install", way="pip", ok=not error, error=error)
        if made.returncode == 0:
            copy_module(target)
            return True
    lacking = [name for name in ("cmake", "c++") if shutil.which(name) is None]
    if importlib.util.find_spec("nanobind") is None:
        lacking.append("nanobind")
    if lacking:
        emit("install", way="cmake", ok=False, error=f"missing: {', '.join(lacking)}; carry wheels of them")
        return False
    folder = ROOT / "build" / f"cuda-{sysconfig.get_config_var('SOABI')}"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    python = f"-DPython_EXECUTABLE={sys.executable}"
    steps = [
        ["cmake", "-S", ".", "-B", str(folder), *generator, "-DCMAKE_BUILD_TYPE=Release", python],
        ["cmake", "--build", str(folder), "-j", str(os.cpu_count() or 2)],
    ]
    for step in steps:
        made = run(step, timeout_s)
        if made.returncode:
            emit("install", way="cmake", ok=False, error=(made.stdout + made.stderr)[-800:])
            return False
    [module] = folder.glob("_native*.so")
    shutil.copy(module, target / module.name)
    emit("install", way="cmake", ok=True, error="", module=str(target / module.name))
    return True


def copy_module(target: Path) -> None:
    """Copy the installed module into the sources, since PYTHONPATH=src comes first."""
    code = "import octavo._native as n; print(n.__file__)"
    made = run([sys.executable, "-P", "-c", code], 60, PYTHONPATH="")
    path = Path(made.stdout.strip())
    if made.returncode == 0 and path.is_file():
        shutil.copy(path, target / path.name)


def main() -> None:
    """Check, build, check again, kernels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--wheels", type=Path, help="folder of wheels")
    parser.add_argument("--target", type=Path, default=ROOT / "src" / "octavo", help="where the module goes")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--no-kernels", action="store_true")
    given = parser.parse_args()
    is_cpu = given.device == "cpu"
    if is_cpu and not given.tiny:
        raise SystemExit("build: --device cpu interprets kernels, so it needs --tiny")
    ok = True if is_cpu else check_device()
    check_tools()
    missing = check_imports()
    if "octavo._native" in missing and not given.no_build:
        ok &= install(given.wheels, given.target, 420)
        code = "import octavo._native, octavo.serving.start, octavo.device.open_backend"
        made = run([sys.executable, "-c", code], 60)
        emit("engine", ok=made.returncode == 0, error=made.stderr[-600:] if made.returncode else "")
        ok &= made.returncode == 0
    if not given.no_kernels:
        mode = ["--device", given.device, *(["--tiny"] if given.tiny else [])]
        script = [sys.executable, str(Path(__file__).with_name("kernels_on_device.py")), *mode]
        sys.stdout.flush()
        ok &= subprocess.run(script, cwd=ROOT, check=False).returncode == 0
    emit("summary", ok=ok, missing=missing)
    raise SystemExit(0 if ok else 1)


if __name__ == "__main__":
    main()
