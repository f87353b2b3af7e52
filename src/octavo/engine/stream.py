"""The deltas of one request on their way to its event loop.

    feed: d1 d2 d3 ...  ->  waiting, at most so many  ->  a reader, at its own pace
                            full: d1+d2 d3+d4 ...

A reader who is behind gets fewer and larger deltas, which say the same: the queue is bounded, whatever a
client does, and what waits in it is never more than the answer.
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

WAITING_MAX = 256  # deltas; more where there are very many choices


class Follower(Protocol):
    """Sees the deltas of a request before its client does."""

    def take(self, stream: DeltaStream, delta: Delta) -> None:
        """The next delta, before it can be read."""

    def end(self) -> None:
        """There will be no more deltas. May come again."""


class DeltaStream:
    """The deltas of one request, all choices interleaved; it ends after each choice's final one. Fed on its
    event loop; iterate it once, on that loop. Leaving the iteration early must be followed by `cancel()`,
    which frees the request's blocks within two steps."""

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
        self._came = asyncio.Event()  # something waits, or has ended
        self._has_ended = False

    @property
    def num_shared(self) -> int:
        """Of the prompt's blocks, the leading ones under names that all tenants share."""
        return 0 if self.accepted is None else self.accepted.result()

    @property
    def request_id(self) -> int:
        """The engine's id."""
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
        """Its event loop was closed, so nothing will feed it."""
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
                self._cancel(self._request_id, update.choice)  # a stop string: the engine need not go on
            if self.assembler.finished:
                self._has_ended = True

    def _put(self, delta: Delta) -> None:
        """Of each delta that waits, every second joins the one of its choice before it when there are too
        many; so each token is copied only as often as their number was halved."""
        if len(self._waiting) >= self._waiting_max:
            self._waiting = deque(joined(self._waiting))
        self._waiting.append(delta)
        self._came.set()


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same in half as many, each two of a choice as one. O(tokens)."""
    made, open_at = list[Delta](), dict[int, int]()  # by choice: where one stands that another may join
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
    """Every choice that has not ended yet ends with an error; the assembler drops what comes after an end."""
    usage = Usage(0, 0, 0, 0)
    for request_id, stream in streams.items():
        finals = [
            Update(request_id, choice, (), usage, FinishReason.ERROR, error=reason)
            for choice in range(stream.assembler.num_choices)
        ]
        if not call_soon(stream.loop, [(stream, finals)]):
            stream.abandon()


def call_soon(loop: asyncio.AbstractEventLoop, work: list[tuple[DeltaStream, list[Update]]]) -> bool:
    """Feed streams on their event loop; False when it has been closed."""

    def feed() -> None:
        for stream, updates in work:
            stream.feed(updates)

    try:
        loop.call_soon_threadsafe(feed)
    except RuntimeError:  # what asyncio says of a closed loop; asking before would be a race
        return False
    return True
