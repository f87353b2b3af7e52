"""A sequence larger than the pool, compared with a pool that holds it: tokens a second, bytes read from the
offload tier per token, and the effect on short chats.

    hot      the pool holds all blocks
    cold     the pool has the configured size, a file the other blocks; the file stays in the page cache
    dropped  the same, and before each token the file's pages are dropped, so that the medium is read
    medium   the speed of four threads that read that file in order, measured right before

Each is one engine over the same weights, stepped by this module.
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
from octavo.serving.start import StartedEngine, build_engine, engine_over
from octavo.types import FinishReason, Request
from octavo.units import blocks_for

LONG = 1  # id of the long request; those of chats follow
_READ_BYTES, _READERS = 1 << 20, 4
_CHAT_TOKENS = 64  # of a chat's prompt
_WATCHED = 40  # tokens of each chat, with the long sequence and without


@dataclass(frozen=True, slots=True)
class LongRun:
    """One configuration that serves the long sequence."""

    configuration: str
    pool_blocks: int
    cold_blocks: int  # of the sequence, when its answer began
    prompt_tokens_per_s: float
    tokens_per_s: float  # median over the answer
    bytes_offloaded: int  # read from the tier per token
    medium_bytes_per_s: float | None = None
    chat_gap_before_s: float | None = None  # the longest between two tokens of a chat: median over the chats
    chat_gap_beside_s: float | None = None

    @property
    def share_of_medium(self) -> float | None:
        """The share of the medium's speed."""
        if self.medium_bytes_per_s is None:
            return None
        return self.bytes_offloaded * self.tokens_per_s / self.medium_bytes_per_s


@dataclass(slots=True)
class _SteppedEngine:
    """An engine, and the times of its requests' tokens."""

    engine: Engine
    times: dict[int, list[float]] = field(default_factory=dict)

    def until(self, is_met: Callable[[], bool]) -> None:
        """Step it until the condition is met. Raises RequestFailed."""
        while not is_met():
            if self.engine.idle:
                self.engine.inbox.wait(10)
            updates, now = self.engine.step(), time.perf_counter()
            for update in updates:
                if update.finish is FinishReason.ERROR:
                    raise RequestFailed(update.error)
                self.times.setdefault(update.request_id, []).extend(now for _ in update.tokens)

    def submit(self, request_id: int, prompt: list[int], max_tokens: int) -> None:
        """Submit a request that ends at `max_tokens`."""
        params = SamplerParams(temperature=0.0, ignore_eos=True, speculate=False)
        request = Request(request_id, tuple(prompt), params, max_tokens, arrival=time.perf_counter())
        self.engine.scheduler.submit(request)

    def num_tokens(self, request_id: int) -> int:
        """Output tokens of a request."""
        return len(self.times.get(request_id, ()))

    def cancel_all(self) -> None:
        """Cancel all requests."""
        for request_id in self.engine.scheduler.request_ids:
            self.engine.scheduler.cancel(request_id)
        self.until(lambda: not self.engine.has_work)


def measure(
    model: str | None, options: StartOptions, sequence: LongSequence, show: Callable[[str], None]
) -> Iterator[LongRun]:
    """Runs hot, cold, dropped, and with chats. `options` have `kv_memory_bytes`. Raises ConfigError."""
    tokens, given = sequence.tokens + sequence.answer, options.kv_memory_bytes or 0
    with TemporaryDirectory(prefix="octavo-long-") as folder:
        show("loading the model")
        small = replace(options, disk_cache=folder)
        started = build_engine(model, small, show)
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
            yield _run("hot", hot, sequence, show)
            yield from _run_cold(started, sequence, Path(folder), show)
        finally:
            hot.engine.close()
            started.engine.close()


def _run(name: str, started: StartedEngine, sequence: LongSequence, show: Callable[[str], None]) -> LongRun:
    stepped, speed = _computed(name, started, sequence, show)
    tokens_per_s = _decoded(stepped, sequence, lambda: None)
    cold = _cold_blocks(stepped)
    stepped.cancel_all()
    return LongRun(name, started.budget.num_blocks, cold, speed, tokens_per_s, 0)


def _run_cold(
    started: StartedEngine, sequence: LongSequence, folder: Path, show: Callable[[str], None]
) -> Iterator[LongRun]:
    stepped, speed = _computed("cold", started, sequence, show)
    cold = _cold_blocks(stepped)
    offloaded = cold * started.budget.bytes_per_block
    with _opened(next(folder.glob("*/blocks"))) as file:
        warm = _medium(file, offloaded, is_kept=True)
        tokens_per_s = _decoded(stepped, sequence, lambda: None)
        blocks = (started.budget.num_blocks, cold, speed)
        yield LongRun("cold", *blocks, tokens_per_s, offloaded, warm)
        stepped.cancel_all()
        show("the same with the page cache dropped")
        rates: list[float] = []
        stepped, speed = _computed("dropped", started, sequence, show)

        def drop() -> None:
            rates.append(_medium(file, offloaded, is_kept=False))
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

        tokens_per_s = _decoded(stepped, sequence, drop)
        yield LongRun("dropped", *blocks[:2], speed, tokens_per_s, offloaded, statistics.median(rates))
    if sequence.chats:
        show(f"with {sequence.chats} chats")
        alone, together, tokens_per_s = _with_chats(stepped, sequence)
        yield LongRun("cold, with chats", *blocks[:2], speed, tokens_per_s, offloaded, None, alone, together)
    stepped.cancel_all()


def _computed(
    name: str, started: StartedEngine, sequence: LongSequence, show: Callable[[str], None]
) -> tuple[_SteppedEngine, float]:
    """Compute the prompt. Returns the engine and prompt tokens a second."""
    show(f"{name}: a prompt of {sequence.tokens:,} tokens")
    stepped, prompt = _SteppedEngine(started.engine), _prompt(started, sequence.tokens, name)
    begun = time.perf_counter()
    stepped.submit(LONG, prompt, _room(started, sequence))
    stepped.until(lambda: stepped.num_tokens(LONG) > 0)
    return stepped, sequence.tokens / (time.perf_counter() - begun)


def _room(started: StartedEngine, sequence: LongSequence) -> int:
    """Tokens of the answer: enough for all measurements, within the context."""
    return min(started.facts.context_length - sequence.tokens, 4 * sequence.answer + 64)


def _decoded(stepped: _SteppedEngine, sequence: LongSequence, before: Callable[[], None]) -> float:
    """Tokens a second: the median over `answer` tokens, each after a call of `before`."""
    taken = []
    for _ in range(sequence.answer):
        before()
        begun, count = time.perf_counter(), stepped.num_tokens(LONG)
        stepped.until(lambda: stepped.num_tokens(LONG) > count)  # noqa: B023 - called at once
        taken.append(time.perf_counter() - begun)
    return 1.0 / statistics.median(taken)


def _with_chats(stepped: _SteppedEngine, sequence: LongSequence) -> tuple[float, float, float]:
    """The longest gap between two tokens of a chat without the long sequence and with it, as medians over the
    chats once all have their first tokens; and the long sequence's tokens a second meanwhile."""
    generator = random.Random(3)
    first = LONG + 1
    for chat in range(first, first + sequence.chats):
        stepped.submit(chat, _tokens(generator, _CHAT_TOKENS), 6 * _WATCHED)
    chats = range(first, first + sequence.chats)
    _all_have(stepped, chats, _WATCHED)
    begun, count = time.perf_counter(), stepped.num_tokens(LONG)
    _all_have(stepped, chats, 2 * _WATCHED)
    tokens_per_s = (stepped.num_tokens(LONG) - count) / (time.perf_counter() - begun)
    together = _longest_gaps(stepped, begun, chats)
    stepped.engine.scheduler.cancel(LONG)
    begun = time.perf_counter()
    _all_have(stepped, chats, 3 * _WATCHED)
    return _longest_gaps(stepped, begun, chats), together, tokens_per_s


def _all_have(stepped: _SteppedEngine, chats: range, count: int) -> None:
    stepped.until(lambda: all(stepped.num_tokens(chat) >= count for chat in chats))


def _longest_gaps(stepped: _SteppedEngine, since: float, chats: range) -> float:
    longest = []
    for chat in chats:
        times = [at for at in stepped.times[chat] if at >= since]
        longest.append(max(after - before for before, after in itertools.pairwise(times)))
    return statistics.median(longest)


def _cold_blocks(stepped: _SteppedEngine) -> int:
    return sum(len(s.table.cold) for s in stepped.engine.scheduler.live.running if s.table is not None)


def _prompt(started: StartedEngine, count: int, name: str) -> list[int]:
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
    """Bytes a second at which threads read the file in order, with its cached pages kept or dropped first."""
    if not is_kept:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    buffers = [bytearray(_READ_BYTES) for _ in range(_READERS)]

    def read(offset: int) -> int:
        return os.preadv(file, [buffers[offset // _READ_BYTES % _READERS]], offset)

    begun = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as pool:
        done = sum(pool.map(read, range(0, num_bytes, _READ_BYTES)))
    return done / (time.perf_counter() - begun)
