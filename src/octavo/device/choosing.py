"""Which devices torch can use here, and why not."""

from __future__ import annotations

import torch

from octavo.errors import ConfigError

_LEAST_CAPABILITY = (8, 0)  # bfloat16 in tensor cores


def check_capability(name: str) -> torch.device:
    """The device of that name. Raises ConfigError where it cannot be used."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    obstacle = find_cuda_obstacle()
    if obstacle is None and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        obstacle = f"this machine has {count}, cuda:0 to cuda:{count - 1}"
    if obstacle is None:
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < _LEAST_CAPABILITY:
            obstacle = (
                f"its compute capability is {major}.{minor}, and the kernels need 8.0 (Ampere) or newer"
            )
    if obstacle is not None:
        raise ConfigError(f"device is {name}, which cannot be used: {obstacle}; allowed here: cpu")
    return torch.device("cuda", device.index or 0)


def find_cuda_obstacle() -> str | None:
    """Why torch cannot use a CUDA device; None where it can."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return None


def words_of(device: torch.device) -> str:
    """ "cuda:0 (NVIDIA H100 80GB HBM3)"."""
    if device.type != "cuda":
        return f"torch's {device.type}"
    return f"{device} ({torch.cuda.get_device_name(device)})"
