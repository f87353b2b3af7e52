"""Traces of three forms are read, or refused with the line that is wrong; prompts share what ids share."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from octavo.bench import traces
from octavo.bench.traces import TraceRequest, TrafficTrace, prompts_of, read_trace, scaled
from octavo.errors import ConfigError

MOONCAKE = (
    '{"timestamp": 3000, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]}\n'
    '{"timestamp": 2500, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,374,44\r\n"
    "2023-11-16 18:17:04.0319600,396,109\r\n"
)
AZURE_HEADER, AZURE_ROW, _ = AZURE.splitlines()


def written(tmp_path: Path, text: str | bytes, name: str = "it.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_mooncakes_lines_are_read_by_their_arrival(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE))
    assert (trace.name, trace.block_tokens) == ("it.jsonl", 512)
    assert trace.requests == (
        TraceRequest(0.0, 1100, 5, (1, 2, 3)),
        TraceRequest(0.5, 1024, 7, (1, 2)),
    )


@pytest.mark.parametrize("before", ["", "\N{ZERO WIDTH NO-BREAK SPACE}", "\n\n"])
def test_azures_table_is_read(tmp_path: Path, before: str) -> None:
    first, second = read_trace(written(tmp_path, before + AZURE, "it.csv")).requests
    assert first == TraceRequest(0.0, 374, 44)
    assert (second.prompt, second.output) == (396, 109)
    assert second.arrival_s == pytest.approx(0.052, abs=1e-6)


def test_azures_columns_may_stand_in_another_order_with_a_time_zone(tmp_path: Path) -> None:
    text = (
        "GeneratedTokens,TIMESTAMP,Model,ContextTokens\n"
        "9,2024-05-10 00:00:01.5+00:00,a,3\n8,2024-05-10 01:00:01+01:00,b,2\n"
    )
    trace = read_trace(written(tmp_path, text))
    assert trace.requests == (TraceRequest(0.0, 2, 8), TraceRequest(0.5, 3, 9))


def test_lines_of_bench_memory_are_read(tmp_path: Path) -> None:
    text = '{"prompt": 10, "output": 5, "arrival": 0.5}\n\n{"prompt": 3, "output": 1}\n'
    trace = read_trace(written(tmp_path, text))
    assert trace.requests == (TraceRequest(0.0, 3, 1), TraceRequest(0.5, 10, 5))
    assert read_trace(written(tmp_path, text), most=1).requests == (TraceRequest(0.0, 10, 5),)


def moon(**fields: object) -> str:
    return json.dumps({"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1]} | fields)


@pytest.mark.parametrize(
    "text, says",
    [
        (
            "nonsense",
            "line 1: nonsense is not the first line of a trace; allowed: .*hash_ids.*arrival.*TIMESTAMP",
        ),
        ("[1, 2]", "line 1"),
        ("[" * 100_000, "line 1"),
        ("a\x1b[31m", "line 1: a\N{REPLACEMENT CHARACTER}"),
        ("", "no request"),
        (AZURE_HEADER, "no request"),
        ('{"prompt": 0, "output": 5}', "n from 1"),
        ('{"prompt": 1.5, "output": 5}', "n from 1"),
        ('{"prompt": true, "output": 5}', "n from 1"),
        ('{"prompt": 5}', "`output`.*n from 1"),
        ('{"prompt": 10000001, "output": 5}', "10,000,000"),
        ('{"prompt": 5, "output": 5, "arrival": -1}', "s from 0"),
        ('{"prompt": 5, "output": 5, "arrival": NaN}', "s from 0"),
        ('{"prompt": 5, "output": 5, "arrival": 1e9}', "s from 0"),
        ('{"prompt": 5, "output": 5, "more": ' + "[" * 100_000, "line 1"),
        ('{"prompt": 5, "output": 5}\n' + moon(), "line 2: .*input_length.*n from 1"),
        (moon() + "\n" + moon(timestamp=-1), "line 2: .*timestamp.*ms from 0"),
        (moon(timestamp=1e300), "ms from 0"),
        (moon(output_length=0), "output_length"),
        (moon(input_length=2**70), "input_length"),
        (moon(hash_ids=[1, 2, 3]), "3 ids for 600 tokens.*an id for each 512"),
        (moon(hash_ids=["a"]), "hash_ids"),
        (moon(hash_ids=[2**64]), "hash_ids"),
        (f"{AZURE_HEADER}\n{AZURE_ROW},1", "line 2: .*4 columns"),
        (f"{AZURE_HEADER}\nyesterday,1,1", "line 2: yesterday,1,1 .*a time such as"),
        (f"{AZURE_HEADER}\n2023-11-16 18:17:03,-1,1", "'-1' tokens"),
        (f"{AZURE_HEADER}\n2023-11-16 18:17:03,1,", "'' tokens"),
        (f"{AZURE_HEADER}\n2023-11-16 18:17:03,1_0,1", "'1_0' tokens"),
        (f"{AZURE_HEADER}\n2023-11-16 18:17:03,1,99999999999999", "tokens from 1 to 10,000,000"),
        (f"{AZURE_HEADER}\n2023-11-16 18:17:03,1,\N{ARABIC-INDIC DIGIT ONE}", "line 2"),
        (f"{AZURE_HEADER}\n1900-01-01 00:00:00,1,1\n2023-11-16 18:17:03,1,1", "lasts 3,9"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number_and_what_is_allowed(
    tmp_path: Path, text: str, says: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=says) as error:
        read_trace(path)
    assert str(path) in str(error.value)


def test_requests_that_are_too_long_for_a_caller_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": 2000, "output": 49}')
    assert read_trace(path, longest=2049).requests[0].prompt == 2000
    with pytest.raises(ConfigError, match=r"line 1.*--max-length"):
        read_trace(path, longest=2048)


@pytest.mark.parametrize(
    "name, bound, says",
    [
        ("REQUESTS_MAX", 1, "more than 1 requests"),
        ("BLOCKS_MAX", 4, "line 2: more than 4 ids"),
        ("LINE_BYTES_MAX", 60, "line 1: .* is too long; allowed: up to 60 bytes"),
        ("FILE_BYTES_MAX", 99, "too large; allowed: up to 99 bytes"),
    ],
)
def test_files_lines_and_counts_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bound: int, says: str
) -> None:
    path = written(tmp_path, MOONCAKE)
    monkeypatch.setattr(traces, name, bound)
    with pytest.raises(ConfigError, match=says):
        read_trace(path)


def test_the_rest_of_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, MOONCAKE + "nonsense")
    assert len(read_trace(path, most=2).requests) == 2
    monkeypatch.setattr(traces, "REQUESTS_MAX", 1)
    assert len(read_trace(path, most=2).requests) == 1


def test_an_endless_file_is_refused_where_its_bound_is() -> None:
    with pytest.raises(ConfigError, match=r"line 1: .*too long"):
        read_trace(Path("/dev/zero"))


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl")


def drawn_trace(seed: int, block_tokens: int) -> TrafficTrace:
    """Prompts that branch off each other at blocks, the last one whole or partial, or have no ids at all."""
    generator = random.Random(seed)
    paths: list[tuple[int, ...]] = [()]
    new, requests = itertools.count(), []
    for arrival in range(12):
        path = (*generator.choice(paths), *(next(new) for _ in range(generator.randrange(1, 4))))
        paths.append(path)
        length = len(path) * block_tokens - generator.choice([0, 0, 1, block_tokens - 1])
        own = generator.choice([0, 0, 5])  # tokens behind the last id
        whole = path if own == 0 else path[: length // block_tokens]
        requests.append(TraceRequest(float(arrival), length + own, 1, whole))
    return TrafficTrace("drawn", (*requests, TraceRequest(20.0, 40, 1)), block_tokens)


@pytest.mark.parametrize("seed", range(10))
def test_prompts_share_exactly_the_blocks_whose_ids_are_equal(seed: int) -> None:
    trace = drawn_trace(seed, block_tokens=8)
    prompts = list(prompts_of(trace, seed, 30_000))
    assert [len(prompt) for prompt in prompts] == [request.prompt for request in trace.requests]
    assert all(100 <= token < 30_000 for prompt in prompts for token in prompt)
    for (one, a), (other, b) in itertools.combinations(zip(trace.requests, prompts, strict=True), 2):
        equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
        ids = zip(one.blocks, other.blocks, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ids))
        assert equal >= min(8 * shared, one.prompt, other.prompt)
        assert equal < 8 * (shared + 1)


def test_the_seed_decides_the_tokens() -> None:
    trace = drawn_trace(1, 8)
    assert list(prompts_of(trace, 1, 500)) == list(prompts_of(trace, 1, 500))
    for a, b in zip(prompts_of(trace, 1, 30_000), prompts_of(trace, 2, 30_000), strict=True):
        assert a[:4] != b[:4]


def test_a_vocabulary_of_few_tokens_is_used_as_it_is() -> None:
    assert set(next(prompts_of(drawn_trace(1, 8), 0, 2))) == {1}


def test_a_trace_is_cut_sped_up_and_fitted_to_a_context() -> None:
    trace = TrafficTrace(
        "it",
        (
            TraceRequest(0.0, 20, 4, (1, 2, 3)),
            TraceRequest(3.0, 5, 30, (1,)),
            TraceRequest(9.0, 1, 1),
        ),
        block_tokens=8,
    )
    assert scaled(trace) == trace
    assert [r.arrival_s for r in scaled(trace, rate=2.0).requests] == [0.0, 1.5, 4.5]
    assert len(scaled(trace, seconds=3.0, rate=10.0).requests) == 2
    assert len(scaled(trace, seconds=0.001).requests) == 1
    assert scaled(trace, longest=16).requests == (
        TraceRequest(0.0, 12, 4, (1, 2)),
        TraceRequest(3.0, 1, 15, (1,)),
        TraceRequest(9.0, 1, 1),
    )
