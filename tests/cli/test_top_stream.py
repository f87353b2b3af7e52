"""How `octavo top` reads a stream of frames, and the command against servers that really listen."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace

import httpx2
import pytest
from rich.console import Console
from tests.cli.serving import serving
from tests.doubles.fake_model import FakeModel
from tests.doubles.views import a_glimpse, a_request
from tests.engine.served import serve_tiny, step_for_each_glimpse
from tests.waiting import wait_until
from typer.testing import CliRunner

from octavo.cli import top
from octavo.cli.main import app
from octavo.cli.remote_stream import KeyRefused, RemoteServer, error_of_answer
from octavo.cli.top import Watch
from octavo.cli.top_rows import Status
from octavo.engine.outputs import EngineStats, Glimpse
from octavo.errors import InvalidRequest, RequestFailed
from octavo.server import feeds
from octavo.server.frame_rows import stats_row
from octavo.server.frames import FrameWriter
from octavo.server.settings import ServerSettings
from octavo.types import StepPlan

SEEN = a_glimpse(requests=(a_request(7),))
LIVE = Status("live")
URL = "http://127.0.0.1:8000"
Parts = Sequence[bytes | Exception]  # what comes over one connection; then it ends
HANGS = b""  # from there on nothing comes


class Network:
    """Stands for `_stream`: each attempt to connect gets the next parts; after the last none is answered."""

    def __init__(self, *connections: Parts) -> None:
        self.connections = list(connections)
        self.is_silent = asyncio.Event()

    async def stream(self, url: str, api_key: str) -> AsyncIterator[bytes]:
        for part in self.connections.pop(0) if self.connections else [HANGS]:
            if part == HANGS:
                self.is_silent.set()
                await asyncio.Event().wait()
            if isinstance(part, Exception):
                raise part
            yield part


def snapshot(run: str = "1", seen: Glimpse = SEEN) -> bytes:
    writer = FrameWriter({"run": run, "tenant": None, "model": "tiny"})
    writer.write(seen, {"stats": stats_row(EngineStats())})
    return writer.frame_after(0)


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by the watch's clock, which stands still."""
    now = [1000.0]
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watch]:
    """A watch that has had these connections, and stands before a network that is silent."""
    monkeypatch.setattr(top, "_RETRY_PAUSES_S", (0.0,))

    async def until_silent(*connections: Parts) -> Watch:
        network, watch = Network(*connections), Watch(URL, "")
        monkeypatch.setattr(top, "_stream", network.stream)
        following = asyncio.create_task(watch.follow())
        silent = asyncio.create_task(network.is_silent.wait())
        await asyncio.wait({following, silent}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            await following
        following.cancel()
        return watch

    return lambda *connections: asyncio.run(until_silent(*connections))


def test_a_frame_may_come_in_pieces(follow: Callable[..., Watch]) -> None:
    data = snapshot()
    watch = follow([data[:3], data[3:100], data[100:]])
    assert watch.reader.parts["server"] == {"run": "1", "tenant": None, "model": "tiny"}
    assert watch.reader.requests.keys() == {7}


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ([], f"trying again: {URL} closed the connection"),
        ([RequestFailed("it broke")], "trying again: it broke"),
        ([b"\x0c\0\0\0" + b"\xff" * 12], f"trying again: {URL} sent a malformed frame"),
        ([b"\x04\0\0\0" + b"\xff" * 4], f"trying again: {URL} sent a malformed frame"),
    ],
)
def test_a_lost_connection_is_reported_and_what_was_seen_stays(
    follow: Callable[..., Watch], ending: Parts, words: str
) -> None:
    watch = follow([snapshot(), *ending])
    status = watch.status()
    assert status.text.startswith("no connection for 0 s, " + words)
    assert status.is_wrong
    assert watch.reader.requests.keys() == {7}


def test_a_connection_that_was_made_again_is_live_and_shows_what_it_says(
    follow: Callable[..., Watch],
) -> None:
    watch = follow([snapshot()], [RequestFailed("it broke")], [snapshot(seen=a_glimpse()), HANGS])
    assert watch.status() == Status("live")
    assert watch.reader.requests == {}


def test_silence_is_reported_and_a_new_frame_ends_it(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    async def read() -> None:
        watch, more = Watch(URL, ""), asyncio.Event()

        async def stream(url: str, api_key: str) -> AsyncIterator[bytes]:
            yield snapshot()
            await more.wait()

        monkeypatch.setattr(top, "_stream", stream)
        following = asyncio.create_task(watch.follow())
        await watch.first.wait()
        assert watch.status() == Status("live")
        now[0] += 8.4
        assert watch.status().text.startswith("no frame for 8 s: a step takes long")
        following.cancel()

    asyncio.run(read())


def test_another_run_of_the_server_is_reported_and_its_clock_is_not_that_of_the_last(
    follow: Callable[..., Watch], now: list[float]
) -> None:
    watch = follow([snapshot()], [snapshot("2", a_glimpse(requests=SEEN.requests, now=3.0)), HANGS])
    assert watch.status().text == "live; the server restarted just now"
    assert watch.speeds.of("output_tokens") is None
    now[0] += 5.0
    assert watch.status().text == "live; the server restarted 5 s ago"


def test_before_anything_was_seen_a_failure_ends_it(follow: Callable[..., Watch]) -> None:
    with pytest.raises(RequestFailed, match="closed the connection before it sent a frame"):
        follow([])
    with pytest.raises(RequestFailed, match="it broke"):
        follow([RequestFailed("it broke")], [snapshot()])


def test_a_key_that_is_none_any_more_ends_it_at_any_time(follow: Callable[..., Watch]) -> None:
    with pytest.raises(KeyRefused, match="wants an API key"):
        follow([snapshot()], [KeyRefused("the server wants an API key")], [snapshot()])


def test_the_live_screen_is_drawn_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system="truecolor")
    monkeypatch.setattr(top, "Console", lambda: console)
    monkeypatch.setattr(top, "_stream", Network([snapshot()]).stream)
    looks = iter(range(3))

    def status(watch: Watch) -> Status:
        if next(looks, None) is None:
            raise KeyboardInterrupt
        return LIVE

    monkeypatch.setattr(Watch, "status", status)
    top.run(URL, "", 0.001, once=False, as_json=False)
    text = out.getvalue()
    assert text.count("tiny") == 3
    assert text.endswith("\x1b[?25h\x1b[?1049l")  # the terminal is as it was
    assert "38;2;90;160;234" in text  # blue


def test_few_colours_or_none_give_letters() -> None:
    for system, no_color, has_greys in [
        ("truecolor", False, True),
        ("256", False, True),
        ("standard", False, False),
        (None, False, False),
        ("truecolor", True, False),
    ]:
        console = Console(
            file=io.StringIO(), force_terminal=True, color_system=system, no_color=no_color, width=90
        )
        look = top._make_canvas(console, is_endless=True)
        assert (look.has_greys, look.width, look.height) == (has_greys, 90, None)


# -- a real server -------------------------------------------------------------------------------------------
def octavo_top(*words: str) -> str:
    result = CliRunner().invoke(app, ["top", "--once", *words], env={"COLUMNS": "80"})
    if result.exception is not None:
        raise result.exception
    return result.output


def test_json_is_one_object_of_what_the_picture_shows() -> None:
    with serving(FakeModel(), ServerSettings()) as url:
        state = json.loads(octavo_top("--json", "--url", url))
    assert state["pool"]["blocks"] == 10
    assert state["server"]["model"] == "fake-model"
    assert (state["holders"], state["requests"]) == ([], [])


def test_once_shows_a_server_that_does_nothing_and_leaves() -> None:
    with serving(FakeModel(), ServerSettings(api_keys=("secret",))) as url:
        shown = octavo_top("--url", url, "--api-key", "secret")
        assert f"{url}  fake-model\n10 blocks of 16 tokens  running 0  waiting 0" in shown
        assert "\n..........\n. free 10  c cached 0" in shown
        with pytest.raises(RequestFailed, match="needs a valid API key"):
            octavo_top("--url", url, "--api-key", "wrong")
        with pytest.raises(InvalidRequest, match="an ASCII key"):
            octavo_top("--url", url, "--api-key", "kéy")
        with pytest.raises(RequestFailed, match="there is no route GET /v2/v1/kv/watch"):
            octavo_top("--url", f"{url}/v2", "--api-key", "secret")


def test_a_server_that_is_not_there_and_one_that_is_not_octavo_are_reported() -> None:
    with pytest.raises(RequestFailed, match=r"does not answer: .*is `octavo serve` running there\?"):
        octavo_top("--url", "http://127.0.0.1:9")
    with pytest.raises(RequestFailed, match="does not answer"):
        octavo_top("--url", "no address")
    answer = httpx2.Response(404, text="<html>")
    told = error_of_answer(RemoteServer(URL), top._FRAMES, answer)
    assert str(told) == f"{URL}/v1/kv/watch answered 404 without frames; is it Octavo?"


def test_once_shows_how_fast_tokens_come_and_why_a_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine's clock a step takes a tenth of a second: a token a step is 10.0 a second."""
    monkeypatch.setattr(feeds, "_INTERVAL_MAX_S", feeds.INTERVAL_S)  # on a busy machine too
    plans: list[StepPlan] = []
    served = serve_tiny(rows=1, clock=lambda: len(plans) / 10)
    served.turnstile.plans = plans
    step_for_each_glimpse(served)
    pictures: list[str] = []

    def ask() -> None:
        body = {"prompt": "onceuponatime", "max_tokens": 400, "ignore_eos": True}
        httpx2.post(f"{url}/v1/completions", json=body, timeout=60)

    def shows_the_speed() -> bool:
        pictures.append(octavo_top("--url", url))
        return " 10.0" in pictures[-1]

    with serving(served.llm, ServerSettings()) as url:
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(served.llm.submitter._streams) == 2)
            wait_until(shows_the_speed)  # at once, where two frames come in time for the picture
            state = json.loads(octavo_top("--json", "--url", url))
        finally:
            served.turnstile.permits.release(1000)  # type: ignore[union-attr]
            for thread in threads:
                thread.join(60)
    [*_, shown] = pictures
    served.llm.close()
    [running, waiting] = [choice for each in state["requests"] for choice in each["choices"]]
    assert (running["running"], waiting["running"]) == (True, False)
    assert "setting max_seqs" in waiting["why"]
    assert sum(holder["blocks"] for holder in state["holders"]) == running["blocks"] > 0
    assert "running 1  waiting 1" in shown
    assert "    needs 1 rows, 0 free (setting max_seqs)" in shown
    assert re.search(r"^\d\.0 +runs +13/13 .* 10\.0", shown, re.MULTILINE), shown
