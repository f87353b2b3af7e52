"""The backend of an engine: `--backend` and `--device`, resolved once at start, and reported in one line.

    auto     a CUDA device if the driver, torch and Triton are all there; else native, with the reason
    native, reference       the processor
    torch    a device by name; auto takes a CUDA device, or torch's own "cpu"

Only `octavo.device` imports torch, and only when this module has a reason to look at a device: a machine
without a driver never pays for it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import HOST_KV_KINDS, StartOptions
from octavo.engine.available import available_memory
from octavo.errors import ConfigError
from octavo.executor.backend import Backend, HostBackend
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps

if TYPE_CHECKING:
    from octavo.device.kernel_times import DeviceTime

_PACKAGES = ("torch", "triton")  # of the extra
EXTRA = "pip install 'octavo[cuda]'"
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # Linux; Linux under Windows


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend, and the reason for it."""

    backend: Backend
    reason: str


def choose_backend(options: StartOptions) -> BackendChoice:
    """The backend for these options. Raises ConfigError if it is not available."""
    if options.backend == "reference":
        return BackendChoice(_host(options), "asked for; the specification in NumPy, slow")
    if options.backend == "torch" or options.device.startswith("cuda"):
        return _device(options)
    if options.backend == "native" or options.device == "cpu":
        return BackendChoice(_host(options), "asked for")
    obstacle = _find_obstacle()
    if obstacle is None:
        return _device(options)
    return BackendChoice(_host(options), f"no GPU is used: {obstacle}")


def expects_device(options: StartOptions) -> bool:
    """Whether a GPU will be used, as far as known without torch."""
    if options.device == "cpu" or options.backend in ("native", "reference"):
        return False
    return any(driver.exists() for driver in _DRIVERS) and not _missing()


def find_missing_devices(options: StartOptions) -> list[str]:
    """Devices that the ranks of a model need and cannot use, with reasons."""
    count, first = options.tensor_parallel_size, int(options.device.partition(":")[2] or 0)
    if options.device == "cpu":
        return [] if _missing(("torch",)) is None else [f"torch is not installed; {EXTRA}"]
    if (obstacle := _find_obstacle()) is not None:
        return [f"cuda:{first} to cuda:{first + count - 1}: {obstacle}"]
    from octavo.device.devices import find_cuda_obstacle, num_cuda_devices

    here = num_cuda_devices()
    missing = [f"cuda:{i}: there are {here} here" for i in range(max(first, here), first + count)]
    others = [(i, find_cuda_obstacle(i)) for i in range(first, min(first + count, here))]
    return missing + [f"cuda:{i}: {obstacle}" for i, obstacle in others if obstacle is not None]


def time_device_kernels(name: str) -> Iterator[DeviceTime]:
    """The time of each kernel on a GPU ("cuda", "cuda:1"). Raises ConfigError if it is not usable."""
    if missing := _missing():
        raise ConfigError(f"--device {name} needs {missing}, which is not installed; {EXTRA}")
    from octavo.device.open_backend import time_kernels

    return time_kernels(name)


def _host(options: StartOptions) -> HostBackend:
    if options.tensor_parallel_size > 1:
        raise ConfigError(
            f"tensor_parallel_size is {options.tensor_parallel_size}, and no GPU is used here (octavo doctor "
            "says why); allowed: 1; --backend torch --device cpu takes several, slow and for tests"
        )
    if options.attention == "flash":
        raise ConfigError(
            "attention is flash, and no GPU is used here (octavo doctor says why); allowed: triton"
        )
    if options.kv not in HOST_KV_KINDS:
        raise ConfigError(
            f"kv is {options.kv}, which the processor's kernels do not know; allowed: "
            f"{', '.join(HOST_KV_KINDS)}, or --backend torch"
        )
    ops = ReferenceOps(options.weights) if options.backend == "reference" else NativeOps(options.weights)
    name = "reference" if options.backend == "reference" else "native"
    return HostBackend(name, ops, available_memory)


def _device(options: StartOptions) -> BackendChoice:
    obstacle = _find_obstacle() if options.device == "auto" else None
    name = options.device if options.device != "auto" else "cuda" if obstacle is None else "cpu"
    if missing := _missing(("torch",) if name == "cpu" else _PACKAGES):
        raise ConfigError(f"--backend torch needs {missing}, which is not installed; {EXTRA}")
    from octavo.device.open_backend import open_backend, open_ranks

    how = (options.threads, available_memory)
    backend: Backend
    if options.tensor_parallel_size > 1:
        ranks = (options.tensor_parallel_size, options.rank_timeout_s)
        backend = open_ranks(name, options.weights, *how, *ranks)
    else:
        backend = open_backend(name, options.weights, options.attention, *how)
    if name == "cpu":
        why = "asked for" if obstacle is None else f"no GPU is used: {obstacle}"
        return BackendChoice(backend, f"{why}; op after op, slow, and for tests")
    return BackendChoice(backend, "asked for" if options.backend == "torch" else "a GPU is here")


def _find_obstacle() -> str | None:
    """Why no CUDA device is usable; None: one is."""
    if not any(driver.exists() for driver in _DRIVERS):
        return f"this machine has no NVIDIA driver ({_DRIVERS[0]} does not exist)"
    if missing := _missing():
        return f"{missing} is not installed; {EXTRA}"
    from octavo.device.devices import find_cuda_obstacle

    return find_cuda_obstacle()


def _missing(packages: Sequence[str] = _PACKAGES) -> str | None:
    """One of these packages that is not installed."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            return name
    return None
