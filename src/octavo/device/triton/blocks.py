"""Whole blocks of KV memory, moved within a pool or between it and a contiguous staging tensor.

N blocks of `bytes_per_block` bytes, a multiple of 4 KiB. Lists of blocks lie on the device, int32, and an
entry of -1 is padding, so that a captured graph serves any list that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton.language as tl

from octavo.device.triton.launch import kernel, launch

_WORDS = 1024  # of eight bytes, that one program moves
_WORDS_PER_PAGE = 512


def independent_runs(sources: Sequence[int], targets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of the pairs, in order, within which no copy reads or overwrites another's blocks.

    Each is one `copy_blocks`; programs of one launch have no order among them.
    """
    read: set[int] = set()
    written: set[int] = set()
    first = 0
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if source in written or target in written or target in read:
            yield first, index
            first, read, written = index, set(), set()
        read.add(source)
        written.add(target)
    if first < len(sources):
        yield first, len(sources)


def copy_blocks(data: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """data[targets[i]] = data[sources[i]] of a pool's data (N, bytes), for pairs that are independent."""
    _move(data, targets, data, sources)


def gather_blocks(staging: torch.Tensor, data: torch.Tensor, blocks: torch.Tensor) -> None:
    """staging[i] = data[blocks[i]]; staging (at least len(blocks), bytes) uint8."""
    assert staging.shape[0] >= blocks.shape[0]
    _move(staging, None, data, blocks)


def scatter_blocks(data: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor) -> None:
    """data[blocks[i]] = staging[i]."""
    assert staging.shape[0] >= blocks.shape[0]
    _move(data, blocks, staging, None)


def _move(
    to: torch.Tensor, targets: torch.Tensor | None, of: torch.Tensor, sources: torch.Tensor | None
) -> None:
    """None: row i itself."""
    lists = [blocks for blocks in (targets, sources) if blocks is not None]
    assert to.is_contiguous()
    assert of.is_contiguous()
    assert to.shape[1] == of.shape[1]
    assert to.dtype == of.dtype == torch.uint8
    assert all(blocks.dtype == torch.int32 and blocks.shape == lists[0].shape for blocks in lists)
    words = to.shape[1] // 8
    assert words % _WORDS_PER_PAGE == 0
    launch(
        move_blocks,
        (lists[0].shape[0], -(-words // _WORDS)),
        [to.view(torch.int64), targets, of.view(torch.int64), sources, words],
        {"WORDS": _WORDS},
    )


@kernel()
def move_blocks(
    to: tl.tensor,
    targets: tl.tensor,
    of: tl.tensor,
    sources: tl.tensor,
    words: tl.tensor,
    WORDS: tl.constexpr,
) -> None:
    """One program for each pair and run of words."""
    pair = tl.program_id(0)
    target, source = pair, pair
    if targets is not None:
        target = tl.load(targets + pair)
    if sources is not None:
        source = tl.load(sources + pair)
    if (target < 0) | (source < 0):
        return
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    numbers = tl.load(of + source.to(tl.int64) * words + word, mask=word < words)
    tl.store(to + target.to(tl.int64) * words + word, numbers, mask=word < words)
