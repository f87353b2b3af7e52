"""One sequence larger than the pool beside a pool that holds it: tokens a second, what a token reads below,
and what short chats notice of it.

    hot      the pool holds all
    cold     the pool has what the options give it, a file of its own the rest, whose pages stay cached
    dropped  the same; before each token the file's pages are dropped, so that the medium is read
    medium   what four threads read of that file in order, right before: what there is to be had

Each is one engine over the same weights, turned here step by step.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from octavo.bench.workloads import FIRST_TOKEN, LongSequence
from octavo.config import StartOptions
from octavo.engine.core import Engine
from octavo.errors import ConfigError, RequestFailed
from octavo.params import SamplerParams
from octavo.serving.start import Started, build_engine, engine_over
from octavo.types import FinishReason, Request
from octavo.units import blocks_for

LONG = 1  # id of the long request; those of chats follow
_READ_BYTES, _READERS = 1 << 20, 4
_CHAT_TOKENS = 64  # of a chat's prompt
_WATCHED = 40  # tokens of each chat, before and beside


@dataclass(frozen=True, slots=True)
class LongRun:
    """One way of serving the long sequence."""

    configuration: str
    pool_blocks: int
    cold_blocks: int  # of the sequence, when its answer began
    prompt_tokens_per_s: float
    tokens_per_s: float  # median over the answer
    bytes_offloaded: int  # that a token reads there
    medium_bytes_per_s: float | None = None
    chat_gap_before_s: float | None = None  # the longest between two tokens of a chat: median over the chats
    chat_gap_beside_s: float | None = None

    @property
    def share_of_medium(self) -> float | None:
        """Of what the medium gives."""
        if self.medium_bytes_per_s is None:
            return None
        return self.bytes_offloaded * self.tokens_per_s / self.medium_bytes_per_s


@dataclass(slots=True)
class _Turned:
    """An engine, and when its requests got tokens."""

    engine: Engine
    times: dict[int, list[float]] = field(default_factory=dict)

    def until(self, is_met: Callable[[], bool]) -> None:
        """Turn it. Raises RequestFailed."""
        while not is_met():
            if self.engine.idle:
                self.engine.inbox.wait(10)
            updates, now = self.engine.step(), time.perf_counter()
            for update in updates:
                if update.finish is FinishReason.ERROR:
                    raise RequestFailed(update.error)
                self.times.setdefault(update.request_id, []).extend(now for _ in update.tokens)

    def submit(self, request_id: int, prompt: list[int], max_tokens: int) -> None:
        """A request that ends at `max_tokens`."""
        params = SamplerParams(temperature=0.0, ignore_eos=True, speculate=False)
        request = Request(request_id, tuple(prompt), params, max_tokens, arrival=time.perf_counter())
        self.engine.scheduler.submit(request)

    def num_tokens(self, request_id: int) -> int:
        """That it has."""
        return len(self.times.get(request_id, ()))

    def cancel_all(self) -> None:
        """End everything."""
        for request_id in self.engine.scheduler.request_ids:
            self.engine.scheduler.cancel(request_id)
        self.until(lambda: not self.engine.has_work)


def measure(
    model: str | None, options: StartOptions, sequence: LongSequence, tell: Callable[[str], None]
) -> Iterator[LongRun]:
    """Hot, cold, dropped, and with chats. `options` have `kv_memory_bytes`. Raises ConfigError."""
    tokens, given = sequence.tokens + sequence.answer, options.kv_memory_bytes or 0
    with TemporaryDirectory(prefix="octavo-long-") as folder:
        tell("loading the model")
        small = replace(options, disk_cache=folder)
        started = build_engine(model, small, tell)
        per_block = started.budget.bytes_per_block
        needed = blocks_for(tokens, options.block_size) + 1
        if needed * per_block <= given:
            raise ConfigError(
                f"tokens is {sequence.tokens:,}, which needs {needed * per_block:,} bytes of KV; allowed: "
                f"more than kv_memory has, which is {given:,}; give more tokens, or less --kv-memory"
            )
        room = (needed + sequence.chats * 64) * per_block
        big = replace(options, kv_memory_bytes=room, disk_cache=None)
        hot = engine_over(started.loaded, started.backend, big)
        try:
            yield _run("hot", hot, sequence, tell)
            yield from _run_cold(started, sequence, Path(folder), tell)
        finally:
            hot.engine.close()
            started.engine.close()


def _run(name: str, started: Started, sequence: LongSequence, tell: Callable[[str], None]) -> LongRun:
    turned, speed = _computed(name, started, sequence, tell)
    tokens_per_s = _decoded(turned, sequence, lambda: None)
    cold = _cold_blocks(turned)
    turned.cancel_all()
    return LongRun(name, started.budget.num_blocks, cold, speed, tokens_per_s, 0)


def _run_cold(
    started: Started, sequence: LongSequence, folder: Path, tell: Callable[[str], None]
) -> Iterator[LongRun]:
    turned, speed = _computed("cold", started, sequence, tell)
    cold = _cold_blocks(turned)
    below = cold * started.budget.bytes_per_block
    with _opened(next(folder.glob("*/blocks"))) as file:
        warm = _medium(file, below, is_kept=True)
        tokens_per_s = _decoded(turned, sequence, lambda: None)
        blocks = (started.budget.num_blocks, cold, speed)
        yield LongRun("cold", *blocks, tokens_per_s, below, warm)
        turned.cancel_all()
        tell("the same with the page cache dropped")
        rates: list[float] = []
        turned, speed = _computed("dropped", started, sequence, tell)

        def drop() -> None:
            rates.append(_medium(file, below, is_kept=False))
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

        tokens_per_s = _decoded(turned, sequence, drop)
        yield LongRun("dropped", *blocks[:2], speed, tokens_per_s, below, statistics.median(rates))
    if sequence.chats:
        tell(f"beside {sequence.chats} chats")
        before, beside, tokens_per_s = _chats_beside(turned, sequence)
        yield LongRun("cold, beside chats", *blocks[:2], speed, tokens_per_s, below, None, before, beside)
    turned.cancel_all()


def _computed(
    name: str, started: Started, sequence: LongSequence, tell: Callable[[str], None]
) -> tuple[_Turned, float]:
    """The engine with the prompt computed; prompt tokens a second."""
    tell(f"{name}: a prompt of {sequence.tokens:,} tokens")
    turned, prompt = _Turned(started.engine), _prompt(started, sequence.tokens, name)
    begun = time.perf_counter()
    turned.submit(LONG, prompt, _room(started, sequence))
    turned.until(lambda: turned.num_tokens(LONG) > 0)
    return turned, sequence.tokens / (time.perf_counter() - begun)


def _room(started: Started, sequence: LongSequence) -> int:
    """Tokens of the answer: enough for all that is measured, within the context."""
    return min(started.facts.context_length - sequence.tokens, 4 * sequence.answer + 64)


def _decoded(turned: _Turned, sequence: LongSequence, before: Callable[[], None]) -> float:
    """Tokens a second: the median over `answer` of them, each behind a call of `before`."""
    taken = []
    for _ in range(sequence.answer):
        before()
        begun, count = time.perf_counter(), turned.num_tokens(LONG)
        turned.until(lambda: turned.num_tokens(LONG) > count)  # noqa: B023 - called at once
        taken.append(time.perf_counter() - begun)
    return 1.0 / statistics.median(taken)


def _chats_beside(turned: _Turned, sequence: LongSequence) -> tuple[float, float, float]:
    """The longest gap between two tokens of a chat, without the long sequence and beside it: medians over the
    chats, once all of them have their first tokens. And the long sequence's tokens a second then."""
    generator = random.Random(3)
    first = LONG + 1
    for chat in range(first, first + sequence.chats):
        turned.submit(chat, _tokens(generator, _CHAT_TOKENS), 6 * _WATCHED)
    chats = range(first, first + sequence.chats)
    _all_have(turned, chats, _WATCHED)
    begun, count = time.perf_counter(), turned.num_tokens(LONG)
    _all_have(turned, chats, 2 * _WATCHED)
    tokens_per_s = (turned.num_tokens(LONG) - count) / (time.perf_counter() - begun)
    beside = _longest_gaps(turned, begun, chats)
    turned.engine.scheduler.cancel(LONG)
    begun = time.perf_counter()
    _all_have(turned, chats, 3 * _WATCHED)
    return _longest_gaps(turned, begun, chats), beside, tokens_per_s


def _all_have(turned: _Turned, chats: range, count: int) -> None:
    turned.until(lambda: all(turned.num_tokens(chat) >= count for chat in chats))


def _longest_gaps(turned: _Turned, since: float, chats: range) -> float:
    longest = []
    for chat in chats:
        times = [at for at in turned.times[chat] if at >= since]
        longest.append(max(after - before for before, after in itertools.pairwise(times)))
    return statistics.median(longest)


def _cold_blocks(turned: _Turned) -> int:
    return sum(len(s.table.cold) for s in turned.engine.scheduler.live.running if s.table is not None)


def _prompt(started: Started, count: int, name: str) -> list[int]:
    return _tokens(random.Random(name), count)


def _tokens(generator: random.Random, count: int) -> list[int]:
    return [FIRST_TOKEN + generator.randrange(1000) for _ in range(count)]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)
        yield file
    finally:
        os.close(file)


def _medium(file: int, num_bytes: int, *, is_kept: bool) -> float:
    """Bytes a second of so many of the file, read by threads in order; its pages kept, or dropped first."""
    if not is_kept:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    buffers = [bytearray(_READ_BYTES) for _ in range(_READERS)]

    def read(offset: int) -> int:
        return os.preadv(file, [buffers[offset // _READ_BYTES % _READERS]], offset)

    begun = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as pool:
        done = sum(pool.map(read, range(0, num_bytes, _READ_BYTES)))
    return done / (time.perf_counter() - begun)
