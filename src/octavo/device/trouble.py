"""Errors of a device, in words: a kernel that cannot run, or a lost device."""

from __future__ import annotations

import torch

from octavo.errors import DeviceLost, first_line
from octavo.executor.forward import Trouble


def is_trouble(error: Exception) -> bool:
    """Whether it is an error of torch or Triton, not a bug of ours: RuntimeErrors, and Triton's own."""
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(error).__mro__}
    return isinstance(error, RuntimeError) or "triton.TritonError" in names


def describe_trouble(error: Exception, device: torch.device) -> Trouble:
    """The trouble of a step on a device that still works. Raises DeviceLost if it does not: after an illegal
    access nothing on it is valid, and every call fails."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as lost:
            raise DeviceLost(
                f"{device} is lost ({first_line(lost)}); every request on it has failed; restart the "
                "server, and if this repeats see the driver's log (dmesg, nvidia-smi -q)"
            ) from error
    if isinstance(error, torch.OutOfMemoryError):
        return Trouble(
            f"{device} had no memory left for the step ({first_line(error)}); give a smaller --kv-memory or "
            "--step-tokens",
            is_shortage=True,
        )
    return Trouble(f"a kernel failed on {device}: {first_line(error)}")
