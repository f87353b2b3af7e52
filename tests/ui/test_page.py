"""What a person sees and does on the page, in a real browser before a real server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.attack.house import House, free_port, serving
from tests.doubles import views
from tests.ui.browsing import Window, drawn, say, screenshot, settle, wait_for_answer

from octavo.engine.outputs import TenantUse
from octavo.memory.holders import HolderKind
from octavo.server.frames import FrameWriter
from octavo.step.events import Event, EventKind
from octavo.tenants import digest_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.real_model, pytest.mark.ui]

LONG = "You are the librarian of a small town, and you know every shelf and every book of it by heart. " * 4
HOSTILE = "<img src=x onerror=\"document.title='broken'\">"


def held_by_chat(window: Window) -> list[str]:
    """The blocks of the open chat, in order, as its strip shows them: where they lie."""
    return [
        one.split("×")[0] for one in window.page.locator(".own-blocks .cells .physical").all_inner_texts()
    ]


def counts(window: Window) -> dict[str, int]:
    words = window.page.locator(".legend li").all_inner_texts()
    pairs = [word.split() for word in words if len(word.split()) == 2]
    return {word: int(count.replace(",", "")) for word, count in pairs}


def test_a_chats_blocks_fill_while_its_tokens_come(house: House, window: Window) -> None:
    page = window.open(f"{house.url}/ui")
    settle(page, max_tokens=300)
    say(page, "Tell me a long story about a printer.")
    page.wait_for_selector("#requests tbody tr")
    page.wait_for_selector(".own-blocks .cells li:nth-child(3)")
    few = len(held_by_chat(window))
    page.wait_for_selector(f".own-blocks .cells li:nth-child({few + 3})")
    assert counts(window)["held"] >= few
    wait_for_answer(page)
    page.wait_for_selector("#requests .empty")
    assert page.locator(".transcript .assistant .text").inner_text().strip()
    assert "session" in page.locator(".actions").inner_text()


def test_two_chats_with_one_system_prompt_show_the_same_cells(house: House, window: Window) -> None:
    page = window.open(f"{house.url}/ui")
    settle(page, system_prompt=LONG, max_tokens=400)
    say(page, "Tell me a very long story about a printer and his daughter.")
    page.wait_for_selector(".own-blocks .cells li:nth-child(6)")
    first = held_by_chat(window)
    page.click("text=new chat")
    say(page, "Tell me a very long story about the sea.")
    page.wait_for_selector(".own-blocks .cells li.shared", timeout=20_000)
    second = held_by_chat(window)
    same = [a for a, b in zip(first, second, strict=False) if a == b]
    assert len(same) >= 4
    assert same == first[: len(same)]
    assert counts(window)["shared"] >= len(same)
    screenshot(page, "two-chats-1440.png")
    page.click(".composer button:has-text('stop')")
    wait_for_answer(page)


def test_a_long_sequence_shows_its_cold_blocks(tmp_path: Path, window: Window) -> None:
    disk = ("--disk-cache", str(tmp_path / "disk"), "--disk-size", "256MiB")
    with serving(tmp_path, *disk, "--kv-memory", "8MiB") as house:
        page = window.open(f"{house.url}/ui")
        settle(page, max_tokens=200)
        say(page, LONG * 16 + "Which books do you have?")
        strip = page.locator(".cold-blocks")
        strip.wait_for()
        wait_until(page, lambda: "cold blocks" in strip.inner_text() and strip.locator("i").count() >= 16)
        assert "MiB read for each token" in strip.inner_text()
        strip.click()
        page.wait_for_selector(".chosen-panel .cells .cold")
        screenshot(page, "cold-blocks-1440.png")
        page.click(".composer button:has-text('stop')")
        wait_for_answer(page)


def test_a_chat_is_forked_suspended_and_resumed_by_buttons(house: House, window: Window) -> None:
    page = window.open(f"{house.url}/ui")
    settle(page, max_tokens=100)
    say(page, "Name the parts of a book, one by one, with a sentence on each.")
    wait_for_answer(page)
    page.click("text=fork here")
    page.wait_for_selector("text=it holds the same blocks")
    assert page.locator(".tabs button").count() == 2
    say(page, "And which of them is the oldest?")
    wait_for_answer(page)
    assert page.locator(".transcript .assistant").count() == 2
    page.click(".tabs button >> nth=0")
    drawn(page)
    assert page.locator(".transcript .assistant").count() == 1
    page.click(".actions >> text=suspend")
    page.wait_for_selector("text=blocks are on disk", timeout=20_000)
    page.click(".actions >> text=resume")
    page.wait_for_selector(".own-blocks .cells li.session, .own-blocks .cells li.shared", timeout=20_000)
    page.click(".actions >> text=pin")
    page.wait_for_selector("#pins >> text=unpin")
    page.click("#pins >> text=unpin")
    page.wait_for_selector("text=Delete pin")  # asked once more
    page.click("#pins >> text=yes")
    page.wait_for_selector("#pins >> text=unpin", state="detached")


def test_several_answers_stand_side_by_side_and_one_is_kept(house: House, window: Window) -> None:
    page = window.open(f"{house.url}/ui")
    settle(page, answers=3, max_tokens=40)
    page.get_by_label("shade by probability").check()
    say(page, "What is a book?")
    page.wait_for_selector("text=keep this one", timeout=60_000)
    assert page.locator(".side-by-side > div").count() == 3
    assert page.locator(".side-by-side [title*='probability']").count() > 10
    page.click("text=keep this one >> nth=1")
    drawn(page)
    assert page.locator(".side-by-side").count() == 0
    say(page, "Shorter, please.")
    wait_for_answer(page)
    assert page.locator(".transcript .assistant").count() == 2


def test_a_forced_preemption_is_seen_with_its_reason(tmp_path: Path, window: Window) -> None:
    with serving(tmp_path, "--kv-memory", "24MiB", "--context-length", "1024") as house:
        page = window.open(f"{house.url}/ui")
        body = {"prompt": "Once upon a time " * 20, "max_tokens": 700, "ignore_eos": True, "temperature": 0}
        with httpx.Client(timeout=120) as client:
            for place in range(4):
                ask = {**body, "prompt": f"{place} {body['prompt']}", "stream": True}
                client.send(
                    client.build_request("POST", f"{house.url}/v1/completions", json=ask), stream=True
                )
            page.wait_for_selector("#requests td.why:has-text('preempted')", timeout=60_000)
            page.wait_for_selector("#events .wrong:has-text('gave up')")
            page.click("#requests tr:has-text('preempted') button")
            page.wait_for_selector(".chosen-panel")
            screenshot(page, "preempted-1440.png")
            window.close()


def test_a_request_is_chosen_by_keyboard_and_its_table_is_reported(house: House, window: Window) -> None:
    page = window.open(f"{house.url}/ui")
    settle(page, max_tokens=400)
    say(page, "Tell me a long story about paper.")
    page.wait_for_selector(".own-blocks .cells li:nth-child(3)")
    block = int(held_by_chat(window)[0])
    page.focus(".map-frame canvas")
    page.keyboard.press("ArrowRight")
    page.evaluate("block => window.octavo.page.painter.current.point(block)", block)
    columns = page.evaluate("window.octavo.page.painter.current.columns")
    for _ in range(block // columns):
        page.keyboard.press("ArrowDown")
    for _ in range(block % columns):
        page.keyboard.press("ArrowRight")
    words = page.locator(".block-words").inner_text()
    assert f"Block {block} " in words
    assert "request" in words
    page.keyboard.press("Enter")
    page.wait_for_selector(".chosen-panel .cells li:nth-child(2)")
    assert page.evaluate("window.octavo.page.painter.current.chosen.size") >= 2
    page.click(".composer button:has-text('stop')")
    wait_for_answer(page)


def test_with_keys_the_page_asks_for_one_and_puts_it_into_no_url(tmp_path: Path, window: Window) -> None:
    key = "octavo-0123456789abcdef0123456789abcdef"
    with serving(tmp_path, env={"OCTAVO_API_KEY": key}) as house:
        page = window.page
        page.goto(f"{house.url}/ui")
        page.wait_for_selector(".state.refused")
        page.get_by_role("textbox", name="key").fill("octavo-a-wrong-key-of-some-length-000")
        with page.expect_response("**/v1/kv/watch") as told:
            page.click("text=use it")
        assert told.value.status == 401
        page.wait_for_selector(".state.refused")
        page.get_by_role("textbox", name="key").fill(key)
        page.click("text=use it")
        page.wait_for_selector(".state.live", timeout=20_000)
        settle(page, max_tokens=8)
        say(page, "What is a book?")
        wait_for_answer(page)
        assert page.locator(".transcript .assistant .text").inner_text().strip()
        assert not [url for url in window.asked if key in url]
        window.close()


def test_a_tenant_sees_its_own_and_no_other(tmp_path: Path, window: Window) -> None:
    keys = {name: f"octavo-{name}-key-0123456789abcdef0123456789" for name in ("ada", "ben", "ops")}
    entries = [
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = "{digest_of(key).hex()}"\n'
        + ("operator = true\n" if name == "ops" else 'guaranteed = "16MiB"\n')
        for name, key in keys.items()
    ]
    file = tmp_path / "tenants.toml"
    file.write_text("\n".join(entries))
    with serving(tmp_path, "--tenants", str(file)) as house:
        bearer = {"Authorization": f"Bearer {keys['ben']}"}
        pin = {"name": "of-ben", "prompt": LONG, "ttl": 600}
        made = house.ask("POST", "/v1/kv/pins", json=pin, headers=bearer)
        assert made.status_code == 201, made.text
        page = window.page
        page.goto(f"{house.url}/ui")
        page.wait_for_selector(".state.refused")
        for name, sees in (("ada", False), ("ops", True)):
            page.evaluate("key => sessionStorage.setItem('octavo-key', key)", keys[name])
            window.open(f"{house.url}/ui")
            page.wait_for_selector("#tiers")
            text = page.inner_text("main")
            assert ("ben" in text) is sees
            assert (counts(window)["pinned"] > 0) is sees
            assert ("is hidden" in text) is not sees
            legend = page.inner_text(".legend")
            assert ("not yours" in legend) is not sees
            assert ("cached" in legend) is sees, "which of the others' blocks are free is not told"
        window.close()


def test_what_strangers_wrote_is_text_wherever_it_stands(house: House, window: Window) -> None:
    waits = views.a_sequence(
        is_running=False, why=HOSTILE, num_computed=4, num_prompt=40, num_drafted=3, num_accepted=1
    )
    glimpse = views.a_glimpse(
        [b"x" * 32, *[None] * 7],
        now=2.0,
        offloaded=bytes(8),
        tables=(views.a_table(HolderKind.PIN, 0, 1, tenant=HOSTILE, label=HOSTILE),),
        requests=(views.a_request(7, waits, tenant=HOSTILE, place=0, session=HOSTILE, fills_pin=HOSTILE),),
        pins=(views.a_pin(HOSTILE, HOSTILE),),
        sessions=(views.a_session(HOSTILE, HOSTILE, note=HOSTILE),),
        tenants=(TenantUse(HOSTILE, 1, 1, charged=2, budgeted=2),),
        events=(Event(1.0, EventKind.PREEMPTED, HOSTILE, 7, HOSTILE),),
    )
    writer = FrameWriter(
        {"run": "r", "tenant": None, "model": HOSTILE, "context_length": 100, "version": "1", "begun": 1}
        | {"has_chat": True}
    )
    writer.write(glimpse, {})
    page = window.page
    stream = writer.frame_after(0)
    page.route(
        "**/v1/kv/watch", lambda route: route.fulfill(body=stream, content_type="application/octet-stream")
    )
    page.goto(f"{house.url}/ui")
    page.wait_for_selector(f"#tenants >> text={HOSTILE[:12]}")
    page.evaluate(
        """import('/ui/pool.js').then(({ keyOf }) => {
            const { pool, page } = window.octavo;
            page.select(keyOf([...pool.tables.values()][0].row));
        })"""
    )
    page.wait_for_selector(".chosen-panel")
    page.focus(".map-frame canvas")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f".block-words >> text={HOSTILE[:12]}")
    settle(page, max_tokens=4)
    say(page, HOSTILE)
    page.wait_for_selector(f".transcript >> text={HOSTILE[:12]}")
    wait_for_answer(page)
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "broken"
    assert page.inner_text("main").count("<img src=x") >= 6


def test_after_kill_9_and_a_restart_the_page_recovers_and_says_so(tmp_path: Path, window: Window) -> None:
    port = free_port()
    disk = ("--disk-cache", str(tmp_path / "disk"), "--disk-size", "64MiB")
    with serving(tmp_path, *disk, port=port) as house:
        page = window.open(f"{house.url}/ui")
        settle(page, max_tokens=2000)
        say(page, "Tell me a long story about a server.")
        page.click("#requests tbody tr button")
        page.wait_for_selector(".chosen-panel .cells li")
        house.kill()
        page.wait_for_selector(".state.lost", timeout=10_000)
        page.wait_for_selector(".transcript .wrong")  # what became of the turn
    with serving(tmp_path, *disk, port=port) as house:
        with httpx.Client(timeout=120) as client:  # another's request, which has the number of ours
            ask = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
            foreign = client.send(
                client.build_request("POST", f"{house.url}/v1/completions", json=ask), stream=True
            )
            page.wait_for_selector(".state.live", timeout=30_000)
            page.wait_for_selector(".notice >> text=The server restarted")
            page.wait_for_selector("#requests tbody tr")
            assert page.locator("#requests tr.selected, .chosen-panel").count() == 0
            assert page.locator(".own-blocks .cells").count() == 0, "another's blocks are not this chat's"
            foreign.close()
        settle(page, max_tokens=10)
        say(page, "What is a book?")
        wait_for_answer(page)
        assert page.locator(".transcript .assistant .text").last.inner_text().strip()
        window.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1440, 900), (390, 844), (3840, 2160)], ids=str)
def test_axe_finds_nothing_serious_and_nothing_is_cut(
    house: House, window: Window, scheme: str, size: tuple[int, int]
) -> None:
    from importlib import resources

    pytest.importorskip("axe_playwright_python", reason="needs axe-core: make test-ui installs it")
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    page = window.page
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    window.open(f"{house.url}/ui")
    settle(page, max_tokens=60)
    say(page, "What is a book?")
    wait_for_answer(page)
    page.evaluate("window.scrollTo(0, 0)")
    screenshot(page, f"page-{size[0]}-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == [], json.dumps(serious, indent=1)


def blocks_of(house: House) -> int:
    return int(house.ask("GET", "/v1/kv").json()["counts"]["total"])


def wait_until(page: Page, test: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


def test_the_demo_plays_to_its_end_and_gives_the_pool_its_size_back(house: House, window: Window) -> None:
    before = blocks_of(house)
    page = window.open(f"{house.url}/ui")
    page.click("nav >> text=demo")
    page.wait_for_selector(".caption[data-phase=plays]")
    captions: list[str] = []
    deadline = time.monotonic() + 120
    while page.locator(".caption[data-phase=over]").count() == 0:
        assert time.monotonic() < deadline, captions
        caption = page.locator(".caption").inner_text()
        if caption not in captions:
            captions.append(caption)
        page.wait_for_timeout(200)
    assert blocks_of(house) == before
    for word in ("Three chats", "Selected", "flood", "Preempted", "vanishes", "suspended", "resumed"):
        assert any(word in caption for caption in captions), f"{word}: {captions[-1]}"
    assert "That was paging" in page.inner_text(".caption")


def test_a_link_from_elsewhere_starts_no_demo_and_one_that_is_left_gives_the_size_back(
    house: House, window: Window
) -> None:
    before = blocks_of(house)
    page = window.open(f"{house.url}/ui?demo")
    page.wait_for_selector(".caption[data-phase=ready] >> text=play")
    assert blocks_of(house) == before
    page.click(".caption button")
    wait_until(page, lambda: blocks_of(house) < before)
    page.goto(f"{house.url}/ui/icon.svg")  # in the middle
    wait_until(page, lambda: blocks_of(house) == before)
    page.goto(f"{house.url}/ui?demo")
    page.click(".caption >> text=restore")
    page.wait_for_selector(".caption >> text=play")
