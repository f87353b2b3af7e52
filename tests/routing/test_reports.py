"""Frames of reports: what goes in comes out, in whatever pieces; what is no report is refused."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequest
from octavo.memory.changes import Place
from octavo.routing import reports
from octavo.routing.reports import Changes, Hello, Load, ReportSplitter, Shared, StepModel, encode_frame

HELLO = Hello(1, 3, "replica-3", "tiny", "ab" * 16, (b"model", b"int8"), 16, 8192, 1024, 64, 512)
LOAD = Load(
    3, 2, 900, (0.0, 0.5), 4_000, 17, 64, True, False, StepModel(1e-4, 1e-9, 1.7, 0.001, 0.5), ("ann",)
)
CHANGES = Changes(Place.HOST, b"a" * 16, b"b" * 8, cleared=True)
SHARED = Shared(b"c" * 16)


@given(st.lists(st.sampled_from([HELLO, LOAD, CHANGES, SHARED]), max_size=6), st.lists(st.integers(0, 400)))
def test_reports_survive_any_cut_of_the_stream(sent: list[reports.Report], cuts: list[int]) -> None:
    data, reader, received = b"".join(map(encode_frame, sent)), ReportSplitter(), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        received += reader.feed(data[start:stop])
    assert received == sent


def test_names_are_packed_as_their_last_eight_bytes() -> None:
    names = [bytes(range(i, i + 32)) for i in range(3)]
    assert list(reports.unpack_names(reports.pack_names(names))) == [
        int.from_bytes(name[-8:], "little") >> 4 for name in names
    ]


@pytest.mark.parametrize(
    "report",
    [
        Changes(Place.POOL, added=bytes(8 * reports.NAMES_MAX + 8)),
        Shared(bytes(8 * reports.NAMES_MAX + 8)),
        msgspec.structs.replace(HELLO, version=2),
        msgspec.structs.replace(HELLO, block_size=0),
        msgspec.structs.replace(LOAD, num_running=-1),
        msgspec.structs.replace(LOAD, prefill_s=(0.0,) * 33),
        msgspec.structs.replace(LOAD, step_model=StepModel(float("nan"), 0.0)),
        msgspec.structs.replace(LOAD, step_model=StepModel(0.0, float("inf"))),
    ],
)
def test_values_beyond_their_bounds_are_refused(report: reports.Report) -> None:
    with pytest.raises(InvalidRequest, match="no report"):
        ReportSplitter().feed(encode_frame(report))


@pytest.mark.parametrize(("report", "letter", "field"), [(CHANGES, b"b", "removed"), (SHARED, b"c", "names")])
def test_a_part_of_a_name_is_refused(report: reports.Report, letter: bytes, field: str) -> None:
    data = encode_frame(report)
    cut = data.rindex(letter)
    data = data[:cut] + data[cut + 1 :]
    size = data.index(letter) - 1  # a byte with the field's length
    data = data[:size] + bytes([data[size] - 1]) + data[size + 1 :]
    data = (len(data) - 4).to_bytes(4, "little") + data[4:]
    with pytest.raises(InvalidRequest, match=f"{field} has {data[size]} bytes; allowed: a multiple of 8"):
        ReportSplitter().feed(data)


@given(st.binary(max_size=64))
def test_other_bytes_are_refused_or_waited_for(data: bytes) -> None:
    with suppress(InvalidRequest):
        assert ReportSplitter().feed(data) == []


def test_a_frame_too_long_is_refused_before_it_is_kept() -> None:
    header = (reports.FRAME_BYTES_MAX + 1).to_bytes(4, "little")
    with pytest.raises(InvalidRequest, match="allowed: 262,144"):
        ReportSplitter().feed(header)
    assert len(encode_frame(Changes(Place.POOL, bytes(65_536), bytes(65_536)))) < reports.FRAME_BYTES_MAX


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_prompts_positions_read_those_before_them(start: int, length: int) -> None:
    stop = start + length
    assert StepModel(0.0, 1.0).prefill_s(start, stop) == sum(range(start + 1, stop + 1))
    assert StepModel(2.0, 0.0).prefill_s(start, stop) == 2 * length
