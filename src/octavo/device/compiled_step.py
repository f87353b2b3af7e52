"""The kernels' inputs of a step: its arrays, and attention's work lists for each window of the layers.

    all chunks one token            one list, a tile for each chunk
    others                          two lists: chunks of one token, and longer chunks in tiles that fill a
                                    product

Only a chunk's length decides its list: if so many query heads read one kv head that one token fills a
product, the tiles of both lists hold one token.

A list of few tiles is split into partitions and merged (`attend_splitting`), so that few rows of a long
context use the whole device; the bits are the same. The host makes the lists and copies them with the plan.

Launches depend only on a step's size (`StepSize`). A smaller step fits a larger size: padding tokens have
position -1, and extra chunks and tiles are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo.device.flash import FlashAttention
from octavo.device.layout import DevicePool
from octavo.device.rows import DeviceRows, unpack
from octavo.device.triton.attention import (
    AttentionForm,
    AttentionScratch,
    attend_splitting,
    attend_walking,
)
from octavo.device.triton.attention_work import (
    AttentionStep,
    AttentionWork,
    prefill_tokens_per_tile,
    tiles_of,
)
from octavo.device.triton.embedding import TokenPlaces
from octavo.device.triton.launch import padded
from octavo.executor.batch import StepShape
from octavo.kernels.contract import Ints
from octavo.units import padded_positions

PROGRAMS_PER_PROCESSOR = 4  # of a split; a multiprocessor runs about as many at once
_TOKENS_OF_OTHERS = 32  # steps other than decoding are padded to a multiple of this
_ROUNDS_TO_FILL = 2  # with so many programs per multiprocessor, walking keeps the device busy


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes, other than the step's, that a work list depends on."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    windows: tuple[int | None, ...]  # each once
    partitions_max: int  # of the longest context
    num_processors: int  # multiprocessors of the device
    max_rows: int  # chunks of a step

    @property
    def split_max(self) -> int:
        """The most tiles of a split list: so few would leave multiprocessors idle."""
        return (_ROUNDS_TO_FILL * self.num_processors - 1) // self.num_kv_heads

    @property
    def tokens_per_tile(self) -> int:
        """Tokens of a tile, for a chunk of more than one token."""
        return prefill_tokens_per_tile(self.num_heads, self.num_kv_heads, self.head_size)


@dataclass(frozen=True, slots=True)
class StepSize:
    """The sizes that a step's launches depend on."""

    tokens: int
    chunks: int
    logits: int  # tokens that need logits; 0: all, in order
    singles: int  # capacity of the list of chunks of one token; 0: it has none
    tiles: int  # the same of tiles of longer chunks

    @property
    def is_decoding(self) -> bool:
        """Whether every token is a chunk that needs logits."""
        return self.singles == self.tokens and self.logits == 0

    def rounded(self) -> StepSize:
        """The next of few sizes: for decoding by `padded_positions`. Other steps vary more, so their sizes
        are coarser: multiples of 32 tokens, lists of one length, a power of two, and also for logits."""
        if self.is_decoding:
            tokens = padded_positions(self.tokens)
            return StepSize(tokens, tokens, 0, tokens, 0)
        tokens = max(padded_positions(self.tokens), -(-self.tokens // _TOKENS_OF_OTHERS) * _TOKENS_OF_OTHERS)
        listed = padded(max(self.singles, self.tiles))
        singles, tiles = (listed if count else 0 for count in (self.singles, self.tiles))
        return StepSize(tokens, tokens, padded(self.logits) if self.logits else 0, singles, tiles)


def size_of(shape: StepShape, sizes: AttentionSizes) -> StepSize:
    """The size of a step, without padding."""
    lengths = shape.lengths
    is_single = lengths == 1
    tiles = int((-(-lengths[~is_single] // sizes.tokens_per_tile)).sum())
    tokens, logits = shape.positions.size, shape.logit_rows.size
    wanted = 0 if logits == tokens else max(1, logits)
    return StepSize(tokens, shape.starts.size, wanted, int(is_single.sum()), tiles)


@dataclass(frozen=True, slots=True)
class WorkForm:
    """The sizes of one work list, fixed in a captured step."""

    window: int | None
    is_single: bool  # lists the chunks of one token; otherwise those of more
    tokens_per_tile: int
    tiles_max: int
    items_max: int
    is_split: bool


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """A step on the device, int32; `works` are attention's lists by window."""

    tokens: TokenPlaces
    logit_rows: Tensor | None  # (R,); None: all tokens, in order
    attention: AttentionStep
    works: Sequence[tuple[WorkForm, AttentionWork]]
    sizes: AttentionSizes
    longest: int  # tokens of a chunk, at most
    flash: FlashAttention | None = None  # instead of the lists
    partials: AttentionScratch | None = None  # of lists that are split, one for all layers

    def attend(self, out: Tensor, q: Tensor, pool: DevicePool, layer: int, form: AttentionForm) -> None:
        """Causal attention of q (T, H * D) into out, list after list."""
        if self.flash is not None:
            self.flash.attend(out, q, pool, layer, self.attention, form, self.longest)
            return
        for about, work in self.works:
            if about.window != form.window:
                continue
            if about.is_split:
                assert self.partials is not None, "no list is split"
                programs = PROGRAMS_PER_PROCESSOR * self.sizes.num_processors // self.sizes.num_kv_heads
                attend_splitting(
                    out, q, pool, layer, self.attention, work, form, self.partials, max(1, programs)
                )
            else:
                attend_walking(out, q, pool, layer, self.attention, work, form)


def arrays_of(shape: StepShape, size: StepSize, sizes: AttentionSizes) -> list[Ints]:
    """The arrays of a step of this size or a smaller one, to be copied to the device for `step_in`."""
    num_tokens = shape.positions.size
    arrays = [
        _filled(shape.table_rows, size.chunks, 0),
        _filled(shape.starts, size.chunks, 0),
        _filled(shape.offsets, size.chunks + 1, num_tokens),
        _filled(shape.token_chunks, size.tokens, 0),
        _filled(shape.positions, size.tokens, -1),
        _filled(shape.logit_rows if size.logits else shape.logit_rows[:0], size.logits, 0),
    ]
    for form in _forms_of(size, sizes):
        arrays += _list_of(form, shape.starts, shape.lengths)
    return arrays


def step_in(
    arrays: Tensor,
    size: StepSize,
    sizes: AttentionSizes,
    rows: DeviceRows,
    flash: FlashAttention | None,
    partials: AttentionScratch | None,
) -> CompiledStep:
    """The step over packed arrays on the device."""
    forms = _forms_of(size, sizes)
    counts = [size.chunks, size.chunks, size.chunks + 1, size.tokens, size.tokens, size.logits]
    for form in forms:
        counts += [*[form.tiles_max] * 3, 1]
    table_rows, starts, offsets, chunks, positions, logit_rows, *lists = unpack(arrays, counts)
    works = []
    for index, form in enumerate(forms):
        tile_chunks, tile_rows, tile_ends, num_tiles = lists[4 * index : 4 * index + 4]
        work = AttentionWork(
            tile_chunks, tile_rows, tile_ends, num_tiles, form.tokens_per_tile, form.items_max
        )
        works.append((form, work))
    return CompiledStep(
        TokenPlaces(rows.tokens, table_rows, chunks, positions),
        logit_rows if size.logits else None,
        AttentionStep(rows.tables, table_rows, starts, offsets),
        works,
        sizes,
        size.tokens if size.tiles else 1,
        flash,
        partials,
    )


def _forms_of(size: StepSize, sizes: AttentionSizes) -> list[WorkForm]:
    """The work lists of a step."""
    forms = []
    for window in sizes.windows:
        if size.singles:
            items = min(size.singles, padded(sizes.max_rows)) * sizes.partitions_max
            is_split = size.singles <= sizes.split_max
            forms.append(WorkForm(window, True, 1, size.singles, items, is_split))
        if size.tiles:
            items = size.tiles * sizes.partitions_max
            forms.append(WorkForm(window, False, sizes.tokens_per_tile, size.tiles, items, False))
    return forms


def _list_of(form: WorkForm, starts: Ints, lengths: Ints) -> list[Ints]:
    """A list's arrays: the tiles of its chunks, and their number."""
    chunks = np.flatnonzero(lengths == 1 if form.is_single else lengths > 1).astype(np.int32)
    tiles = tiles_of(starts[chunks], lengths[chunks], form.tokens_per_tile, form.window)
    arrays = (chunks[tiles.chunks], tiles.rows, tiles.ends)
    num_tiles = np.array([tiles.ends.size], np.int32)
    return [*(_filled(array, form.tiles_max, 0) for array in arrays), num_tiles]


def _filled(array: Ints, size: int, value: int) -> Ints:
    """The array, padded with `value`."""
    return np.concatenate([array, np.full(size - array.size, value, np.int32)])
