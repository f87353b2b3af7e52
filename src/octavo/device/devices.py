"""Which devices torch can use here, and why not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from octavo.errors import ConfigError
from octavo.kernels.contract import Bytes

_LEAST_CAPABILITY = (8, 0)  # bfloat16 in tensor cores


def check_capability(name: str) -> torch.device:
    """The device of that name. Raises ConfigError if it cannot be used."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    index = device.index or 0
    obstacle, allowed = find_cuda_obstacle(index), "cpu"
    if obstacle is None and index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        obstacle, allowed = (
            f"there are {count} here",
            ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))]),
        )
    if obstacle is not None:
        raise ConfigError(f"device is {name}, which cannot be used: {obstacle}; allowed here: {allowed}")
    return torch.device("cuda", index)


def find_cuda_obstacle(index: int = 0) -> str | None:
    """Why torch cannot use a CUDA device; None if it can, or if there is no device of that index."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    if index < torch.cuda.device_count():
        major, minor = torch.cuda.get_device_capability(index)
        if (major, minor) < _LEAST_CAPABILITY:
            return (
                f"the compute capability of cuda:{index} is {major}.{minor}; the kernels need 8.0 (Ampere) "
                "or newer"
            )
    return None


def num_cuda_devices() -> int:
    """The number of CUDA devices that torch sees."""
    return torch.cuda.device_count()


def current(device: torch.device) -> AbstractContextManager[object]:
    """A context in which launches, events and captures of this thread go to the device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def words_of(device: torch.device) -> str:
    """ "cuda:0 (NVIDIA H100 80GB HBM3)"."""
    if device.type != "cuda":
        return f"torch's {device.type}"
    return f"{device} ({torch.cuda.get_device_name(device)})"


def sees_host_memory(memory: Bytes, device: torch.device) -> bool:
    """Whether kernels on a CUDA device can read this host memory at the host's address: if the driver has
    pinned it (`DeviceBlocks.pin`), since 64-bit systems have one address space for both."""
    with current(device):
        return bool(torch.from_numpy(memory[:1]).is_pinned())
