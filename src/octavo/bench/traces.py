"""Traces of requests: arrival, lengths of prompt and output, and shared blocks of each.

`read_trace` distinguishes three forms by the first line of a file:

    Mooncake        {"timestamp": 27482, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}
    Azure           TIMESTAMP,ContextTokens,GeneratedTokens
                    2023-11-16 18:17:03.9799600,374,44
    bench memory    {"prompt": 161, "output": 338, "arrival": 0.5}

Mooncake's timestamps are in milliseconds, and each id names 512 tokens of a prompt: equal ids mean equal
blocks after equal prefixes, and the last block may be partial. `octavo serve --trace-file` writes this form.
The other two have no shared blocks. None has text, so `prompts_of` generates tokens: those of a block are a
function of a seed and its id.

This module knows no endpoint and no engine. Sources: Qin et al. 2025 (Mooncake, FAST), section 4; Patel et
al. 2024 (Splitwise, ISCA), section 3.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from octavo.bench.workloads import FIRST_TOKEN
from octavo.engine.traffic import BLOCK_TOKENS
from octavo.errors import ConfigError

REQUESTS_MAX = 100_000
TOKENS_MAX = 10_000_000  # of a prompt, and of an output
BLOCKS_MAX = 10_000_000  # ids of all requests together
FILE_BYTES_MAX = 1 << 30
LINE_BYTES_MAX = 1 << 20
ARRIVAL_MAX_S = 1e9
_TIMESTAMP_MAX_MS = 1e15
_SHOWN = 80  # characters of a line in an error
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `blocks` are the ids of the prompt's first blocks, each of `block_tokens` tokens; equal
    ids mean equal blocks after equal prefixes, and the last may be partial. The tokens after them are not
    shared."""

    arrival_s: float  # from the trace's first request
    prompt: int  # tokens
    output: int  # tokens
    blocks: tuple[int, ...] = ()
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class TrafficTrace:
    """A display name, and requests by arrival, the first at 0."""

    name: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int = BLOCK_TOKENS


class _MooncakeFields(msgspec.Struct, frozen=True, gc=False):
    """A line of Mooncake's form."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=_TIMESTAMP_MAX_MS)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)], ...] = ()
    tenant: Annotated[str, msgspec.Meta(max_length=64)] = ""  # ours: for `octavo plan --what-if tenants=FILE`


class _LengthFields(msgspec.Struct, frozen=True, gc=False):
    """A line of `bench memory`."""

    prompt: _Tokens
    output: _Tokens
    arrival: Annotated[float, msgspec.Meta(ge=0, lt=ARRIVAL_MAX_S)] = 0.0


@dataclass(frozen=True, slots=True)
class _Form:
    """Parses a line to a request, whose arrival is on the file's clock. `parse` raises ValueError."""

    allowed: str
    parse: Callable[[bytes], TraceRequest]
    has_header: bool = False


def read_trace(path: Path, *, most: int | None = None, longest: int | None = None) -> TrafficTrace:
    """The requests of a file, by arrival.

    `most`: read only so many from the file's beginning; without it a file of more than `REQUESTS_MAX` is
    refused. `longest`: the most tokens of prompt and output together. Raises ConfigError with the wrong line
    and the allowed values.
    """
    limit = REQUESTS_MAX if most is None else min(most, REQUESTS_MAX)
    requests: list[TraceRequest] = []
    try:
        with path.open("rb") as file:
            # One more than the limit shows that there are too many.
            requests += islice(_requests(file, path, longest), limit + (most is None))
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be read: {error.strerror or error}") from None
    if len(requests) > limit:
        raise ConfigError(
            f"--trace {path} has more than {limit:,} requests; allowed: up to {limit:,} (give a part of it)"
        )
    if not requests:
        raise ConfigError(f"--trace {path} has no request; allowed: at least one line")
    requests.sort(key=lambda request: request.arrival_s)
    first, last = requests[0].arrival_s, requests[-1].arrival_s
    if last - first > ARRIVAL_MAX_S:
        raise ConfigError(
            f"--trace {path} lasts {last - first:,.0f} s; allowed: up to {ARRIVAL_MAX_S:,.0f} s from its "
            "first request to its last"
        )
    shifted = (replace(request, arrival_s=request.arrival_s - first) for request in requests)
    return TrafficTrace(path.name, tuple(shifted))


def scaled(
    trace: TrafficTrace,
    *,
    rate: float | None = None,
    seconds: float | None = None,
    longest: int | None = None,
) -> TrafficTrace:
    """The requests of a trace with these changes, in this order.

    `seconds`: only those within so many seconds of the first, which always stays. `rate`: they arrive so many
    times as fast. `longest`: prompt and output have at most so many tokens together, 2 at least: prompts are
    cut at the end, down to one token, before outputs are.
    """
    requests = trace.requests
    if seconds is not None:
        requests = tuple(request for request in requests if request.arrival_s <= seconds)
    if rate is not None:
        requests = tuple(replace(request, arrival_s=request.arrival_s / rate) for request in requests)
    if longest is not None:
        requests = tuple(_shortened(request, longest, trace.block_tokens) for request in requests)
    return replace(trace, requests=requests)


def prompts_of(trace: TrafficTrace, seed: int, vocab_size: int) -> Iterator[tuple[int, ...]]:
    """The token ids of each request's prompt, generated lazily. O(tokens).

    A block's tokens are a function of the seed and its id, so requests share exactly the blocks with equal
    ids. Tokens after the last id are a function of the seed and the request's index in the trace.
    """
    for index, request in enumerate(trace.requests):
        tokens: list[int] = []
        for block in request.blocks:
            count = min(trace.block_tokens, request.prompt - len(tokens))
            tokens += _tokens(f"{seed} block {block}", count, vocab_size)
        tokens += _tokens(f"{seed} request {index}", request.prompt - len(tokens), vocab_size)
        yield tuple(tokens)


def _tokens(source: str, count: int, vocab_size: int) -> list[int]:
    """The first `count` token ids of a stream that is a function of `source`."""
    low = min(FIRST_TOKEN, vocab_size - 1)
    numbers = array("I", hashlib.shake_128(source.encode()).digest(4 * count))
    return [low + number % (vocab_size - low) for number in numbers]


def _shortened(request: TraceRequest, longest: int, block_tokens: int) -> TraceRequest:
    if request.prompt + request.output <= longest:
        return request
    output = min(request.output, longest - 1)
    prompt = min(request.prompt, longest - output)
    return replace(request, prompt=prompt, output=output, blocks=request.blocks[: -(-prompt // block_tokens)])


# -- reading


def _requests(file: BinaryIO, path: Path, longest: int | None) -> Iterator[TraceRequest]:
    """Requests in the file's order, on its clock. Raises ConfigError."""
    form: _Form | None = None
    blocks_left = BLOCKS_MAX
    for number, line in _lines(file, path):
        place = f"{path}, line {number}"
        if form is None:
            form = _form_of(line, place)
            if form.has_header:
                continue
        try:
            request = form.parse(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{place}: {_shown(line)} ({error}); allowed: {form.allowed}") from None
        blocks_left -= len(request.blocks)
        if blocks_left < 0:
            raise ConfigError(f"{place}: more than {BLOCKS_MAX:,} ids of blocks; allowed: so many in a file")
        if longest is not None and request.prompt + request.output > longest:
            raise ConfigError(
                f"{place}: {request.prompt:,} and {request.output:,} tokens; allowed: {longest:,} together "
                "(--max-length)"
            )
        yield request


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1. Raises ConfigError beyond a bound."""
    too_large = f"--trace {path} is too large; allowed: up to {FILE_BYTES_MAX:,} bytes"
    if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
        raise ConfigError(too_large)
    num_bytes, number = 0, 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number, num_bytes = number + 1, num_bytes + len(line)
        if len(line) > LINE_BYTES_MAX:
            raise ConfigError(
                f"{path}, line {number}: {_shown(line)} is too long; allowed: up to {LINE_BYTES_MAX:,} bytes"
            )
        if num_bytes > FILE_BYTES_MAX:  # the size of a pipe is not known in advance
            raise ConfigError(too_large)
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if stripped := line.strip():
            yield number, stripped


def _form_of(line: bytes, place: str) -> _Form:
    """The form of the file that begins with this line. Raises ConfigError for none of the three."""
    if line.startswith(b"{"):
        return _MOONCAKE if any(name in line for name in (b'"input_length"', b'"hash_ids"')) else _LENGTHS
    columns = [column.strip() for column in line.decode(errors="replace").split(",")]
    if set(columns) >= set(_COLUMNS):
        return _azure(columns)
    raise ConfigError(
        f"{place}: {_shown(line)} is not the first line of a trace; allowed: {_MOONCAKE.allowed}, "
        f"{_LENGTHS.allowed}, or a table with the columns {','.join(_COLUMNS)}"
    )


def _parse_mooncake(line: bytes) -> TraceRequest:
    given = _MOONCAKE_DECODER.decode(line)
    if len(given.hash_ids) > -(-given.input_length // BLOCK_TOKENS):
        raise ValueError(f"{len(given.hash_ids):,} ids for {given.input_length:,} tokens")
    lengths = given.input_length, given.output_length
    return TraceRequest(given.timestamp / 1000, *lengths, given.hash_ids, given.tenant)


def _parse_lengths(line: bytes) -> TraceRequest:
    given = _LENGTHS_DECODER.decode(line)
    return TraceRequest(given.arrival, given.prompt, given.output)


def _azure(columns: list[str]) -> _Form:
    """The form of a CSV table whose header has these columns, in any order."""
    when, prompt, output = map(columns.index, _COLUMNS)

    def parse(line: bytes) -> TraceRequest:
        cells = [cell.strip() for cell in line.decode("ascii").split(",")]
        if len(cells) != len(columns):
            raise ValueError(f"{len(cells)} columns; the header has {len(columns)}")
        at = datetime.fromisoformat(cells[when])
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return TraceRequest(at.timestamp(), _count(cells[prompt]), _count(cells[output]))

    return _Form(
        f"a time such as 2023-11-16 18:17:03.9799600 and tokens from 1 to {TOKENS_MAX:,}, in the columns "
        f"{','.join(columns)[:_SHOWN]}",
        parse,
        has_header=True,
    )


def _count(text: str) -> int:
    if not (text.isdigit() and len(text) <= len(str(TOKENS_MAX)) and 1 <= int(text) <= TOKENS_MAX):
        raise ValueError(f"{text[:_SHOWN]!r} tokens")
    return int(text)


def _shown(line: bytes) -> str:
    """The beginning of a line, without control characters."""
    text = line[:_SHOWN].decode(errors="replace").strip()
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


_MOONCAKE_DECODER = msgspec.json.Decoder(_MooncakeFields)
_LENGTHS_DECODER = msgspec.json.Decoder(_LengthFields)
_MOONCAKE = _Form(
    '{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id, ...]} with ms from 0, n from '
    f"1 to {TOKENS_MAX:,} and up to an id for each {BLOCK_TOKENS} tokens of input",
    _parse_mooncake,
)
_LENGTHS = _Form(
    f'{{"prompt": n, "output": n, "arrival": s}} with n from 1 to {TOKENS_MAX:,} and s from 0', _parse_lengths
)
