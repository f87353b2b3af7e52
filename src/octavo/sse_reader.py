"""Server-sent events, as a client reads them: bytes in, the data of each event out.

It knows no socket: the caller feeds it bytes, in an event loop or not. Lines other than data (comments that
keep a connection alive, names of events) are skipped; an event has one line of data, as LLM servers write it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator


class SseReader:
    """Reads the bytes of one stream, split in any way."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of an incomplete line

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        *lines, rest = chunk.split(b"\n")
        found = []
        for line in lines:
            self._rest += line
            if self._rest.startswith(b"data:"):
                found.append(bytes(self._rest[5:]).strip())
            self._rest.clear()
        self._rest += rest
        return found


async def events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The data of all events of a stream."""
    reader = SseReader()
    async for chunk in chunks:
        for data in reader.feed(chunk):
            yield data
