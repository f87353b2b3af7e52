"""Creates the torch backend for a device's name and settings. Triton is imported only for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from octavo.device.arithmetic import Arithmetic
from octavo.device.backend import TorchBackend
from octavo.device.devices import check_capability
from octavo.device.layout import DevicePool
from octavo.device.reference import ReferenceArithmetic
from octavo.device.rows import DeviceRows
from octavo.device.weights import DeviceWeights
from octavo.errors import ConfigError
from octavo.kernels.reference import ReferenceOps
from octavo.model.spec import Model

if TYPE_CHECKING:
    from octavo.device.kernel_times import DeviceTime
    from octavo.device.ranks.backend import RankedBackend
    from octavo.device.ranks.collectives import RankGroup

_PROCESSORS_OF_A_CPU = 1  # the interpreter runs programs one by one
_WEIGHTS = ("auto", "f32", "bf16")


def open_backend(
    name: str, weights: str, attention: str, threads: int | None, host_memory: Callable[[], int]
) -> TorchBackend:
    """The backend of a device: "cpu", "cuda" or "cuda:1". Raises ConfigError if it is not available.

    torch uses one thread unless `threads` says otherwise: with two, its first products of a process were
    wrong, once in five hundred processes (docs/log.md). On its CPU it only samples, and multiplies nothing.
    """
    if weights not in _WEIGHTS:
        raise ConfigError(
            f"weights is {weights}, which the torch backend does not hold; allowed: {', '.join(_WEIGHTS)}, "
            "or --backend native"
        )
    device = check_capability(name)
    if device.type == "cpu":
        if attention == "flash":
            raise ConfigError(f"attention is flash, and torch computes on its {name}; allowed there: triton")
        torch.set_num_threads(threads or 1)
        return reference_backend(weights, host_memory)
    dtype = torch.float32 if weights == "f32" else torch.bfloat16
    return compiled_backend(device, dtype, host_memory, is_flash=attention == "flash")


def open_ranks(
    name: str,
    weights: str,
    threads: int | None,
    host_memory: Callable[[], int],
    num_ranks: int,
    timeout_s: float,
) -> RankedBackend:
    """The backend of a model on several devices: those from the given one on, or so many processes of a CPU.
    Raises ConfigError if there are fewer."""
    from octavo.device.ranks.backend import RankedBackend

    first = check_capability(name)
    devices = [name] * num_ranks
    if first.type == "cuda":
        devices = [f"cuda:{(first.index or 0) + rank}" for rank in range(num_ranks)]
        kinds = {torch.cuda.get_device_capability(check_capability(device)) for device in devices}
        if len(kinds) > 1:
            raise ConfigError(
                f"tensor_parallel_size is {num_ranks}, and {', '.join(devices)} have different compute "
                "capabilities, which compute other bits; allowed: GPUs of one kind"
            )
    own = open_backend(devices[0], weights, "triton", threads, host_memory)
    return RankedBackend(own, devices, weights, timeout_s)


def time_kernels(name: str) -> Iterator[DeviceTime]:
    """The time of each kernel on a GPU. Raises ConfigError if it cannot be used."""
    from octavo.device.kernel_times import measure_kernels

    device = check_capability(name)
    if device.type != "cuda":
        raise ConfigError(f"device is {name}; allowed here: cuda, cuda:N (the processor's: without --device)")
    return measure_kernels(device, torch.bfloat16)


def reference_backend(
    weights: str, host_memory: Callable[[], int], ops: ReferenceOps | None = None
) -> TorchBackend:
    """The reference's ops over torch's CPU. Integers of a file become float32, as on a device."""
    own = ops or ReferenceOps("bf16" if weights == "bf16" else "f32")
    return TorchBackend(
        torch.device("cpu"),
        own,
        f"torch-{own.arithmetic_id}",
        lambda model, pool, rows, group: ReferenceArithmetic(model, own, pool, rows, group),
        host_memory,
    )


def compiled_backend(
    device: torch.device, dtype: torch.dtype, host_memory: Callable[[], int], *, is_flash: bool = False
) -> TorchBackend:
    """Octavo's kernels and graphs of them: on CUDA, or on a CPU in Triton's interpreter (for tests).

    `is_flash`: attention is torch's; raises ConfigError if it cannot be used.
    """
    from octavo.device.compiled import CompiledArithmetic
    from octavo.device.flash import FlashAttention, activate_flash, check_flash, find_flash_obstacle
    from octavo.device.identity import kernels_id

    obstacle = find_flash_obstacle(device)
    if is_flash and obstacle is not None:
        raise ConfigError(f"attention is flash, which cannot be used here: {obstacle}; allowed: triton")
    if is_flash:
        activate_flash()
    count = _PROCESSORS_OF_A_CPU
    if device.type == "cuda":
        count = torch.cuda.get_device_properties(device).multi_processor_count

    def new_arithmetic(
        model: Model, pool: DevicePool, rows: DeviceRows, group: RankGroup | None
    ) -> Arithmetic:
        flash = None
        if is_flash:
            check_flash(model.spec, pool.shape)
            flash = FlashAttention(rows.context_length)
        return CompiledArithmetic(model, pool, rows, count, flash, group)

    exactness = (
        "built to keep the exactness contract (an H100 kept it in bf16, fp16, int8 and fp8, before kernels "
        "last changed): bench/cuda/bits.py and exactness.py check this device (docs/gpu.md)"
    )
    chosen = "flash (torch's)" if is_flash else "triton (Octavo's)"
    other = "usable" if obstacle is None else f"not usable: {obstacle}"
    return TorchBackend(
        device,
        DeviceWeights(device, dtype),
        kernels_id(device, dtype) + (f"-flash-torch{torch.__version__}" if is_flash else ""),
        new_arithmetic,
        host_memory,
        exactness,
        [("attention", f"{chosen}; --attention flash is {other}")],
        pads_steps=True,
    )
