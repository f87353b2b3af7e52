"""The deltas of one request on their way to its event loop.

    feed: d1 d2 d3 ...  ->  waiting, bounded  ->  a reader, at its own pace
                            full: d1+d2 d3+d4 ...

A slow reader gets fewer and larger deltas with the same content: the queue is bounded, whatever the client
does, and never exceeds the answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from octavo.engine.assemble import Assembler
from octavo.engine.outputs import Delta
from octavo.types import FinishReason, Update, Usage

WAITING_MAX = 256  # deltas; more with very many choices


class Follower(Protocol):
    """Receives the deltas of a request before its client does."""

    def take(self, stream: DeltaStream, delta: Delta) -> None:
        """The next delta, before it can be read."""

    def end(self) -> None:
        """There will be no more deltas. May be called again."""


class DeltaStream:
    """The deltas of one request, all choices interleaved; it ends after each choice's final one. Fed on its
    event loop; iterate it once, on that loop. After leaving the iteration early call `cancel()`, which frees
    the request's blocks within two steps."""

    def __init__(
        self,
        request_id: int,
        loop: asyncio.AbstractEventLoop,
        assembler: Assembler,
        cancel: Callable[[int, int | None], None],
    ) -> None:
        self._request_id = request_id
        self._cancel = cancel
        self.loop = loop
        self.assembler = assembler
        self.num_left = assembler.num_choices  # without a final update of the engine
        self.follower: Follower | None = None
        # The engine's reply to `Submit`, done before the first delta.
        self.accepted: Future[int] | None = None
        self._waiting: deque[Delta] = deque()
        self._waiting_max = max(WAITING_MAX, 4 * assembler.num_choices)
        self._came = asyncio.Event()  # a delta waits, or the stream has ended
        self._has_ended = False

    @property
    def num_shared(self) -> int:
        """The leading blocks of the prompt under names that all tenants share."""
        return 0 if self.accepted is None else self.accepted.result()

    @property
    def request_id(self) -> int:
        """The engine's id of the request."""
        return self._request_id

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while not self._waiting:
            if self._has_ended:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        return self._waiting.popleft()

    def cancel(self) -> None:
        """Stop generating; idempotent, any thread."""
        self._cancel(self._request_id, None)

    def abandon(self) -> None:
        """End the stream, because its event loop was closed."""
        if self.follower is not None:
            self.follower.end()

    def feed(self, updates: list[Update]) -> None:
        """Updates of one step, on the stream's event loop."""
        for update in updates:
            delta = self.assembler.take(update)
            if delta is None:
                continue
            if self.follower is not None:
                # First: a client that has read the end may begin the next turn.
                self.follower.take(self, delta)
            self._put(delta)
            if delta.finish is not None and update.finish is None:
                self._cancel(self._request_id, update.choice)  # a stop string: the engine can stop
            if self.assembler.finished:
                self._has_ended = True

    def _put(self, delta: Delta) -> None:
        """Add a delta. With too many waiting, join every second one to the previous one of its choice. So
        each token is copied only as often as their number was halved."""
        if len(self._waiting) >= self._waiting_max:
            self._waiting = deque(joined(self._waiting))
        self._waiting.append(delta)
        self._came.set()


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Half as many deltas, each joined from two of a choice. O(tokens)."""
    made, open_at = list[Delta](), dict[int, int]()  # by choice: the index of a delta that another may join
    for delta in deltas:
        place = open_at.pop(delta.choice, None)
        if place is None:
            open_at[delta.choice] = len(made)
            made.append(delta)
            continue
        first = made[place]
        made[place] = replace(
            delta,
            text=first.text + delta.text,
            tokens=first.tokens + delta.tokens,
            prompt_logprobs=first.prompt_logprobs + delta.prompt_logprobs,
            embedding=first.embedding or delta.embedding,
        )
    return made


def end_all(streams: dict[int, DeltaStream], reason: str) -> None:
    """End every unfinished choice with an error; the assembler drops updates after an end."""
    usage = Usage(0, 0, 0, 0)
    for request_id, stream in streams.items():
        finals = [
            Update(request_id, choice, (), usage, FinishReason.ERROR, error=reason)
            for choice in range(stream.assembler.num_choices)
        ]
        if not call_soon(stream.loop, [(stream, finals)]):
            stream.abandon()


def call_soon(loop: asyncio.AbstractEventLoop, work: list[tuple[DeltaStream, list[Update]]]) -> bool:
    """Feed streams on their event loop; False if it is closed."""

    def feed() -> None:
        for stream, updates in work:
            stream.feed(updates)

    try:
        loop.call_soon_threadsafe(feed)
    except RuntimeError:  # asyncio's error for a closed loop; checking before would be a race
        return False
    return True
