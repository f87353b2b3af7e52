"""Compile, for devices that are not here, what the launching functions start.

Triton must not interpret, so this runs in a process of its own: kernels' launches are recorded instead of
made, and each is compiled with the very arguments of the launch.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")


@dataclass(frozen=True)
class Compiled:
    """What the tests ask of one kernel on one kind of device."""

    label: str
    kernel: str
    capability: int
    mma_sync: int
    wgmma: int
    fused_multiply_adds: int
    spilled_bytes: int
    registers: int
    shared_bytes: int
    is_serialized: bool  # ptxas found wgmma's accumulators touched while it may still run, and has it wait
    is_released: bool  # all threads' last writes stand behind a barrier before one of them counts these
    operand_widths: list[int]  # neighbours along K that a thread holds of a product's operands, each once


@contextmanager
def recorded() -> Iterator[list[tuple[JITFunction, tuple[object, ...], dict[str, object]]]]:
    """Launches within are listed, not made."""
    launches: list[tuple[JITFunction, tuple[object, ...], dict[str, object]]] = []
    run = JITFunction.run

    def record(self: JITFunction, *args: object, grid: object, warmup: object, **kwargs: object) -> None:
        launches.append((self, args, kwargs))

    JITFunction.run = record
    try:
        yield launches
    finally:
        JITFunction.run = run


def compiled(label: str, start: Callable[[], None], capability: int) -> Iterator[Compiled]:
    """Every kernel that `start` launches."""
    with recorded() as launches:
        start()
    for kernel, args, kwargs in launches:
        yield _compile(label, kernel, args, dict(kwargs), capability)


def _compile(
    label: str, kernel: JITFunction, args: tuple[object, ...], kwargs: dict[str, object], capability: int
) -> Compiled:
    options = {name: kwargs.pop(name) for name in _OPTIONS}
    given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    constants = {p.name for p in kernel.params if p.is_constexpr}
    signature, constexprs, attrs = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        value = given[name]
        varies = kernel.params[index].do_not_specialize
        if name in constants or value is None or (isinstance(value, int) and value == 1 and not varies):
            signature[name], constexprs[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attrs[(index,)] = _POINTERS[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[name] = "i32"
            if value % 16 == 0 and not varies:
                attrs[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attrs)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = made.asm["ptx"]
    registers, spilled, is_serialized = _assembled(ptx, capability)
    return Compiled(
        label=label,
        kernel=kernel.__name__,
        capability=capability,
        mma_sync=len(re.findall(r"\bmma\.sync", ptx)),
        wgmma=len(re.findall(r"wgmma\.mma_async", ptx)),
        fused_multiply_adds=len(re.findall(r"\bfma\.rn(\.ftz)?\.f32", ptx)),
        spilled_bytes=spilled,
        registers=registers,
        shared_bytes=made.metadata.shared,
        is_serialized=is_serialized,
        is_released=_is_released(ptx),
        operand_widths=sorted({int(width) for width in re.findall(r"kWidth = (\d+)", made.asm["ttgir"])}),
    )


def _is_released(ptx: str) -> bool:
    """Between the last store to memory and an atomic that releases and acquires there is a barrier."""
    written, atomic, _ = ptx.partition("atom.global.gpu.acq_rel")
    return bool(atomic) and "bar.sync" in written.rpartition("st.global")[2]


def _assembled(ptx: str, capability: int) -> tuple[int, int, bool]:
    """Registers a thread, bytes of spill stores and loads, and `is_serialized`, as ptxas reports them."""
    arch = f"sm_{capability}{'a' if capability >= 90 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [
            str(get_ptxas(capability).path),
            "-v",
            f"--gpu-name={arch}",
            "--fmad=false",
            str(path),
            "-o",
            f"{folder}/out",
        ]
        run = subprocess.run(command, capture_output=True, text=True)
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.findall(r"(\d+) bytes spill", said)
    assert registers is not None, said
    assert spills, said
    return int(registers[1]), sum(map(int, spills)), "wgmma.mma_async instructions are serialized" in said
