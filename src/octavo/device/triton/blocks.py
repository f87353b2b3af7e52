"""Whole blocks of KV memory, copied within a pool.

N blocks of `bytes_per_block` bytes, a multiple of 4 KiB. Lists of blocks are on the device, int32.
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
    assert data.is_contiguous()
    assert data.dtype == torch.uint8
    assert sources.shape == targets.shape
    assert sources.dtype == targets.dtype == torch.int32
    words = data.shape[1] // 8
    assert words % _WORDS_PER_PAGE == 0
    launch(
        copy_words,
        (sources.shape[0], -(-words // _WORDS)),
        [data.view(torch.int64), sources, targets, words],
        {"WORDS": _WORDS},
    )


@kernel()
def copy_words(
    data: tl.tensor, sources: tl.tensor, targets: tl.tensor, words: tl.tensor, WORDS: tl.constexpr
) -> None:
    """One program for each pair and run of words."""
    pair = tl.program_id(0)
    source, target = tl.load(sources + pair).to(tl.int64), tl.load(targets + pair).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    numbers = tl.load(data + source * words + word, mask=word < words)
    tl.store(data + target * words + word, numbers, mask=word < words)
