"""The work of an attention launch, as arrays: tiles of queries, and the number of partitions of each.

    chunks      c0: starts at 510, 3 tokens           c1: starts at 0, 2 tokens
    tiles       t0: c0, tokens 0-1   t1: c0, token 2  t2: c1, tokens 0-1      (two tokens a tile)
    partitions  0, 1 of 256          0, 1, 2          0
    tile_ends   2                    5                6
    item 3 is t1's partition 1

The host knows starts and lengths, so it builds the arrays; kernels read them, and `num_tiles`, on the device,
so that a captured graph serves any step that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from octavo.kernels.contract import Ints

PARTITION_SIZE = 256  # positions that attention reduces at once, at absolute borders
SUB_TILE_SIZE = 64  # positions that it reads at once
# Head sizes up to these, and (token, query head) pairs that a tile of many tokens then holds: as many as
# registers hold twice. More pairs read K and V less often; fewer let more programs run at once.
_ROWS_OF_PREFILL = {64: 64, 128: 128, 256: 32}


@dataclass(frozen=True, slots=True)
class TileArrays:
    """The tiles of one step on the host: (M,) each."""

    chunks: Ints  # which chunk
    rows: Ints  # the tile's first token within the chunk
    ends: Ints  # the running number of partitions, the tile's own included


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """The tiles of one step on the device, int32. Entries from `num_tiles` on are never read."""

    tile_chunks: torch.Tensor  # (M,)
    tile_rows: torch.Tensor  # (M,)
    tile_ends: torch.Tensor  # (M,)
    num_tiles: torch.Tensor  # (1,)
    tokens_per_tile: int
    items_max: int  # no step has more (tile, partition) pairs

    @property
    def tiles_max(self) -> int:
        """M, the most tiles of a step."""
        return self.tile_chunks.shape[0]


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """The step's chunks, on the device, int32: chunk c covers tokens [offsets[c], offsets[c + 1]), begins at
    position starts[c], and its position p is in block tables[table_rows[c], p // B]."""

    tables: torch.Tensor  # (rows, W)
    table_rows: torch.Tensor  # (C,)
    starts: torch.Tensor  # (C,)
    offsets: torch.Tensor  # (C + 1,)


def prefill_tokens_per_tile(num_heads: int, num_kv_heads: int, head_size: int) -> int:
    """Tokens whose query heads of one kv head fill a tile."""
    rows = next(rows for largest, rows in _ROWS_OF_PREFILL.items() if head_size <= largest)
    return max(1, rows // (num_heads // num_kv_heads))


def tiles_of(starts: Ints, lengths: Ints, tokens_per_tile: int, window: int | None = None) -> TileArrays:
    """The tiles of chunks (C,) at `starts` with `lengths` tokens, chunk after chunk."""
    tiles = -(-lengths // tokens_per_tile)
    chunks = np.repeat(np.arange(starts.size), tiles)
    rows = (np.arange(chunks.size) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * tokens_per_tile
    first = starts[chunks] + rows
    last = starts[chunks] + np.minimum(rows + tokens_per_tile, lengths[chunks]) - 1
    low = np.zeros_like(first) if window is None else np.maximum(0, first - window + 1)
    ends = np.cumsum(last // PARTITION_SIZE - low // PARTITION_SIZE + 1)
    return TileArrays(chunks.astype(np.int32), rows.astype(np.int32), ends.astype(np.int32))


def work_on(
    device: torch.device,
    tiles: TileArrays,
    tokens_per_tile: int,
    tiles_max: int | None = None,
    items_max: int | None = None,
) -> AttentionWork:
    """Tiles copied to a device, padded to `tiles_max`. The runner writes its own by plans instead."""
    size = tiles.chunks.size if tiles_max is None else tiles_max
    num_items = int(tiles.ends[-1]) if tiles.ends.size else 0
    assert tiles.chunks.size <= size
    assert items_max is None or num_items <= items_max
    arrays = torch.full((3, size), -1, dtype=torch.int32)
    for row, values in zip(arrays, (tiles.chunks, tiles.rows, tiles.ends), strict=True):
        row[: values.size] = torch.from_numpy(values)
    chunks, rows, ends = arrays.to(device)
    num_tiles = torch.tensor([tiles.chunks.size], dtype=torch.int32, device=device)
    return AttentionWork(
        chunks, rows, ends, num_tiles, tokens_per_tile, num_items if items_max is None else items_max
    )
