"""The deltas of one request on their way to its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from octavo.engine.assemble import Assembler
from octavo.engine.outputs import Delta
from octavo.engine.turns import TurnRecorder
from octavo.types import FinishReason, Update, Usage


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
        self.tenant = ""  # whose request it is
        self.recorder: TurnRecorder | None = None  # of a session's turn
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()

    @property
    def request_id(self) -> int:
        """The engine's id."""
        return self._request_id

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        delta = await self._deltas.get()
        if delta is None:
            self._deltas.put_nowait(None)  # stays ended
            raise StopAsyncIteration
        return delta

    def cancel(self) -> None:
        """Stop generating; idempotent, any thread."""
        self._cancel(self._request_id, None)

    def abandon(self) -> None:
        """Its event loop was closed, so nothing will feed it: a session's turn has ended without a word."""
        if self.recorder is not None:
            self.recorder.end()

    def feed(self, updates: list[Update]) -> None:
        """Updates of one step, on the stream's event loop."""
        for update in updates:
            delta = self.assembler.take(update)
            if delta is None:
                continue
            if self.recorder is not None:
                self.recorder.take(delta)  # first: a client that has read the end may begin the next turn
            self._deltas.put_nowait(delta)
            if delta.finish is not None and update.finish is None:
                self._cancel(self._request_id, update.choice)  # a stop string: the engine need not go on
            if self.assembler.finished:
                self._deltas.put_nowait(None)


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a session that was taken."""

    session_id: str
    prompt: tuple[int, ...]
    reused_tokens: int  # of the prompt: they were said before, and were not tokenised again
    fallback: str  # why there are none, though something was said before
    stream: DeltaStream

    def told(self) -> dict[str, object]:
        """As the client is told."""
        told: dict[str, object] = {"id": self.session_id, "reused_tokens": self.reused_tokens}
        return told | ({"fallback": self.fallback} if self.fallback else {})


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
