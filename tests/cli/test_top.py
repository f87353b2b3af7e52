"""What `octavo top` draws of a stream of frames."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as changed
from rich.console import Console, Group
from rich.text import Text
from tests.doubles.views import TIER
from tests.doubles.views import a_glimpse as glimpse
from tests.doubles.views import a_pin as pin
from tests.doubles.views import a_request as request
from tests.doubles.views import a_sequence as choice
from tests.doubles.views import a_session as session
from tests.doubles.views import a_table as held

from octavo.cli.top_map import cells_of, draw_legend, draw_map, grid_for, states_of
from octavo.cli.top_rows import Speeds, Status, ago, draw_events, draw_kept, draw_requests, draw_screen
from octavo.cli.top_text import Canvas, Column, clean, limited, table, wrapped
from octavo.engine.outputs import EngineStats, Glimpse, PromptPart, PromptSource, PromptSplit, SessionState
from octavo.memory.holders import HolderKind
from octavo.server.frame_rows import stats_row
from octavo.server.frames import FrameReader, FrameWriter
from octavo.step.events import Event, EventKind

CLEANED = "[red]<img onerror>[31m31m"
URL = "http://127.0.0.1:8000"
WHY = "needs 1,130 blocks, 1,012 unheld, of which 14 are promised to running sequences"
EVIL = "[red]<img onerror>\x1b[31m\u202e\u009b31m"
GREYS = Canvas(80, has_greys=True)
LETTERS = Canvas(80)
LIVE = Status("live")
WAITS = choice(is_running=False, why=WHY, num_computed=0, num_output=0, num_blocks=0, preemptions=2)
BUSY = glimpse(
    names=[b"name" if block in (2, 3, 15) else None for block in range(16)],
    tables=(
        held(HolderKind.SEQUENCE, 0, 1, 2),
        held(HolderKind.SEQUENCE, 2, 4),
        held(HolderKind.SESSION, 5, 6),
        held(HolderKind.PIN, 7, 6),
        held(HolderKind.STORE, 8, 7),
        held(HolderKind.FETCH, 9),
    ),
    requests=(
        request(7, WAITS, tenant="bob", place=1),
        request(9, choice(num_drafted=30, num_accepted=20), choice(1, num_computed=2048), tenant="alice"),
        request(8, changed(WAITS, why="others stand before it", preemptions=0), place=0, session="chat"),
    ),
    pins=(pin("rules", "alice"),),
    sessions=(
        session("idle-one", held=3, note="its tenant may keep none"),
        session("busy-one", "bob", state=SessionState.ACTIVE, kept=9),
    ),
    tier=TIER,
    events=(
        Event(97.5, EventKind.PREEMPTED, "request 7 lost its blocks", 7, "bob"),
        Event(20.0, EventKind.RESIZED, "the pool grew " + "and grew " * 20),
    ),
)
STATS = EngineStats(prompt_tokens=1000, cached_tokens=430, output_tokens=500, preemptions=3)


class Stream:
    """What a server sends, and a reader of it."""

    def __init__(self, tenant: str | None = None, model: str = "tiny") -> None:
        self.writer = FrameWriter({"run": "1", "tenant": tenant, "model": model})
        self.reader = FrameReader()
        self.speeds = Speeds()
        self.tenant = tenant

    def tell(self, seen: Glimpse, stats: EngineStats = STATS) -> Stream:
        number = self.reader.number
        assert self.writer.write(seen, {} if self.tenant is not None else {"stats": stats_row(stats)})
        self.reader.feed(self.writer.frame_after(number))
        self.speeds.update(self.reader)
        return self

    def lines(self, look: Canvas = GREYS, status: Status = LIVE) -> list[str]:
        return [line.plain for line in draw_screen(URL, self.reader, self.speeds, look, status)]


def requests_of(stream: Stream, look: Canvas = LETTERS, limit: int | None = None) -> list[str]:
    return [line.plain for line in draw_requests(stream.reader, stream.speeds, look, limit)]


# -- the whole -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("height", [None, 1, 10, 24, 60])
@pytest.mark.parametrize("has_greys", [True, False])
def test_no_line_is_wider_than_the_terminal_and_no_screen_higher(
    width: int, height: int | None, has_greys: bool
) -> None:
    look = Canvas(width, height, has_greys, is_ascii=not has_greys)
    lines = draw_screen(URL, Stream().tell(BUSY).reader, Speeds(), look, LIVE)
    assert max(line.cell_len for line in lines) <= width
    assert height is None or len(lines) <= height


def test_at_80_columns_everything_is_there() -> None:
    text = "\n".join(Stream().tell(BUSY).lines())
    for words in [
        f"{URL}  tiny",
        "16 blocks of 16 tokens",
        "running 1  waiting 2  tokens/s: output -, prompt -",
        "hits 43%  preemptions 3",
        "offloaded 30 of 400 slots, 2 in flight",
        "■ free 5  ■ cached 2  ■ session 1  ■ held 3  ■ pinned 0  ■ moving 3  ■ shared 2",
        WHY[:60],
        "512/2,048 █░░░░ ",
        "20/30",
        "waits #2",
        "kept: 1 pin, 2 sessions",
        "2 s ago: request 7 lost its blocks (bob)",
    ]:
        assert words in text, words


def test_columns_of_what_no_request_has_are_left_out() -> None:
    head = requests_of(Stream().tell(glimpse(requests=(request(1),))))[0]
    assert head.split() == ["request", "state", "prompt", "output", "tokens/s", "cached", "blocks"]


def test_an_idle_server_is_drawn_too() -> None:
    lines = Stream().tell(glimpse()).lines()
    assert "nothing runs" in lines
    assert not [line for line in lines if line.startswith(("kept", "events"))]


def test_the_terminal_shows_what_fits_and_says_how_many_more_there_are() -> None:
    many = glimpse(requests=tuple(request(i, changed(WAITS, preemptions=0)) for i in range(50)))
    lines = Stream().tell(many).lines(Canvas(80, 24, True))
    assert 20 < len(lines) <= 24
    shown = sum(line.startswith("    needs") for line in lines)
    assert shown >= 5
    assert lines[-1] == f"and {50 - shown} more"


# -- requests ------------------------------------------------------------------------------------------------
def test_why_a_request_waits_has_a_line_of_its_own_at_80_columns() -> None:
    lines = requests_of(Stream().tell(BUSY))
    place = next(i for i, line in enumerate(lines) if line.startswith("7.0"))
    below = lines[place + 1]
    assert below.startswith(f"    {WHY[:60]}")
    assert " ".join(" ".join(lines[place + 1 : place + 3]).split()).startswith(WHY)


def test_where_a_prompt_was_found_and_why_not_is_a_line_in_plain_words() -> None:
    parts = (PromptPart(PromptSource.POOL, 96), PromptPart(PromptSource.EVICTED, 16, "evicted", 40.0, 12))
    split = PromptSplit(96, (*parts, PromptPart(PromptSource.TAIL, 5)))
    stream = Stream().tell(glimpse(requests=(request(9, choice(), choice(1), split=split),)))
    words = "prompt found: 96 in the pool; computed: 16 evicted for request 12, 5 at its end (gone 60 s ago)"
    assert [line.strip() for line in requests_of(stream, Canvas(120))].count(words) == 1


def test_running_ones_come_first_and_others_as_they_stand_in_the_queue() -> None:
    lines = requests_of(Stream().tell(BUSY))
    assert [line.split()[0] for line in lines[1:] if line[0] != " "] == ["9.0", "9.1", "8.0", "7.0"]


def test_a_prompt_s_progress_is_reported_in_tokens_and_as_a_bar() -> None:
    stream = Stream().tell(glimpse(requests=(request(1), request(2, choice(num_computed=9000)))))
    first, second = requests_of(stream)[1:]
    assert "512/2,048  █░░░░" in first
    assert "2,048/2,048  █████" in second
    assert "512/2,048  #----" in requests_of(stream, Canvas(80, is_ascii=True))[1]


def test_columns_without_room_are_words_below_their_rows() -> None:
    lines = requests_of(Stream().tell(BUSY), Canvas(40))
    assert lines[0].split() == ["request", "state", "prompt", "output"]
    text = " ".join(" ".join(lines).split())
    assert "of alice; cached 256; drafts accepted 20/30; blocks 34" in text
    assert "preempted 2" in text


def test_tokens_a_second_are_those_of_the_last_seconds() -> None:
    stream = Stream()
    for now, output in ((10.0, 0), (11.0, 10), (12.0, 20), (13.0, 30), (15.0, 130)):
        seen = glimpse(now=now, requests=(request(1, choice(num_output=output)),))
        stream.tell(seen, EngineStats(prompt_tokens=2 * output, output_tokens=output + 5))
    # The points within 3 s of the last are those at 12, 13 and 15 s.
    assert stream.speeds.of((1, 0)) == pytest.approx(110 / 3)
    assert "36.7" in requests_of(stream)[1]
    head = "\n".join(stream.lines())
    assert "tokens/s: output 36.7, prompt 73.3" in head


def test_the_speed_of_one_look_is_not_known() -> None:
    stream = Stream().tell(glimpse(requests=(request(1),)))
    assert stream.speeds.of((1, 0)) is None
    assert stream.speeds.of((2, 0)) is None
    assert "output -, prompt -" in "\n".join(stream.lines())


def test_speeds_of_two_frames_are_forgotten_with_their_request_and_when_time_goes_back() -> None:
    stream = Stream()
    for now, output in ((10.0, 0), (11.0, 10)):
        stream.tell(glimpse(now=now, requests=(request(1, choice(num_output=output)),)))
    assert stream.speeds.of((1, 0)) == 10.0
    stream.tell(glimpse(now=12.0))
    assert stream.speeds.of((1, 0)) is None
    assert stream.speeds.of("output_tokens") == 0.0
    stream.tell(glimpse(now=1.0, requests=(request(1),)))
    assert stream.speeds.of("output_tokens") is None
    stream.tell(glimpse(now=2.0, requests=(request(1, choice(num_output=45)),)))
    assert stream.speeds.of((1, 0)) == 5.0
    assert stream.speeds.of("output_tokens") == 0.0


# -- the map -------------------------------------------------------------------------------------------------
WORDS = {"free": ".", "cached": "c", "session": "k", "held": "s", "pinned": "p", "moving": "m", "shared": "S"}


def stupid_letters(seen: Glimpse) -> str:
    letters = ""
    for block in range(seen.pool.num_blocks):
        kinds = [table.kind.value for table in seen.tables for b in table.blocks if b == block]
        still = [kind for kind in kinds if kind not in ("fetch", "store")]
        if len(still) != len(kinds):
            letters += "m"
        elif len(still) > 1:
            letters += "S"
        elif still:
            letters += {"pin": "p", "session": "k", "sequence": "s"}[still[0]]
        else:
            letters += "c" if seen.names[block] else "."
    return letters


def some_pool(seed: int, num_blocks: int, **changes: object) -> Glimpse:
    random = np.random.default_rng(seed)
    kinds = list(HolderKind)
    tables = []
    for _ in range(int(random.integers(0, 20))):
        count = int(random.integers(0, num_blocks // 4 + 1))
        blocks = random.choice(num_blocks, count, replace=False).tolist()
        tables.append(held(kinds[int(random.integers(len(kinds)))], *blocks))
    names = [b"name" if is_named else None for is_named in random.integers(0, 2, num_blocks)]
    return glimpse(names, tables=tuple(tables), **changes)


@pytest.mark.parametrize("seed", range(20))
def test_the_map_s_letters_are_those_that_a_look_at_every_table_finds(seed: int) -> None:
    seen = some_pool(seed, 10 + 37 * seed)
    reader = Stream().tell(seen).reader
    drawn = "".join(line.plain for line in draw_map(states_of(reader), Canvas(80, 200)))
    assert drawn == stupid_letters(seen)
    legend = draw_legend(states_of(reader), LETTERS, None, None)
    counted = " ".join(line.plain for line in legend).split()
    for letter, word in zip(
        ".ckspmS", ["free", "cached", "session", "held", "pinned", "moving", "shared"], strict=True
    ):
        place = counted.index(word)
        assert counted[place - 1 : place + 2] == [letter, word, str(stupid_letters(seen).count(letter))]


def test_a_frame_of_changes_gives_the_same_map_as_a_snapshot() -> None:
    stream = Stream()
    for seed in range(5):
        stream.tell(some_pool(seed, 200, now=float(seed)))
    assert stream.reader.num_snapshots == 1
    drawn = "".join(line.plain for line in draw_map(states_of(stream.reader), Canvas(80, 200)))
    assert drawn == stupid_letters(some_pool(4, 200))


def test_half_blocks_show_two_rows_of_cells_in_a_line() -> None:
    states = np.array([1, 7] * 8 + [4, 2], np.uint8)  # a row of 16, a row of 2
    [line] = draw_map(states, Canvas(16, 24, True))
    assert line.plain == "▀" * 16
    assert [str(span.style) for span in line.spans[:3]] == [
        "#2b2b28 on #8f8f88",
        "#5aa0ea on #454541",
        "#2b2b28",
    ]


@pytest.mark.parametrize("blocks", [1, 15, 16, 100, 960, 961, 5000, 200_000])
@pytest.mark.parametrize(
    "look", [GREYS, LETTERS, Canvas(80, 24, True), Canvas(40, 10), Canvas(9, 24), Canvas(200, 60, True)]
)
def test_a_map_of_any_size_fits_and_loses_no_block(blocks: int, look: Canvas) -> None:
    grid = grid_for(blocks, look)
    states = np.ones(blocks, np.uint8)
    states[-1] = 7
    cells = cells_of(states, grid)
    assert cells.shape[1] <= look.width
    assert cells.max() == 7
    lines = draw_map(states, look)
    assert len(lines) <= (8 if look.height is None else max(2, look.height // 4))
    assert grid_for(blocks, replace(look, is_ascii=True)) == grid  # nothing but sizes moves a block


def test_a_cell_of_several_blocks_shows_the_most_used_and_the_legend_says_so() -> None:
    states = np.ones(5000, np.uint8)
    states[2500] = 3
    grid = grid_for(5000, LETTERS)
    assert (grid.columns, grid.per_cell) == (80, 8)
    assert cells_of(states, grid)[2500 // 8 // 80, 2500 // 8 % 80] == 3
    legend = " ".join(line.plain for line in draw_legend(states, LETTERS, None, 12))
    assert "offloaded 12  a cell: the most used of 8 blocks" in legend
    assert ". free 4,999" in legend


# -- strangers' words ----------------------------------------------------------------------------------------
def test_what_strangers_are_called_is_text_and_nothing_else() -> None:
    seen = glimpse(
        requests=(request(1, changed(WAITS, why=EVIL), tenant=EVIL, session=EVIL, fills_pin=EVIL),),
        tables=(held(HolderKind.PIN, 1, tenant=EVIL),),
        pins=(pin(EVIL, EVIL),),
        sessions=(session(EVIL, EVIL, state=EVIL, note=EVIL),),
        events=(Event(97.5, EventKind.PREEMPTED, EVIL + "\nsecond line", 7, EVIL),),
    )
    for tenant in (None, EVIL):
        stream = Stream(tenant, model=EVIL).tell(seen)
        for width in (40, 80, 200):
            out = io.StringIO()
            console = Console(file=out, width=width, color_system=None)
            lines = draw_screen(EVIL, stream.reader, stream.speeds, Canvas(width), Status(EVIL))
            console.print(Group(*lines), soft_wrap=True)
            assert len(out.getvalue().splitlines()) == len(lines)
            assert not set(out.getvalue()) & set("\x1b\u202e\u009b\r\x07")
        assert out.getvalue().count("[red]<img oner") >= 8
        assert CLEANED in out.getvalue()


def test_clean_text_has_no_control_characters_and_keeps_all_else() -> None:
    assert clean(EVIL) == CLEANED
    assert clean("a\ud800b") == "ab"
    assert clean("a\nb\tc\r\nü 日本") == "a b c  ü 日本"


# -- text ----------------------------------------------------------------------------------------------------
def test_lines_are_wrapped_at_words_and_words_only_where_they_are_too_long() -> None:
    assert wrapped("", 10) == [""]
    assert wrapped("one two three", 10) == ["one two", "three"]
    assert wrapped("a " + "b" * 25 + " c", 10) == ["a", "b" * 10, "b" * 10, "b" * 5 + " c"]
    assert wrapped("日本" * 5, 10) == ["日本日本日", "本日本日本"]
    assert wrapped("日本", 1) == ["日本"]


@pytest.mark.parametrize("limit", range(8))
def test_groups_of_lines_are_shown_whole_or_counted(limit: int) -> None:
    groups = [[Text("a")], [Text("b"), Text("B")], [Text("c")], [Text("d"), Text("D")]]
    shown = [line.plain for line in limited(groups, limit)]
    wanted = [
        [],
        ["and 4 more"],
        ["a", "and 3 more"],
        ["a", "and 3 more"],
        ["a", "b", "B", "and 2 more"],
        ["a", "b", "B", "c", "and 1 more"],
        ["a", "b", "B", "c", "d", "D"],
        ["a", "b", "B", "c", "d", "D"],
    ]
    assert shown == wanted[limit]


def test_those_that_have_no_lines_because_they_cannot_fit_are_counted() -> None:
    many = glimpse(requests=tuple(request(i) for i in range(50)))
    lines = requests_of(Stream().tell(many), limit=10)
    assert len(lines) == 10
    assert [line.split()[0] for line in lines[1:-1]] == [f"{i}.0" for i in range(8)]
    assert lines[-1] == "and 42 more"


def test_a_table_loses_the_columns_first_that_matter_least() -> None:
    columns = [
        Column("one", ["1"]),
        Column("twotwo", ["2"], True, ["two is 2"], 1),
        Column("three", ["3"], False, [""], 2),
    ]
    assert table(columns, 18).rows == ["1         2  3"]
    assert table(columns, 16).rows == ["1        2 3"]
    narrow = table(columns, 15)
    assert (narrow.head, narrow.words) == ("one twotwo", [[]])
    narrower = table(columns, 9)
    assert (narrower.head, narrower.words) == ("one", [["two is 2"]])
    assert table(columns, 2).head == ".."


# -- what else is shown --------------------------------------------------------------------------------------
def test_a_tenant_is_shown_its_own_and_nothing_of_others() -> None:
    own = glimpse(
        tables=(
            held(HolderKind.SEQUENCE, 0, 1, tenant="alice"),
            held(HolderKind.SEQUENCE, 1, 2, tenant="alice"),
            held(HolderKind.PIN, 3, tenant="alice"),
        ),
        requests=(request(9, choice(), tenant="alice"),),
        pins=BUSY.pool.pins,
        events=BUSY.pool.events,
        totals=None,
    )
    text = "\n".join(Stream("alice").tell(own).lines(LETTERS))
    held_by = "alice: 3 blocks held by sequences, 1 by pins, 0 by sessions; the pool has 16"
    assert f"{held_by}\nrunning 1  waiting 0\n" in text
    assert ". not yours 12  k session 0  s held 2  p pinned 1  m moving 0  S shared 1" in text
    for word in ("free", "cached 0", "tokens/s:", "hits", "preemptions", "offloaded"):
        assert word not in text


def test_busy_sessions_come_first_and_pins_before_idle_ones() -> None:
    reader = Stream().tell(BUSY).reader
    lines = [line.plain for line in draw_kept(reader, LETTERS, None)]
    assert lines[0] == "kept: 1 pin, 2 sessions"
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "session busy-one bob active 0 of 12 blocks 9 offloaded 600 s left",
        "pin rules alice hot 2 of 2 blocks 60 s left",
        "session idle-one idle (best effort) 3 of 12 blocks 600 s left",
    ]
    few = [line.plain for line in draw_kept(reader, LETTERS, 3)]
    assert few == [lines[0], lines[1], "and 2 more"]


def test_events_are_the_newest_first_with_their_age_and_whole() -> None:
    reader = Stream().tell(BUSY).reader
    lines = [line.plain for line in draw_events(reader, LETTERS, None)]
    assert lines[:2] == ["events", "2 s ago: request 7 lost its blocks (bob)"]
    assert " ".join(" ".join(lines[2:]).split()) == "80 s ago: the pool grew " + "and grew " * 19 + "and grew"
    assert [line.plain for line in draw_events(reader, LETTERS, 3)] == lines[:2]
    assert draw_events(reader, LETTERS, 1) == []


def test_ages_are_words() -> None:
    assert [ago(age) for age in (-1.0, 0.9, 1.4, 89.0, 91.0, 600.0)] == [
        "just now",
        "just now",
        "1 s ago",
        "89 s ago",
        "2 min ago",
        "10 min ago",
    ]
