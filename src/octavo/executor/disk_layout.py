"""The layout of the blocks file: where each piece of each slot lies.

    file      [ stripe 0 | stripe 1 | stripe 2 | ... ]             `lanes` slots in each
    stripe    [ piece 0 of all its slots | piece 1 of all its slots | ... ]
    piece p   [ lane 0 | lane 1 | ... | lane L - 1 ]               `piece_bytes` each

A piece is one layer of a block, so one layer of consecutive slots is one contiguous range. Padding after the
last piece is never read. If a block is one piece, and there is one lane, slots follow one another.

The number of lanes is chosen for a new namespace (`choose_lanes`) and never changed: that would move every
block. The layout does not know what the bytes are, or which slots are in use.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES_MIN, LANES_MAX = 16, 256
_RUN_BYTES = 1 << 20  # of one layer, read at once: enough to reach a medium's rate


@dataclass(frozen=True, slots=True)
class Extents:
    """An open blocks file, and where the pieces of its slots lie in it: all that a reader of pieces needs. A
    slot is `pieces * piece_bytes` long, at least a block. `fd` is valid until the store is closed."""

    fd: int
    lanes: int
    pieces: int
    piece_bytes: int
    num_slots: int  # a multiple of lanes

    @property
    def stripe_bytes(self) -> int:
        """Bytes of all slots of a stripe."""
        return self.pieces * self.lanes * self.piece_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of all stripes."""
        return self.num_slots // self.lanes * self.stripe_bytes

    def offset(self, slot: int, piece: int) -> int:
        """The offset of a piece of a slot."""
        stripe, lane = divmod(slot, self.lanes)
        return stripe * self.stripe_bytes + (piece * self.lanes + lane) * self.piece_bytes

    def num_present(self, length: int) -> int:
        """The number of slots, from the first, whose stripes lie wholly within a file of so many bytes."""
        return length // self.stripe_bytes * self.lanes


def choose_lanes(piece_bytes: int, num_slots: int) -> int:
    """For a new namespace: a power of two, for runs of up to 1 MiB where that makes 16 to 256 lanes. Never
    more than there are slots, nor, beyond 8, than an eighth of them: few slots are lost where their number
    is no multiple of it."""
    lanes = min(max(_RUN_BYTES // piece_bytes, LANES_MIN), LANES_MAX, num_slots, max(8, num_slots // 8))
    return 1 << (lanes.bit_length() - 1)


def are_lanes(lanes: object) -> bool:
    """Whether `choose_lanes` may have returned that."""
    return isinstance(lanes, int) and 1 <= lanes <= LANES_MAX and lanes & (lanes - 1) == 0
