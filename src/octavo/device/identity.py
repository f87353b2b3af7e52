"""The id of the kernels' arithmetic: bits are equal within one id, and cached blocks are bound to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
import triton

_KINDS = {torch.float32: "f32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def kernels_id(device: torch.device, dtype: torch.dtype) -> str:
    """ "cuda-sm90-bf16-1f2e3d4c-triton3.6.0": device, activations, kernels' sources, compiler. The number of
    ranks changes no bit."""
    where = "cpu"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        where = f"cuda-sm{major}{minor}"
    return f"{where}-{_KINDS[dtype]}-{hash_of_sources()}-triton{triton.__version__}"


def hash_of_sources() -> str:
    """8 hex digits of the sources that decide every bit besides torch and Triton: this package, the decoder,
    its record and a step's arrays."""
    digest, package = hashlib.blake2b(digest_size=4), Path(__file__).parents[1]
    others = (package / name for name in ("model/decoder.py", "kernels/recording.py", "executor/batch.py"))
    for path in (*sorted((package / "device").rglob("*.py")), *others):
        digest.update(path.read_bytes())
    return digest.hexdigest()
