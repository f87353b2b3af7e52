"""The trace that a server writes: lengths and keyed ids of what generated tokens, and never an error."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from tests.engine.served import FACTS, LetterTokenizer, Turnstile, read
from tests.engine.test_client import greedy
from tests.tiny import tiny_engine
from tests.waiting import until
from tests.wanted import request_for

from octavo.bench.traces import TraceRequest, read_trace
from octavo.cli import serve as serve_command
from octavo.engine.traffic import BLOCK_TOKENS, TrafficWriter
from octavo.errors import ConfigError
from octavo.kernels.native_ops import NativeOps
from octavo.params import BeamParams, Pooling, SamplerParams
from octavo.retention.client_pins import PinRequest
from octavo.server.settings import ServerSettings
from octavo.serving.client import EngineClient
from octavo.types import Request

WRITE = os.write
PROMPT = tuple(range(2 * BLOCK_TOKENS + 7))


def serve_traced(path: Path, **options: object) -> EngineClient:
    """The tiny model, whose traffic is written."""
    engine = tiny_engine(NativeOps(), **options)  # type: ignore[arg-type]
    engine.executor = Turnstile(engine.executor)
    traffic = TrafficWriter.open(path)
    return EngineClient.over(engine, LetterTokenizer(), FACTS, 1000, traffic=traffic)  # type: ignore[arg-type]


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ids_of(path: Path, *requests: Request) -> list[tuple[int, ...]]:
    """The ids that one server writes for these."""
    writer = TrafficWriter.open(path)
    for at, request in enumerate(requests):
        writer.write(request, float(at), 1)
    writer.close()
    return [request.blocks for request in read_trace(path).requests]


def test_each_request_that_generated_has_a_line_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    llm = serve_traced(path)
    beams = SamplerParams(max_tokens=3, temperature=0.0, beams=BeamParams(2), ignore_eos=True)

    async def work() -> None:
        await read(await llm.submit(request_for([30] * 40, greedy(5), tenant="alice")))
        await read(await llm.submit(request_for([31] * 20, greedy(4), n=3)), 3)
        await read(await llm.submit(request_for([32] * 10, beams, n=2)), 2)
        await until(lambda: len(lines_of(path)) == 3)

    try:
        asyncio.run(work())
    finally:
        llm.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = lines_of(path)
    # The choices of a request are one line, with their tokens together.
    lengths = [(line["input_length"], line["output_length"]) for line in found]
    assert lengths == [(40, 5), (20, 12), (10, 6)]
    assert all(set(line) == {"timestamp", "input_length", "output_length", "hash_ids"} for line in found)
    assert "alice" not in path.read_text()


def test_what_generates_nothing_for_a_client_has_no_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    llm = serve_traced(path)

    async def work() -> None:
        await llm.control.pin(PinRequest("it", tuple([30] * 40), 60.0))
        await read(await llm.submit(request_for([30] * 40, SamplerParams(pooling=Pooling.LAST))))
        gate = llm.engine.executor
        assert isinstance(gate, Turnstile)
        gate.failures = 1  # of a step: it ends without a token
        await read(await llm.submit(request_for([31] * 8, greedy(5))))
        await read(await llm.submit(request_for([32] * 8, greedy(5))))

    try:
        asyncio.run(work())
    finally:
        llm.close()
    assert [line["input_length"] for line in lines_of(path)] == [8]


def test_a_request_that_was_cancelled_has_the_tokens_that_it_got(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    llm = serve_traced(path)

    async def work() -> None:
        stream = await llm.submit(request_for([30] * 8, greedy(400)))
        async for delta in stream:
            if delta.tokens:
                break
        stream.cancel()
        await until(lambda: lines_of(path))

    try:
        asyncio.run(work())
    finally:
        llm.close()
    (line,) = read_trace(path).requests
    assert 1 <= line.output < 400


def test_a_trace_is_read_back_by_arrival_and_shares_prefix_blocks(tmp_path: Path) -> None:
    writer = TrafficWriter.open(path := tmp_path / "trace.jsonl")
    writer.write(Request(prompt=PROMPT), 3.5, 9)
    writer.write(Request(prompt=(*PROMPT[:BLOCK_TOKENS], 5)), 1.25, 8)
    writer.write(Request(prompt=PROMPT[:BLOCK_TOKENS]), 1.0, 7)
    writer.write(Request(prompt=(7, *PROMPT[1:])), 2.0, 6)
    writer.write(Request(prompt=PROMPT), 4.0, 0)
    writer.close()
    whole, branch, other, longest = read_trace(path).requests
    assert whole == TraceRequest(0.0, 512, 7, longest.blocks[:1])
    assert (branch.arrival_s, branch.prompt, branch.output) == (0.25, 513, 8)
    assert branch.blocks[0] == whole.blocks[0]
    assert len(longest.blocks) == 3
    assert len({*branch.blocks, *other.blocks, *longest.blocks}) == 1 + 1 + 3 + 2
    assert all(0 <= block < 2**53 for block in longest.blocks)


def test_equal_prompts_of_two_tenants_or_salts_have_no_equal_id(tmp_path: Path) -> None:
    plain = Request(prompt=PROMPT)
    others = [
        replace(plain, tenant="alice"),
        replace(plain, tenant="alic", cache_salt="e"),
        replace(plain, tenant="ali", cache_salt="ce"),
        replace(plain, cache_salt="alice"),
        replace(plain, cache_salt="\ud800"),
    ]
    first, again, *found = ids_of(tmp_path / "it", plain, plain, *others)
    assert first == again
    assert len({block for ids in (first, *found) for block in ids}) == 3 * 6


def test_ids_of_another_run_are_others(tmp_path: Path) -> None:
    one, other = (ids_of(tmp_path / name, Request(prompt=PROMPT))[0] for name in ("one", "other"))
    assert not {*one} & {*other}


@pytest.mark.parametrize("bound", [{"lines_max": 2}, {"bytes_max": 250}])
def test_a_trace_that_is_full_ends_with_a_whole_line_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bound: dict[str, int]
) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TrafficWriter(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), path, **bound)
    for _ in range(5):
        writer.write(Request(prompt=PROMPT), 1.0, 3)
    writer.close()
    assert len(lines_of(path)) == 2
    assert caplog.text.count("ends here: it is full") == 1


def failing(descriptor: int, data: Sequence[int]) -> int:
    raise OSError(errno.ENOSPC, "No space")


@pytest.mark.parametrize("take", [failing, lambda descriptor, data: WRITE(descriptor, data[:9])])
def test_a_disk_that_fails_ends_the_trace_behind_a_whole_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, take: object
) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TrafficWriter.open(path)
    writer.write(Request(prompt=(1, 2)), 1.0, 3)
    with mock.patch("octavo.engine.traffic.os.write", take):
        writer.write(Request(prompt=(1, 2)), 1.0, 3)
    writer.write(Request(prompt=(1, 2)), 1.0, 3)
    writer.close()
    assert len(lines_of(path)) == 1
    assert caplog.text.count("ends here") == 1


def test_a_trace_that_is_there_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("of the run before")
    TrafficWriter.open(path).close()
    assert (tmp_path / "trace.jsonl.1").read_text() == "of the run before"
    with pytest.raises(ConfigError, match=r"trace_file is .*/none/trace, which cannot be written"):
        TrafficWriter.open(tmp_path / "none" / "trace")


def test_the_setting_opens_the_file_before_a_model_is_loaded(tmp_path: Path) -> None:
    assert serve_command.traffic_of(ServerSettings()) is None
    traffic = serve_command.traffic_of(ServerSettings(trace_file=tmp_path / "trace.jsonl"))
    assert traffic is not None
    traffic.close()
    with pytest.raises(ConfigError, match="trace_file"):
        serve_command.traffic_of(ServerSettings(trace_file=tmp_path / "none" / "it"))
