"""Stop strings in a stream of text: text that may be the beginning of one is not emitted too early.

    emitted ........... | held: the longest end of the text that begins some stop string | not generated yet

Of several matches the one that ends first wins (later text does not exist yet when it is found); of those
that end together, the longest, so that none of it is left in the text.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Filters text; after a stop was found, all further text is discarded."""

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        assert all(stops), "a stop string has at least one character"
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, str | None]:
        """The text to emit now, and the stop string if one is complete. O((held + text) x stops)."""
        if self._stopped:
            return "", None
        if not self._stops:
            return text, None
        # Held text alone never contains a stop, so a match must end in the new text.
        self._held += text
        match = self._find()
        if match is not None:
            start, stop = match
            emit = self._held[: start + len(stop) if self._include_stop else start]
            self._held, self._stopped = "", True
            return emit, stop
        keep = self._beginning_length()
        split = len(self._held) - keep
        emit, self._held = self._held[:split], self._held[split:]
        return emit, None

    def finish(self) -> str:
        """The text still held, at the end of the output."""
        held, self._held = self._held, ""
        return held

    def _find(self) -> tuple[int, str] | None:
        """Start and string of the match that ends first; the longest of those."""
        found = [(self._held.find(stop), stop) for stop in self._stops]
        matches = [(start, stop) for start, stop in found if start >= 0]
        return min(matches, key=lambda match: (match[0] + len(match[1]), match[0]), default=None)

    def _beginning_length(self) -> int:
        """Length of the longest end of the held text that is a beginning of some stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
