"""What the kernels need of a step: its arrays, and attention's work lists for each window that layers have.

    all chunks one token            one list, a tile for each chunk
    others                          two lists: chunks of one token, and longer chunks in tiles that fill a
                                    product

A chunk is in one list by its length alone: where so many query heads read one kv head that one token fills
a product, the tiles of both lists hold one token.

A list of few tiles is cut into partitions and merged (`attend_splitting`), so that few rows of a long context
keep the whole device busy; the bits are the same. The host makes the lists, and they travel with the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.device.flash import FlashAttention
from octavo.device.layout import DevicePool
from octavo.device.packing import pack, padded_size, unpack
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
from octavo.kernels.contract import Ints

Mask = npt.NDArray[np.bool_]

PROGRAMS_PER_PROCESSOR = 4  # of a split; a multiprocessor holds about as many
_ROUNDS_TO_FILL = 2  # programs for each multiprocessor, from which on walking keeps the device busy


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What a work list depends on beside the step."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    windows: tuple[int | None, ...]  # each once
    partitions_max: int  # of the longest context
    num_processors: int  # multiprocessors of the device

    def is_split(self, num_tiles: int) -> bool:
        """Whether so few tiles leave multiprocessors idle."""
        return num_tiles * self.num_kv_heads < _ROUNDS_TO_FILL * self.num_processors


@dataclass(frozen=True, slots=True)
class WorkForm:
    """The sizes of one work list: what a captured step is made for."""

    window: int | None
    is_single: bool  # lists the chunks of one token; otherwise those of more
    tokens_per_tile: int
    tiles_max: int
    items_max: int
    is_split: bool

    @property
    def num_ints(self) -> int:
        """Of its arrays together."""
        return 3 * padded_size(self.tiles_max) + padded_size(1)


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """A step on the device, int32; `works` are attention's lists by window."""

    tokens: Tensor  # (T,)
    positions: Tensor  # (T,)
    token_chunks: Tensor  # (T,)
    logit_rows: Tensor  # (R,) int64
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


def forms_of(lengths: Ints, sizes: AttentionSizes) -> list[WorkForm]:
    """The work lists of a step whose chunks have these lengths (C,): no more depends on them."""
    forms = []
    per_tile = prefill_tokens_per_tile(sizes.num_heads, sizes.num_kv_heads, sizes.head_size)
    for window in sizes.windows:
        for is_single, tokens in ((True, 1), (False, per_tile)):
            own = lengths[_listed(lengths, is_single)]
            tiles = int((-(-own // tokens)).sum())
            if tiles:
                is_split = is_single and sizes.is_split(tiles)
                items_max = tiles * sizes.partitions_max
                forms.append(WorkForm(window, is_single, tokens, tiles, items_max, is_split))
    return forms


def list_of(form: WorkForm, starts: Ints, lengths: Ints) -> Ints:
    """A list's arrays in one (`num_ints`,): the tiles of the chunks that belong to it, then padding."""
    chunks = np.flatnonzero(_listed(lengths, form.is_single)).astype(np.int32)
    tiles = tiles_of(starts[chunks], lengths[chunks], form.tokens_per_tile, form.window)
    arrays = [chunks[tiles.chunks], tiles.rows, tiles.ends]
    padding = np.zeros(form.tiles_max - tiles.ends.size, np.int32)
    num_tiles = np.array([tiles.ends.size], np.int32)
    return pack([*(np.concatenate([array, padding]) for array in arrays), num_tiles])


def _listed(lengths: Ints, is_single: bool) -> Mask:
    """Which chunks belong to the list of single tokens, or to the other one."""
    return lengths == 1 if is_single else lengths > 1


def work_in(form: WorkForm, arrays: Tensor) -> AttentionWork:
    """A list's arrays (`num_ints`,) on the device, as kernels take them."""
    size = form.tiles_max
    chunks, rows, ends, num_tiles = unpack(arrays, [size, size, size, 1])
    return AttentionWork(chunks, rows, ends, num_tiles, form.tokens_per_tile, form.items_max)
