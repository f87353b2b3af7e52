"""The page's own logic, module by module, in a real browser: beside the reader in Python, and where a server
misbehaves."""

from __future__ import annotations

import base64
import json
import random
import struct
from typing import TYPE_CHECKING

import pytest
from tests.attack.house import House
from tests.server.test_frames import Life, a_glimpse, a_table
from tests.ui.browsing import Window, say, settle, wait_for_answer

from octavo.cli.top_map import states_of
from octavo.server.frames import FrameReader, FrameWriter

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.real_model, pytest.mark.ui]

SERVER = {
    "run": "r",
    "tenant": None,
    "model": "m",
    "context_length": 9,
    "version": "",
    "begun": 0,
    "has_chat": True,
}
APPLY = """async (frames) => {
    const { Pool } = await import('/ui/pool.js');
    const pool = new Pool();
    return frames.map((text) => {
        const data = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).slice(4);
        pool.apply(data.buffer);
        return {
            states: [...pool.states.subarray(0, pool.blocks)],
            counts: [...pool.counts],
            cells: [...pool.cells],
            tables: [...pool.tables].map(([number, table]) => [number, [...table.blocks]]),
            requests: [...pool.requests.keys()],
            touched: [...pool.touched],
        };
    });
}"""


def shell(house: House, window: Window) -> Page:
    """The page's files, and no stream."""
    window.page.route("**/v1/kv/watch", lambda route: route.abort())
    window.page.goto(f"{house.url}/ui")
    return window.page


def packed(frames: list[bytes]) -> list[str]:
    return [base64.b64encode(frame).decode() for frame in frames]


@pytest.mark.parametrize("seed", range(6))
def test_the_pages_pool_is_the_readers_whatever_happens(house: House, window: Window, seed: int) -> None:
    life, writer, reader = Life(random.Random(seed)), FrameWriter(SERVER), FrameReader()
    frames, expected = [], []
    for step in range(120):
        for _ in range(3):
            life.happen()
        if step % 40 == 39:
            life.begin_again()
        if writer.write(life.glimpse(), {}):
            frames.append(writer.frame_after(reader.number))
            reader.feed(frames[-1])
            states = states_of(reader).tolist()
            expected.append(
                {
                    "states": states,
                    "counts": [0, *(states.count(state) for state in range(1, 8))],
                    "cells": reader.cells.tolist(),
                    "tables": [[number, one.blocks[:]] for number, one in reader.holdings.items()],
                    "requests": list(reader.requests),
                }
            )
    told = shell(house, window).evaluate(APPLY, packed(frames))
    for got, want in zip(told, expected, strict=True):
        del got["touched"]
        assert {**got, "tables": sorted(got["tables"])} == {**want, "tables": sorted(want["tables"])}


def test_last_use_is_reported_of_what_the_page_saw_alone(house: House, window: Window) -> None:
    writer = FrameWriter(SERVER)
    table = a_table([0, 1])
    writer.write(a_glimpse(now=50.0, tables=(table,)), {})
    first = writer.frame_after(0)
    writer.write(a_glimpse(now=60.0, tables=(a_table([0, 2], number=table.number),)), {})
    changes, again = writer.frame_after(1), writer.frame_after(0)
    told = shell(house, window).evaluate(APPLY, packed([first, changes, again]))
    assert [one["touched"] for one in told] == [[0] * 4, [0, 60, 60, 0], [0, 60, 60, 0]]


def test_frames_that_make_no_sense_are_reported_and_their_connections_given_back(
    house: House, window: Window
) -> None:
    page = window.page
    writer = FrameWriter(SERVER)
    writer.write(a_glimpse(), {})
    wrong = struct.pack("<IIII", 16 + 8, 7, 2, 4) + b"{}  " + bytes(8)
    asked: list[float] = []

    def answer(route: Route) -> None:
        asked.append(1.0)
        route.fulfill(body=writer.frame_after(0) + wrong, content_type="application/octet-stream")

    page.route("**/v1/kv/watch", answer)
    page.goto(f"{house.url}/ui")
    page.wait_for_selector(".state.lost:has-text('frame 7 came after 1')")
    page.wait_for_timeout(4000)
    assert 2 <= len(asked) <= 5, "tried again, and ever more slowly"


def test_a_refused_turn_leaves_the_chat_as_it_was_and_the_words_in_the_box(
    house: House, window: Window
) -> None:
    page = window.open(f"{house.url}/ui")
    settle(page, answers=3)
    refusal = {"error": {"message": "too many requests wait", "code": "queue_full"}}
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=429, body=json.dumps(refusal), content_type="application/json"),
    )
    say(page, "What is a book?")
    page.wait_for_selector(".transcript .wrong:has-text('too many requests wait')")
    assert page.locator(".transcript article").count() == 0
    assert page.locator(".composer .grow textarea").input_value() == "What is a book?"
    page.unroute("**/v1/chat/completions")
    settle(page, answers="", max_tokens=8)  # emptied: the default
    page.press(".composer .grow textarea", "Enter")
    wait_for_answer(page)
    assert page.locator(".transcript article.assistant").count() == 1


def test_a_turn_that_was_stopped_is_none_and_forks_are_of_the_right_one(house: House, window: Window) -> None:
    page = window.open(f"{house.url}/ui")
    settle(page, max_tokens=1500)
    say(page, "Tell me a very long story of a ship.")
    page.wait_for_selector(".own-blocks .cells li:nth-child(4)")
    page.click(".composer button:has-text('stop')")
    wait_for_answer(page)
    assert page.locator("text=fork here").count() == 0
    settle(page, max_tokens=8)
    say(page, "And of a boat?")
    wait_for_answer(page)
    page.click("text=fork here")
    page.wait_for_selector("text=it holds the same blocks")
    assert page.locator(".transcript article.assistant").count() == 2


def test_percentiles_are_of_what_came_lately(house: House, window: Window) -> None:
    found = shell(house, window).evaluate(
        """() => import('/ui/series.js').then(({ percentile }) => [
            percentile([0.1, 0.2], [0, 0, 0], 0.5),
            percentile([0.1, 0.2], [4, 0, 0], 0.5),
            percentile([0.1, 0.2], [2, 2, 0], 0.75),
            percentile([0.1, 0.2], [0, 0, 3], 0.5),
        ])"""
    )
    assert found == [None, pytest.approx(50), pytest.approx(150), pytest.approx(200)]


def test_a_chart_without_points_shows_the_last_minutes_and_no_years(house: House, window: Window) -> None:
    shown, told = shell(house, window).evaluate(
        """() => import('/ui/series.js').then(({ timesShown, timeLabels }) => [
            [timesShown(null, null, 1000), timesShown(900, 900, 1000), timesShown(900, 950, 1000)],
            [timeLabels([0, 1], true), timeLabels([3600 * 24 * 365], false)],
        ])"""
    )
    assert shown == [[700, 1000], [600, 900], [900, 950]]
    assert told[0] == ["", ""]
    assert [len(time.split(":")) for time in told[1]] == [3]
