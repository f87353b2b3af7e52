"""Server-sent events, as a client reads them: bytes in, the data of each event out.

It knows no socket: whoever has one feeds it, in an event loop or not. What is no data (comments that keep a
connection alive, names of events) is skipped; an event has one line of data, as the servers of this field
write them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator


class SseReader:
    """The bytes of one stream, however they were cut."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of a line whose end has not come

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
