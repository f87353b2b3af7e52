"""The layout of a block of KV memory on a device.

    block   | layer 0 | layer 1 | ... | padding to 4 KiB |
    layer   | K | V |                       f32, bf16, fp16
            | K | V | scales |              int8, fp8 (e4m3)

    K, V    [kv heads][B][D]        rows of a head are contiguous, so devices can share the heads
    scales  [K, V][kv heads][B]     float32: of each token and head, largest magnitude / largest code

One block is one contiguous range for all layers, so a move between tiers is one copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.kernels.contract import KvShape

_PAGE = 4096
DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
LARGEST_CODE = {"int8": 127.0, "fp8": 448.0}


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes from the beginning of a block."""

    shape: KvShape

    @property
    def dtype(self) -> torch.dtype:
        """The type of stored K and V."""
        return DTYPES[self.shape.kind]

    @property
    def has_scales(self) -> bool:
        """Whether K and V are codes, with a scale of each token and head."""
        return self.shape.kind in LARGEST_CODE

    @property
    def bytes_of_keys(self) -> int:
        """Bytes of K of one layer; V has as many."""
        shape = self.shape
        return shape.num_kv_heads * shape.block_size * shape.head_size * self.dtype.itemsize

    @property
    def bytes_of_scales(self) -> int:
        """Bytes of K's scales of one layer; V's have as many."""
        return self.shape.num_kv_heads * self.shape.block_size * 4 if self.has_scales else 0

    @property
    def bytes_per_layer(self) -> int:
        """K, V and their scales."""
        return 2 * (self.bytes_of_keys + self.bytes_of_scales)

    @property
    def bytes_per_block(self) -> int:
        """A multiple of 4 KiB."""
        return -(-self.shape.num_layers * self.bytes_per_layer // _PAGE) * _PAGE

    def keys_at(self, layer: int) -> int:
        """Where K of a layer begins."""
        return layer * self.bytes_per_layer

    def values_at(self, layer: int) -> int:
        """Where V of a layer begins."""
        return self.keys_at(layer) + self.bytes_of_keys

    def scales_at(self, layer: int) -> int:
        """Where the scales of K of a layer begin; those of V follow."""
        return self.keys_at(layer) + 2 * self.bytes_of_keys


@dataclass(frozen=True, slots=True)
class DevicePool:
    """N blocks of KV memory on a device: `data` is (N, bytes_per_block) uint8."""

    layout: Layout
    data: torch.Tensor

    @property
    def shape(self) -> KvShape:
        """The shape of the KV group."""
        return self.layout.shape

    @property
    def num_blocks(self) -> int:
        """N, the number of blocks."""
        return self.data.shape[0]

    def keys(self, layer: int) -> torch.Tensor:
        """(N, kv heads, B, D): a writable view."""
        return self._view(self.layout.keys_at(layer))

    def values(self, layer: int) -> torch.Tensor:
        """(N, kv heads, B, D): a writable view."""
        return self._view(self.layout.values_at(layer))

    def scales(self, layer: int) -> torch.Tensor:
        """(N, 2, kv heads, B): K's and V's, a writable view."""
        assert self.layout.has_scales, "only codes have scales"
        start, shape = self.layout.scales_at(layer), self.shape
        part = self.data[:, start : start + 2 * self.layout.bytes_of_scales].view(torch.float32)
        return part.unflatten(1, (2, shape.num_kv_heads, shape.block_size))

    def _view(self, start: int) -> torch.Tensor:
        shape = self.shape
        part = self.data[:, start : start + self.layout.bytes_of_keys].view(self.layout.dtype)
        return part.unflatten(1, (shape.num_kv_heads, shape.block_size, shape.head_size))


def allocate_pool(shape: KvShape, num_blocks: int, device: torch.device) -> DevicePool:
    """N blocks of zeros. Raises torch.OutOfMemoryError if they do not fit."""
    layout = Layout(shape)
    return DevicePool(
        layout, torch.zeros((num_blocks, layout.bytes_per_block), dtype=torch.uint8, device=device)
    )
