"""How fast tokens come: differences of what frames said over the last seconds of the engine's clock."""

from __future__ import annotations

from typing import Any, cast

from octavo.server.frames import FrameReader

SPAN_S = 3.0
_COUNTERS = ("output_tokens", "prompt_tokens")

Key = str | tuple[int, int]  # a counter of the whole engine, or a request's id and its choice


class Speeds:
    """Points (time, tokens) of every choice and counter, from the last `SPAN_S` where two are as new."""

    def __init__(self) -> None:
        self._points: dict[Key, list[tuple[float, int]]] = {}
        self._now = 0.0

    def look(self, reader: FrameReader) -> None:
        """A frame has come. What it does not name any more is forgotten; and all, where time went back."""
        now = float(cast(float, reader.parts["now"]))
        if now < self._now:
            self._points = {}
        self._now = now
        counted = _counted(reader)
        self._points = {key: points for key, points in self._points.items() if key in counted}
        for key, tokens in counted.items():
            points = self._points.setdefault(key, [])
            points.append((now, tokens))
            while len(points) > 2 and now - points[0][0] > SPAN_S:
                del points[0]

    def of(self, key: Key) -> float | None:
        """Tokens a second; None where nothing is known yet."""
        points = self._points.get(key, [])
        if not points or points[-1][0] <= points[0][0]:
            return None
        (begin, before), (end, after) = points[0], points[-1]
        return max(0, after - before) / (end - begin)


def _counted(reader: FrameReader) -> dict[Key, int]:
    stats = cast("dict[str, int]", reader.parts.get("stats") or {})
    counted: dict[Key, int] = {name: stats[name] for name in _COUNTERS if name in stats}
    for number, row in reader.requests.items():
        for choice in cast("list[dict[str, Any]]", row["choices"]):
            counted[number, choice["choice"]] = choice["output"]
    return counted
