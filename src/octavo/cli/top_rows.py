"""The lines of text that `octavo top` draws from a reader's state.

    head       the server, its numbers, and the state of the connection
    map        with its legend (`top_map`)
    requests   running ones, then waiting ones; under each row, over the whole width, why it waits and the
               columns that did not fit
    kept       sessions with a running turn, pins, other sessions
    events     newest first

If the terminal has too few lines, requests get most of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rich.text import Text

from octavo.cli.top_map import draw_legend, draw_map, num_blocks, states_of
from octavo.cli.top_text import (
    QUIET,
    WRONG,
    Canvas,
    Column,
    clean,
    cut,
    flow,
    indented,
    limited,
    table,
    wrapped,
)
from octavo.server.frames import FrameReader
from octavo.units import format_bytes

Row = dict[str, Any]  # as `frame_rows` writes it

SPAN_S = 3.0  # over which speeds are measured
_COUNTERS = ("output_tokens", "prompt_tokens")
_Key = str | tuple[int, int]  # a counter of the whole engine, or a request's id and its choice
_BAR = 5  # cells
_INDENT = 4
_TENANT, _NAME = 16, 24  # cells of a name in a table
_KEPT_LINES, _EVENT_LINES = 20, 10  # without a height
_SHARE = 5  # kept rows and events may each have one in so many of the lines after the map
_STATES = ("active", "resuming", "suspending", "idle", "suspended")  # of sessions, in the order shown
_BUSY = _STATES[:3]
_BAD = frozenset({"preempted", "failed", "transfer_failed", "memory_pressure", "refused", "timed_out"})


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the connection; empty if the screen is drawn once."""

    text: str = ""
    is_wrong: bool = False


@dataclass(frozen=True, slots=True)
class _ChoiceRow:
    """One choice of a request, with the request and the speed."""

    request: Row
    row: Row
    is_first: bool
    speed: float | None
    now: float


def draw_screen(url: str, reader: FrameReader, speeds: Speeds, canvas: Canvas, status: Status) -> list[Text]:
    """The whole screen, at most as many lines as the terminal has."""
    states, tier, tenant = states_of(reader), cast("Row | None", reader.parts.get("tier")), _tenant(reader)
    shown = draw_head(url, reader, speeds, canvas, status)
    shown += draw_map(states, canvas)
    shown += draw_legend(states, canvas, tenant, None if tier is None else tier["found"])
    if canvas.height is None:
        shown += draw_requests(reader, speeds, canvas, None)
        shown += draw_kept(reader, canvas, _KEPT_LINES) + draw_events(reader, canvas, _EVENT_LINES)
        return shown
    left = max(0, canvas.height - len(shown))
    kept, events = draw_kept(reader, canvas, None), draw_events(reader, canvas, None)
    for_events = min(len(events), left // _SHARE)
    for_others = min(len(kept), left // _SHARE) + for_events
    requests = draw_requests(reader, speeds, canvas, left - for_others)
    left -= len(requests)
    kept = draw_kept(reader, canvas, left - for_events)
    shown += requests + kept + draw_events(reader, canvas, left - len(kept))
    return shown[: canvas.height]


# -- head --------------------------------------------------------------------------------------------------
def draw_head(url: str, reader: FrameReader, speeds: Speeds, canvas: Canvas, status: Status) -> list[Text]:
    """The server and its numbers; those of all tenants are only for an operator."""
    pool, server = cast(Row, reader.parts["pool"]), cast(Row, reader.parts.get("server") or {})
    names = [Text(clean(url), "bold"), Text(clean(server.get("model", "")))]
    if status.text:
        names.append(Text(clean(status.text), WRONG if status.is_wrong else QUIET))
    lines = flow(names, canvas.width)
    blocks = f"{pool['blocks']:,} blocks of {pool['block_size']:,} tokens"
    if pool.get("device"):
        blocks += f", {clean(pool['device'])}"
    running = sum(_is_running(row) for row in _requests(reader))
    counts = [f"running {running:,}", f"waiting {len(reader.requests) - running:,}"]
    tenant, stats = _tenant(reader), cast("Row | None", reader.parts.get("stats"))
    if tenant is not None:
        return lines + flow(map(Text, [_held_by(reader, tenant), *counts]), canvas.width)
    if stats is not None:
        counts += _numbers_of(stats, speeds)
    tier = cast("Row | None", reader.parts.get("tier"))
    if tier is not None:
        counts.append(
            f"offloaded {tier['found']:,} of {tier['slots']:,} slots, {tier['in_flight']:,} in flight"
        )
    if (first := cast("Row | None", reader.parts.get("first_tokens"))) is not None:
        counts.append(f"target {first['seconds']:g} s to first token, {first['late']:,} late")
    if (target := cast("Row | None", reader.parts.get("target"))) is not None:
        missed = f"{100 * target['missed'] / target['gaps']:.1f}% missed" if target["gaps"] else "no gap yet"
        counts.append(f"target {1000 * target['seconds']:,.0f} ms between tokens, {missed}")
    for rank in cast("list[Row]", reader.parts.get("ranks") or []):
        memory = format_bytes(rank["memory"])
        counts.append(
            f"rank {rank['rank']} on {clean(rank['device'])}: {memory}, waited {rank['waited']:,} s"
        )
    return lines + flow(map(Text, [blocks, *counts]), canvas.width)


def _numbers_of(stats: Row, speeds: Speeds) -> Iterator[str]:
    output, prompt = (_speed(speeds.of(key)) or "-" for key in ("output_tokens", "prompt_tokens"))
    yield f"tokens/s: output {output}, prompt {prompt}"
    if stats["prompt_tokens"]:
        yield f"hits {100 * stats['cached_tokens'] / stats['prompt_tokens']:.0f}%"
    yield f"preemptions {stats['preemptions']:,}"


def _held_by(reader: FrameReader, tenant: str) -> str:
    held: dict[str, set[int]] = {"sequence": set(), "pin": set(), "session": set()}
    for holding in reader.holdings.values():
        held.setdefault(str(holding.row["kind"]), set()).update(holding.blocks)
    sequences, pins, sessions = (len(held[kind]) for kind in ("sequence", "pin", "session"))
    return (
        f"{clean(tenant)}: {sequences:,} blocks held by sequences, {pins:,} by pins, "
        f"{sessions:,} by sessions; the pool has {num_blocks(reader):,}"
    )


def _tenant(reader: FrameReader) -> str | None:
    return cast("str | None", cast(Row, reader.parts.get("server") or {}).get("tenant"))


# -- requests ----------------------------------------------------------------------------------------------
def draw_requests(reader: FrameReader, speeds: Speeds, canvas: Canvas, limit: int | None) -> list[Text]:
    """A row for each choice, and under it the reason for its wait."""
    choices = list(_choices(reader, speeds))
    if limit == 0:
        return []
    if not choices:
        return [Text("nothing runs", QUIET)]
    first = choices[:limit]  # each takes at least a line
    drawn = table(list(_columns(first, canvas)), canvas.width)
    blocks = []
    for line, words, choice in zip(drawn.rows, drawn.words, first, strict=True):
        notes = [*_notes(choice), *words]
        more = indented("; ".join(notes), canvas.width, _INDENT) if notes else []
        blocks.append([Text(line), *more])
    left = None if limit is None else limit - 1
    return [Text(drawn.head, "bold"), *limited(blocks, left, len(choices) - len(first))][:limit]


def _choices(reader: FrameReader, speeds: Speeds) -> Iterator[_ChoiceRow]:
    """Running choices, then waiting ones in the order of the queue."""
    requests = _requests(reader)
    last, now = len(requests), float(cast(float, reader.parts["now"]))
    requests.sort(key=lambda row: (row.get("place", last), row["id"]))
    choices = [
        _ChoiceRow(row, choice, i == 0, speeds.of((row["id"], choice["choice"])), now)
        for row in requests
        for i, choice in enumerate(row["choices"])
    ]
    yield from (choice for choice in choices if choice.row["running"])
    yield from (choice for choice in choices if not choice.row["running"])


def _columns(choices: Sequence[_ChoiceRow], canvas: Canvas) -> Iterator[Column]:
    """The columns that are not empty, in order; those with a higher `drop` are dropped first."""
    rows = [choice.row for choice in choices]
    tenants = [clean(choice.request["tenant"]) for choice in choices]

    def count(title: str, key: str, drop: int) -> Column:
        cells = [f"{row[key]:,}" if row[key] else "" for row in rows]
        return Column(title, cells, True, [f"{title} {cell}" if cell else "" for cell in cells], drop)

    yield Column("request", [f"{choice.request['id']}.{choice.row['choice']}" for choice in choices])
    if any(tenants):
        cells = [cut(tenant, _TENANT) for tenant in tenants]
        yield Column("tenant", cells, False, [f"of {one}" if one else "" for one in tenants], 3)
    yield Column("state", [_state(choice) for choice in choices])
    yield Column("prompt", [f"{_done(row):,}/{row['prompt']:,}" for row in rows], True)
    yield Column("", [_bar(_done(row), row["prompt"], canvas.is_ascii) for row in rows], drop=7)
    yield count("output", "output", 1)
    speeds = [_speed(choice.speed) if choice.row["running"] else "" for choice in choices]
    yield Column("tokens/s", speeds, True, [f"{one} tokens/s" if one else "" for one in speeds], 2)
    yield count("cached", "cached", 6)
    if any(row["drafted"] for row in rows):
        cells = [f"{row['accepted']:,}/{row['drafted']:,}" if row["drafted"] else "" for row in rows]
        yield Column("drafts", cells, True, [f"drafts accepted {one}" if one else "" for one in cells], 5)
    yield count("blocks", "blocks", 4)
    if any(row["preemptions"] for row in rows):
        yield count("preempted", "preemptions", 8)


def _state(choice: _ChoiceRow) -> str:
    if choice.row["running"]:
        return "runs"
    place = choice.request.get("place") if choice.is_first else None
    return "waits" if place is None else f"waits #{place + 1:,}"


def _notes(choice: _ChoiceRow) -> Iterator[str]:
    if choice.row["why"]:
        yield clean(choice.row["why"])
    if "pin" in choice.request:
        yield f"fills pin {clean(choice.request['pin'])}"
    if "session" in choice.request and not choice.row["running"]:
        yield f"turn of session {clean(choice.request['session'])}"
    if "split" in choice.request and choice.is_first:
        yield f"prompt {clean(choice.request['split'])}{_left(choice)}"


def _left(choice: _ChoiceRow) -> str:
    """The age of the last eviction of a block that its prompt missed."""
    if "left_at" not in choice.request:
        return ""
    return f" (gone {max(0.0, choice.now - choice.request['left_at']):,.0f} s ago)"


def _requests(reader: FrameReader) -> list[Row]:
    return [cast(Row, row) for row in reader.requests.values()]


def _is_running(request: Row) -> bool:
    return any(choice["running"] for choice in request["choices"])


def _done(row: Row) -> int:
    """Computed tokens of the prompt."""
    return min(int(row["computed"]), int(row["prompt"]))


def _bar(done: int, whole: int, is_ascii: bool) -> str:
    full, empty = "#-" if is_ascii else "█░"
    filled = _BAR * done // max(1, whole)
    return full * filled + empty * (_BAR - filled)


def _speed(speed: float | None) -> str:
    if speed is None:
        return ""
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"


# -- sessions, pins and events -----------------------------------------------------------------------------
def draw_kept(reader: FrameReader, canvas: Canvas, limit: int | None) -> list[Text]:
    """Sessions and pins; no lines if there are none."""
    sessions = cast("list[Row]", reader.parts.get("sessions") or [])  # newest first
    pins = cast("list[Row]", reader.parts.get("pins") or [])
    if not (sessions or pins):
        return []
    sessions = sorted(sessions, key=lambda row: _STATES.index(row["state"]) if row["state"] in _STATES else 9)
    num_busy = sum(row["state"] in _BUSY for row in sessions)
    kept = [*sessions[:num_busy], *pins, *sessions[num_busy:]]
    title = f"kept: {_count(len(pins), 'pin')}, {_count(len(sessions), 'session')}"
    drawn = table(list(_kept_columns(kept, float(cast(float, reader.parts["now"])))), canvas.width)
    blocks = []
    for line, words in zip(drawn.rows, drawn.words, strict=True):
        more = indented("; ".join(words), canvas.width, _INDENT) if words else []
        blocks.append([Text(line), *more])
    left = None if limit is None else limit - 1
    return [Text(cut(title, canvas.width), "bold"), *limited(blocks, left)][:limit]


def _kept_columns(kept: Sequence[Row], now: float) -> Iterator[Column]:
    names = [f"session {clean(row['id'])}" if "id" in row else f"pin {clean(row['name'])}" for row in kept]
    yield Column("", [cut(name, len("session ") + _NAME) for name in names])
    tenants = [clean(row["tenant"]) for row in kept]
    if any(tenants):
        cells = [cut(tenant, _TENANT) for tenant in tenants]
        yield Column("", cells, False, [f"of {one}" if one else "" for one in tenants], 3)
    yield Column("", [_kept_state(row) for row in kept])
    held = [f"{row['held']:,} of {row['blocks']:,} blocks" for row in kept]
    yield Column("", held, True, held, 1)
    offloaded = [row["kept"] if "id" in row else row["offloaded"] for row in kept]
    if any(offloaded):
        cells = [f"{count:,} offloaded" if count else "" for count in offloaded]
        yield Column("", cells, True, cells, 2)
    left = [f"{max(0.0, row['expires'] - now):,.0f} s left" for row in kept]
    yield Column("", left, True, left, 4)


def _kept_state(row: Row) -> str:
    if "id" in row:
        return clean(row["state"]) + (" (best effort)" if row["note"] else "")
    return "fills" if row["filling"] else clean(row["strength"])


def draw_events(reader: FrameReader, canvas: Canvas, limit: int | None) -> list[Text]:
    """Recent events, newest first; no lines if there are none."""
    events = cast("list[Row]", reader.parts.get("events") or [])
    now = float(cast(float, reader.parts["now"]))
    lines: list[Text] = []
    for event in events:
        of_tenant = f" ({clean(event['tenant'])})" if event.get("tenant") else ""
        text = f"{ago(now - event['at'])}: {clean(event['text'])}{of_tenant}"
        style = WRONG if event["kind"] in _BAD else ""
        first, *more = wrapped(text, canvas.width - _INDENT)
        rest = [Text(" " * _INDENT + line, style) for line in more]
        if limit is not None and 1 + len(lines) + 1 + len(rest) > limit:
            break
        lines += [Text(first, style), *rest]
    return [Text("events", "bold"), *lines] if lines else []


def ago(seconds: float) -> str:
    """ "just now", "40 s ago", "12 min ago"."""
    if seconds < 1:
        return "just now"
    return f"{seconds:.0f} s ago" if seconds < 90 else f"{seconds / 60:.0f} min ago"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# -- speeds ----------------------------------------------------------------------------------------------
class Speeds:
    """Tokens per second of every choice and counter, from the frames of the last `SPAN_S` (at least two)."""

    def __init__(self) -> None:
        self._points: dict[_Key, list[tuple[float, int]]] = {}  # (time on the engine's clock, tokens)
        self._now = 0.0

    def update(self, reader: FrameReader) -> None:
        """Add the points of a new frame. Drops choices that are not in it, and all points if time went
        back."""
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

    def of(self, key: _Key) -> float | None:
        """Tokens per second; None: not known yet."""
        points = self._points.get(key, [])
        if not points or points[-1][0] <= points[0][0]:
            return None
        (begin, before), (end, after) = points[0], points[-1]
        return max(0, after - before) / (end - begin)


def _counted(reader: FrameReader) -> dict[_Key, int]:
    stats = cast("dict[str, int]", reader.parts.get("stats") or {})
    counted: dict[_Key, int] = {name: stats[name] for name in _COUNTERS if name in stats}
    for number, row in reader.requests.items():
        for choice in cast("list[dict[str, Any]]", row["choices"]):
            counted[number, choice["choice"]] = choice["output"]
    return counted
