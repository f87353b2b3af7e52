"""The reports of a replica, as frames of a stream.

    Hello                        once, first: the replica's identity
    Changes, Changes, ...        all names that it holds, then those that it gains and loses
    Shared                       the names that its operator shares with all tenants, after each change
    Load                         its queue and its step times, ten times a second while it works

    frame    [ length, 4 bytes, little endian | msgpack ]

A name is written as its last 8 bytes. No report has a token or a text. Every field is bounded, and decoding
checks the bounds: other bytes raise InvalidRequest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import msgspec

from octavo.errors import InvalidRequest
from octavo.memory.changes import Place

VERSION = 1
NAME_BYTES = 8
NAMES_MAX = 8192  # added, and removed, in one report
FRAME_BYTES_MAX = 1 << 18
LENGTHS = 32  # classes of prompt lengths, by the number of bits
_HEADER_BYTES = 4

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
Names = Annotated[bytes, msgspec.Meta(max_length=NAMES_MAX * NAME_BYTES)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A replica's identity. Replicas with equal `fingerprint` give equal prefixes of a tenant equal names;
    these begin at `root_name(tenant's key, *root_parts)`."""

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    slot: Count
    name: _Text
    model: _Text
    fingerprint: Annotated[str, msgspec.Meta(max_length=128)]
    root_parts: Annotated[
        tuple[Annotated[bytes, msgspec.Meta(max_length=4096)], ...], msgspec.Meta(max_length=64)
    ]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    context_length: Count
    max_queue: Count
    max_seqs: Count
    step_tokens: Count
    http_url: _Text = ""  # set by the reader


class Changes(msgspec.Struct, frozen=True, tag="changes"):
    """Names that left a place, then names that came to it; the last change of a name counts. `cleared`: all
    earlier reports, of every place, are void."""

    place: Place
    added: Names = b""
    removed: Names = b""
    cleared: bool = False

    def __post_init__(self) -> None:
        _check_names("added", self.added)
        _check_names("removed", self.removed)


class Shared(msgspec.Struct, frozen=True, tag="shared"):
    """All names of blocks that the operator shares with all tenants. In a tenant's chain they come before the
    tenant's own names."""

    names: Names

    def __post_init__(self) -> None:
        _check_names("names", self.names)


class StepModel(msgspec.Struct, frozen=True):
    """The times of steps in seconds, as `step/step_times.py` has measured them."""

    position_s: Seconds  # for each position of a prompt
    read_s: Seconds  # for each earlier position that a prompt's position reads
    stretch: Annotated[float, msgspec.Meta(ge=1.0, le=1e6)] = (
        1.0  # a prompt's time while others decode / its time alone
    )
    load_s: Seconds = 0.0  # for each block from an offload tier
    end_gap_s: Seconds = 0.0  # between the ends of two requests, while others wait
    decode_s: Seconds = 0.0  # of a step with one decoding sequence more than now
    row_s: Seconds = 0.0  # for each further decoding sequence

    def prefill_s(self, start: int, stop: int) -> float:
        """The time of the positions [start, stop) of a prompt, each of which reads all earlier ones,
        alone."""
        length = stop - start
        return length * self.position_s + (length * start + length * (length + 1) // 2) * self.read_s


class Load(msgspec.Struct, frozen=True, tag="load"):
    """A replica's work. `prefill_s[i]`: seconds of prefill for the running and waiting prompts that have n
    positions left, where n has i bits: short prompts are computed before long ones."""

    num_running: Count
    num_waiting: Count
    prefill_left: Count  # prompt positions of running and waiting requests still to be computed
    prefill_s: Annotated[tuple[Seconds, ...], msgspec.Meta(max_length=LENGTHS)]
    decode_left: Count  # tokens that running and waiting requests may still generate
    free_blocks: Count  # held by no request
    num_blocks: Count
    is_full: bool = False  # the queue takes no more
    is_draining: bool = False
    step_model: StepModel | None = None  # None: too few measured steps
    tenants_full: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=4096)] = ()
    prompts: Annotated[tuple[Count, ...], msgspec.Meta(max_length=LENGTHS)] = ()  # their number, by class


Report = Hello | Changes | Shared | Load

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


def _check_names(what: str, data: bytes) -> None:
    if len(data) % NAME_BYTES:
        raise ValueError(f"{what} has {len(data):,} bytes; allowed: a multiple of {NAME_BYTES}")


def pack_names(names: Iterable[bytes]) -> bytes:
    """The last 8 bytes of each name, one after another."""
    return b"".join([name[-NAME_BYTES:] for name in names])


def shared_of(names: Iterable[bytes]) -> Shared:
    """The report of shared names, of `NAMES_MAX` of them if there are more."""
    return Shared(pack_names(islice(names, NAMES_MAX)))


def unpack_names(data: bytes) -> list[int]:
    """The names of `pack_names` as integers of 60 bits, which take two thirds of the memory of longer
    ones."""
    return [name >> 4 for name in array("Q", data)]


def encode_frame(report: Report) -> bytes:
    """A whole frame. Bounds are checked when it is decoded."""
    data = _encoder.encode(report)
    return len(data).to_bytes(_HEADER_BYTES, "little") + data


class ReportSplitter:
    """Splits a stream into reports. Between two calls it buffers at most one frame."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Report]:
        """The reports that these bytes complete. Raises InvalidRequest for other bytes; the reader is then
        unusable."""
        buffer, reports, start = self._data, list[Report](), 0
        buffer += data
        while len(buffer) - start >= _HEADER_BYTES:
            body = start + _HEADER_BYTES
            length = int.from_bytes(buffer[start:body], "little")
            if length > FRAME_BYTES_MAX:
                raise InvalidRequest(f"a frame of {length:,} bytes; allowed: {FRAME_BYTES_MAX:,}")
            if len(buffer) < body + length:
                break
            reports.append(_decode(bytes(buffer[body : body + length])))
            start = body + length
        del buffer[:start]
        return reports


def _decode(data: bytes) -> Report:
    try:
        report: Report = _decoder.decode(data)
        return report
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the frame is no report: {error}") from None
