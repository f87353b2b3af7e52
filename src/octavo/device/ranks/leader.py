"""Rank 0's side of a step: it sends each call to the other ranks, and then makes it here.

    DeviceForward --> LeadArithmetic --> send(Prepare), send(Run) ... --> the ranks' sockets
                             |                                               |
                             +--> this rank's own arithmetic  <-- RankGroup --> theirs

All ranks receive calls in one order, so their exchanges match. Only rank 0 samples: it broadcasts hidden rows
for the computation of logits, and then the sampled tokens, on the device's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from octavo.device.arithmetic import Arithmetic, RowSampler
from octavo.device.block_copies import DeviceBlocks
from octavo.device.forward import DeviceForward
from octavo.device.ranks.collectives import ExchangeFailed, RankGroup
from octavo.device.ranks.member import map_places, move_share
from octavo.device.ranks.messages import (
    Append,
    CopyBlocks,
    Fence,
    ForkRow,
    Message,
    MoveBlocks,
    Prepare,
    Project,
    Run,
    Warm,
    WarmMore,
    encode_shape,
)
from octavo.device.rows import DeviceRows, Writes
from octavo.errors import DeviceLost, first_line
from octavo.executor.batch import StepShape
from octavo.executor.forward import ColdReach, Trouble
from octavo.kernels.contract import Bytes, SlotMemory
from octavo.types import Fork, RankState, StepWay


class Ranks(Protocol):
    """The other ranks (`RankProcesses`)."""

    num_ranks: int

    def send(self, message: Message) -> None: ...

    def move(self, move: MoveBlocks, own: Callable[[], None]) -> None: ...

    def check(self) -> None: ...

    def why(self, error: Exception) -> DeviceLost: ...

    def lose(self, reason: str) -> None: ...

    def note_step(self, *, has_ended: bool) -> None: ...

    def wake_when_lost(self, wake: Callable[[], None]) -> None: ...


@contextmanager
def on_all(ranks: Ranks, message: Message) -> Iterator[None]:
    """Send it; the others run it while the body does the same here. If either is interrupted, the ranks are
    at different points, so all end. Raises DeviceLost, or the cause of the interruption."""
    try:
        ranks.send(message)
        yield
    except DeviceLost:
        raise
    except ExchangeFailed as error:
        raise ranks.why(error) from error
    except BaseException as error:
        ranks.lose(f"rank 0 was interrupted while all ranks compute ({first_line(error)})")
        raise


class LeadSampler:
    """The sampler of rank 0, whose tokens are written to all ranks' rows."""

    def __init__(self, own: RowSampler, ranks: Ranks, group: RankGroup) -> None:
        self._own, self._ranks, self._group = own, ranks, group
        self.penalise, self.add_biases = own.penalise, own.add_biases
        self.draw_greedily, self.draw, self.logprobs = own.draw_greedily, own.draw, own.logprobs

    def append(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Write them, and broadcast them."""
        with on_all(self._ranks, Append(tokens.shape[0])):
            self._group.broadcast(torch.stack([rows, positions, tokens]))
            self._own.append(rows, positions, tokens)


class LeadArithmetic:
    """`Arithmetic` of all ranks together, on rank 0."""

    def __init__(self, own: Arithmetic, rows: DeviceRows, ranks: Ranks, group: RankGroup) -> None:
        self.pool = own.pool
        self.sampler = LeadSampler(own.sampler, ranks, group)
        self._own, self._rows, self._ranks, self._group = own, rows, ranks, group

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Warm all ranks at once."""
        with on_all(self._ranks, Warm(step_tokens)):
            self._own.warm(step_tokens, progress)

    def warm_more(self) -> bool:
        """Prepare one more piece, on all ranks."""
        with on_all(self._ranks, WarmMore()):
            return self._own.warm_more()

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """The others receive only the writes of tokens and tables."""
        indices, values = writes.arrays()
        is_theirs = indices < self._rows.drawn_at
        theirs = indices[is_theirs].tobytes(), values[is_theirs].tobytes()
        with on_all(self._ranks, Prepare(*theirs, encode_shape(shape))):
            self._own.prepare(shape, writes)

    def read_cold_from(self, slots: Bytes) -> int | None:
        """None: slots hold all ranks' shares, which cannot be read in place."""
        return None

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks; each rank copies its own part."""
        with on_all(self._ranks, CopyBlocks(tuple(sources), tuple(targets))):
            self._own.copy_blocks(sources, targets)

    def hidden(self) -> Tensor:
        """(R, E): the same on every rank."""
        self._ranks.note_step(has_ended=False)
        with on_all(self._ranks, Run()):
            return self._own.hidden()

    def new_hidden(self, num_rows: int) -> Tensor:
        """(num_rows, E): memory for hidden rows."""
        return self._own.new_hidden(num_rows)

    def way(self) -> StepWay | None:
        """How this rank ran the last step."""
        return self._own.way()

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V): each rank computes its rows of the vocabulary."""
        with on_all(self._ranks, Project(hidden.shape[0])):
            return self._own.logits(self._group.broadcast(hidden.contiguous()))

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64."""
        return self.sampler.draw_greedily(self.logits(hidden))


class LeadRows(DeviceRows):
    """Rank 0's rows; the others' are forked with them."""

    ranks: Ranks

    def fork(self, fork: Fork) -> None:
        """Fork a row on all ranks."""
        with on_all(self.ranks, ForkRow(fork.parent_row, fork.child_row)):
            super().fork(fork)


class RankedBlocks:
    """A `BlockMover` over all ranks' pools: a block's bytes are its ranks' shares, concatenated.

    Ranks exchange shares in memory that all their processes have mapped, some blocks at a time.
    """

    def __init__(self, own: DeviceBlocks, ranks: Ranks, shared_fd: int) -> None:
        self._own, self._ranks = own, ranks
        self.bytes_per_block = own.bytes_per_block * ranks.num_ranks
        self._places: Bytes = map_places(shared_fd, self.bytes_per_block)
        own.pin(self._places.reshape(-1).data)
        self._fence = 0

    def fence(self) -> None:
        """Set a fence on all ranks."""
        with on_all(self._ranks, Fence(self._fence + 1)):
            self._own.fence()
            self._fence += 1

    def read_block(self, block: int) -> memoryview:
        """The bytes of a block, valid until the next call."""
        self._move([block], is_store=True)
        return self._places[0].data.toreadonly()

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        """Have `fill` write its bytes."""
        is_there = fill(self._places[0].data)
        if is_there:
            self._move([block], is_store=False)
        return is_there

    def read_into(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Copy blocks to host memory, as many at once as there are shared places."""
        for some in self._in_turns(places):
            self._move([block for block, _ in some], is_store=True)
            for place, (_, target) in enumerate(some):
                target[:] = self._places[place].data

    def write_from(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Copy blocks from host memory."""
        for some in self._in_turns(places):
            for place, (_, source) in enumerate(some):
                self._places[place] = np.frombuffer(source, np.uint8)
            self._move([block for block, _ in some], is_store=False)

    def pin(self, memory: memoryview) -> None:
        """Not pinned: copies go through shared places."""

    def unpin(self) -> None:
        """Unpin before the shared memory is freed."""
        self._own.unpin()

    def _in_turns(self, places: Sequence[tuple[int, memoryview]]) -> list[Sequence[tuple[int, memoryview]]]:
        count = len(self._places)
        return [places[first : first + count] for first in range(0, len(places), count)]

    def _move(self, blocks: Sequence[int], *, is_store: bool) -> None:
        def move_own() -> None:
            move_share(self._own, self._places, 0, blocks, is_store=is_store)

        self._ranks.move(MoveBlocks(self._fence, is_store, tuple(blocks)), move_own)


class RankedForward(DeviceForward):
    """A `Forward` over all ranks. An error on one rank ends all."""

    def __init__(
        self,
        arithmetic: LeadArithmetic,
        rows: LeadRows,
        stop_ids: frozenset[int],
        ranks: Ranks,
        shared_fd: int,
        states: Callable[[], tuple[RankState, ...]],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(arithmetic, rows, stop_ids)
        rows.ranks = ranks
        self.blocks: RankedBlocks = RankedBlocks(DeviceBlocks(self.pool), ranks, shared_fd)  # type: ignore[assignment]
        self._ranks, self._states, self._on_close = ranks, states, on_close

    def check(self) -> None:
        """Raise DeviceLost if a rank is lost."""
        self._ranks.check()

    def ranks(self) -> tuple[RankState, ...]:
        """The states of all ranks."""
        return self._states()

    def wake_when_lost(self, wake: Callable[[], None]) -> None:
        """`wake` is called once, by another thread."""
        self._ranks.wake_when_lost(wake)

    def read_cold_from(self, memory: SlotMemory) -> ColdReach:
        """None: no rank reads another's shares."""
        return ColdReach()

    def finish(self) -> None:
        """Called when a step has ended. Raises DeviceLost if it failed: its results are invalid."""
        self._ranks.check()
        self._ranks.note_step(has_ended=True)

    def describe_trouble(self, error: Exception) -> Trouble | None:
        """Raises DeviceLost, because the other ranks are inside the step."""
        self._ranks.check()
        if super().describe_trouble(error) is not None:
            raise self._ranks.why(error) from error
        return None

    def close(self) -> None:
        """End the other ranks, if their lifetime is this one's. Idempotent."""
        self.blocks.unpin()
        self._on_close()
