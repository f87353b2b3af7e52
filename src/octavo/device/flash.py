"""Attention by torch's own FlashAttention over block tables: `--attention flash`, if this torch has it.

`torch.nn.attention.varlen.varlen_attn` accepts block tables from torch 2.12 on, with FlashAttention 3
(Hopper). It has no soft cap, no sinks, no ALiBi and no codes in memory. Splits over the context are turned
off, so a row's bits do not depend on other rows; they differ from those of Octavo's kernels, so it has an
arithmetic id of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from octavo.device.layout import DevicePool
from octavo.device.triton.attention import AttentionForm
from octavo.device.triton.attention_work import AttentionStep
from octavo.errors import ConfigError
from octavo.kernels.contract import KvShape
from octavo.model.spec import ModelSpec

Varlen = Callable[..., Tensor]
_IMPLEMENTATION = "FA3"
_CAPABILITY = 9  # Hopper
_NEEDED = {"block_table", "seqused_k", "num_splits"}


def find_flash_obstacle(device: torch.device) -> str | None:
    """Why torch's FlashAttention cannot be used on the device; None if it can."""
    if device.type != "cuda":
        return "it runs on CUDA devices alone"
    varlen = _varlen()
    if varlen is None or not inspect.signature(varlen).parameters.keys() >= _NEEDED:
        return f"torch {torch.__version__} has no attention over block tables; 2.12 or newer has"
    major, minor = torch.cuda.get_device_capability(device)
    if major != _CAPABILITY:
        return f"FlashAttention 3 needs compute capability 9.0 (Hopper); this device has {major}.{minor}"
    known: list[str] = getattr(torch.nn.attention, "list_flash_attention_impls", list)()
    return None if _IMPLEMENTATION in known else f"torch {torch.__version__} knows no {_IMPLEMENTATION}"


def activate_flash() -> None:
    """Load what `varlen_attn` needs. Raises ConfigError if torch cannot."""
    try:
        torch.nn.attention.activate_flash_attention_impl(_IMPLEMENTATION)
    except (AttributeError, ImportError, RuntimeError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"attention is flash, and torch cannot load {_IMPLEMENTATION}: {why}; allowed: triton"
        ) from None


def check_flash(spec: ModelSpec, shape: KvShape) -> None:
    """Raise ConfigError if torch's FlashAttention does not support the model or its kind of KV."""
    wanted = None
    if spec.attention_soft_cap is not None:
        wanted = f"the scores' soft cap of {spec.family}"
    elif shape.kind not in ("bf16", "fp16"):
        wanted = f"kv {shape.kind}"
    if wanted is not None:
        raise ConfigError(
            f"attention is flash, which does not know {wanted}; allowed with it: kv bf16 or fp16, models "
            "without soft caps; give --attention triton"
        )


class FlashAttention:
    """Attention of all chunks of a step in one call."""

    def __init__(self, context_length: int, varlen: Varlen | None = None) -> None:
        found = varlen or _varlen()
        assert found is not None, "`find_flash_obstacle` comes first"
        self._varlen, self._context_length = found, context_length

    def attend(
        self,
        out: Tensor,
        q: Tensor,
        pool: DevicePool,
        layer: int,
        step: AttentionStep,
        form: AttentionForm,
        longest: int,
    ) -> None:
        """Causal attention of q (T, H * D) into out; `longest` is the most tokens of a chunk."""
        heads = q.unflatten(1, (-1, pool.shape.head_size))
        lengths = step.offsets[1:] - step.offsets[:-1]
        made = self._varlen(
            heads.to(pool.layout.dtype),
            pool.keys(layer).transpose(1, 2),  # (N, B, K, D), as pages are
            pool.values(layer).transpose(1, 2),
            step.offsets,
            None,
            longest,
            self._context_length,
            scale=form.scale,
            window_size=(-1 if form.window is None else form.window - 1, 0),
            enable_gqa=True,
            seqused_k=step.starts + lengths,
            block_table=step.tables[step.table_rows.long()],
            num_splits=1,
        )
        out.copy_(made.flatten(1))


def _varlen() -> Varlen | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return cast(Varlen, varlen_attn)
