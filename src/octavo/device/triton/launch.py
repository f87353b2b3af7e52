"""Declares and launches kernels: the only module that uses Triton's decorator and its options.

Every kernel is compiled without contraction of a product and a sum into one rounding (`enable_fp_fusion`), so
that its bits follow from its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

import torch
import triton
import triton.language as tl

Function = TypeVar("Function", bound=Callable[..., object])
Argument = torch.Tensor | int | float | None
Constant: TypeAlias = "bool | int | float | str | tl.dtype | None"

TRITON_DTYPES: dict[torch.dtype, tl.dtype] = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


class _Launchable(Protocol):
    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...


def jit(function: Function) -> Function:
    """A function that kernels call."""
    return cast(Function, triton.jit(function))


def kernel(*varying: str) -> Callable[[Function], Function]:
    """A kernel. `varying` names its integers that change from step to step: no variants are compiled for
    them (otherwise 1 and multiples of 16 get their own)."""

    def decorate(function: Function) -> Function:
        return cast(Function, triton.jit(function, do_not_specialize=varying))

    return decorate


def launch(
    started: Callable[..., object],
    grid: tuple[int, ...],
    arguments: Sequence[Argument],
    constants: Mapping[str, Constant],
    num_warps: int = 4,
    num_stages: int = 2,
    registers_max: int | None = None,
) -> None:
    """Start a kernel on torch's current stream; a grid without programs starts nothing. `registers_max`: of a
    thread, so that more programs run at once."""
    if 0 in grid:
        return
    options = {
        "num_warps": num_warps,
        "num_stages": num_stages,
        "enable_fp_fusion": False,
        "maxnreg": registers_max,
    }
    cast(_Launchable, started)[grid](*arguments, **constants, **options)


def padded(size: int, least: int = 1) -> int:
    """The smallest power of two that is at least both."""
    return max(least, 1 << (size - 1).bit_length())
